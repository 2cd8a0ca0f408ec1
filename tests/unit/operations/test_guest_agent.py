# SPDX-License-Identifier: Apache-2.0
"""The QEMU guest agent in place of the helper: the real qemu-ga in a root of its own, and guests that lie."""

from __future__ import annotations

import base64
import hashlib
import re
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.guests.helper import program
from tests.guests.qemu_ga import COMMANDS, AgentRoot, answering
from tests.hosts import SimulatedHost, context, create, open_sim_host, request, stop
from tests.licenses import MARKER, put_license, token_text
from tests.meanwhile import unchanged, with_calls
from vgpuctl.config.vm_spec import with_seed
from vgpuctl.errors import (
    BlockedByGuest,
    Busy,
    HostCannot,
    InvalidInput,
    LibvirtFailed,
    Refused,
    VgpuctlError,
    exception_chain,
)
from vgpuctl.host.processes import HostClock
from vgpuctl.model.guest_agent import MAX_ANSWER_CHARACTERS
from vgpuctl.model.guest_logon import is_password, new_password
from vgpuctl.model.request import CloudInit, GuestSetup
from vgpuctl.observe.licenses import read_license
from vgpuctl.operations import guest_agent
from vgpuctl.operations.guest_helper import allow_logon, make_account, message_vm, set_password, shut_down_in
from vgpuctl.operations.guest_setup import refresh_license

IMAGE = "/srv/images/ubuntu-24.04.qcow2"
FOLDER = "etc/nvidia/ClientConfigToken"
TOKEN = f"{FOLDER}/client_configuration_token_vgpuctl.tok"
INFO = {"supported_commands": [{"name": name, "enabled": True} for name in COMMANDS]}
ACTS: dict[str, Callable[..., Any]] = {
    "message": lambda host, **options: message_vm(host.ports, context(**options), "vm", "hi"),
    "shutdown": lambda host, **options: shut_down_in(host.ports, context(**options), "vm", 5),
    "cancel": lambda host, **options: shut_down_in(host.ports, context(**options), "vm", None),
}


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    """A host whose clock is this machine's, because qemu-ga takes its time; VM vm has a license, and runs."""
    host = open_sim_host(tmp_path / "host", "a100-40", clock=HostClock())
    put_license(host.sim.host_file.parent)
    seed = CloudInit(setup=GuestSetup(read_license(host.ports, "cad")))
    create(host.ports, with_seed(request("A100-4C", name="vm", image=IMAGE, license_name="cad"), seed))
    return host


def uuid_of(host: SimulatedHost) -> str:
    domain = host.ports.hypervisor.find_domain("vm")
    assert domain is not None
    return domain.uuid


class Guest:
    """VM vm's guest with the real qemu-ga."""

    def __init__(self, host: SimulatedHost, path: Path) -> None:
        self.host, self.root = host, AgentRoot(path)

    def running(self, *options: str) -> Any:
        """Run qemu-ga in the block."""
        port = self.host.ports.guest_agent
        assert port is not None
        return self.root.running(port, self.host.directory / "state", uuid_of(self.host), *options)


@pytest.fixture
def guest(host: SimulatedHost, tmp_path: Path) -> Guest:
    return Guest(host, tmp_path / "guest")


def refresh(host: SimulatedHost, **options: Any) -> Any:
    return refresh_license(host.ports, context(**options), "vm", clear=False)


def liar(host: SimulatedHost, **answers: Any) -> Any:
    """Be a guest agent that returns these values: {"guest_exec": ...}; others are right."""

    def answer(command: str, arguments: Any) -> object:
        given = answers.get(command.replace("-", "_"), RIGHT[command])
        given = given(arguments) if callable(given) else given
        return (
            given if isinstance(given, bytes) or (isinstance(given, dict) and "error" in given) else {"return": given}
        )

    return answering(host.directory / "state", uuid_of(host), answer)


RIGHT: dict[str, Any] = {
    "guest-info": INFO,
    "guest-get-osinfo": {"id": "rhel"},
    "guest-exec": {"pid": 7},
    "guest-exec-status": {"exited": True, "exitcode": 0},
    "guest-file-open": 1000,
    "guest-file-write": {"count": 1, "eof": False},
    "guest-file-close": {},
}


def test_a_message_and_a_shutdown(host: SimulatedHost, guest: Guest) -> None:
    with guest.running():
        assert message_vm(host.ports, context(dry_run=True), "vm", "hi").steps == (
            "show a message to the users of vm, by the QEMU guest agent",
        )
        assert guest.root.noted("wall") == []
        message_vm(host.ports, context(), "vm", "-- /etc/shadow $(id) é")
        shut_down_in(host.ports, context(), "vm", 10, "--reboot; 'now'")
        shut_down_in(host.ports, context(), "vm", None)
    assert guest.root.noted("wall") == ["-- /etc/shadow $(id) é"]
    assert guest.root.noted("shutdown") == ["-h", "--", "+10", "--reboot; 'now'", "-c"]


def test_a_program_that_fails_says_why(host: SimulatedHost, guest: Guest) -> None:
    guest.root.put_program("wall", "#!/bin/sh\nprintf 'one\\nno \\033[31mterminal\\n\\n' >&2\nexit 3\n")
    with guest.running():
        with pytest.raises(Refused, match=r"^wall failed in the guest of vm: no \[31mterminal$"):
            message_vm(host.ports, context(), "vm", "hi")
        guest.root.put_program("wall", "#!/bin/sh\nexit 3\n")
        with pytest.raises(Refused, match=r"^wall failed in the guest of vm: exit status 3$"):
            message_vm(host.ports, context(), "vm", "hi")
        guest.root.put_program("wall", "#!/bin/sh\nkill -9 $$\n")
        with pytest.raises(Refused, match=r"^wall failed in the guest of vm: a signal ended it$"):
            message_vm(host.ports, context(), "vm", "hi")
        (guest.root.path / "usr/bin/wall").unlink()
        with pytest.raises(Refused, match=r"refused guest-exec: .*No such file or directory"):
            message_vm(host.ports, context(), "vm", "hi")


def files(root: Path) -> dict[str, tuple[str, str]]:
    """Return the files of the token's folder, with modes and texts."""
    return {p.name: (stat.filemode(p.stat().st_mode), p.read_text()) for p in (root / FOLDER).iterdir()}


@pytest.mark.parametrize("is_there", [True, False], ids=["an old token", "no folder"])
def test_a_token_is_put_as_the_helper_puts_it(
    host: SimulatedHost, guest: Guest, tmp_path: Path, is_there: bool
) -> None:
    text = token_text(exp=4e9, pad="x" * 5000)
    put_license(host.sim.host_file.parent, client_tok=text)
    by_helper = tmp_path / "other"
    for root in (by_helper, guest.root.path):
        (root / FOLDER).parent.mkdir(parents=True)
        if is_there:
            (root / FOLDER).mkdir()
            for name in ("old.tok", "other.txt", Path(TOKEN).name, f".{Path(TOKEN).name}.vgpuctl"):
                (root / FOLDER / name).write_text("old")
    ran: list[list[str]] = []
    helper = program.Guest(by_helper, lambda words, stdin: ran.append(words))
    helper.put_token({"part": 1, "parts": 1, "data": text, "sha256": hashlib.sha256(text.encode()).hexdigest()})
    with guest.running("-v", "-l", "/run/qga.log"):
        steps = refresh(host, dry_run=True).steps
        assert not (guest.root.path / TOKEN).exists() or is_there
        done = refresh(host)
    assert (done.changed, done.steps, done.notes) == (True, steps, ())
    assert steps[0] == "replace the license token in the guest of vm"
    assert files(guest.root.path) == files(by_helper)
    assert files(by_helper)[Path(TOKEN).name] == ("-rw-------", f"{text}\n")
    assert guest.root.noted("systemctl") == [" ".join(ran[0][1:])]
    log = (guest.root.path / "run/qga.log").read_text()
    assert ("guest-exec" in log, MARKER in log) == (True, False)


def test_a_token_that_another_command_changes_meanwhile_is_not_put(host: SimulatedHost, guest: Guest) -> None:
    real = host.ports.guest_agent
    assert real is not None

    def change(uuid: str, name: str, arguments: Any, **options: Any) -> object:
        answer = real.command(uuid, name, arguments, **options)
        if name == "guest-file-close":
            with (guest.root.path / f"{FOLDER}/.{Path(TOKEN).name}.vgpuctl").open("a") as file:
                file.write("more")
        return answer

    with guest.running(), pytest.raises(Refused, match="the token has another sha256 than it should"):
        refresh_license(with_calls(host.ports, "guest_agent", command=change), context(), "vm", clear=False)
    assert not (guest.root.path / TOKEN).exists()


def test_a_service_that_does_not_restart_is_said(host: SimulatedHost, guest: Guest) -> None:
    guest.root.put_program("systemctl", "#!/bin/sh\nexit 1\n")
    with guest.running(), pytest.raises(Refused, match="in place, but NVIDIA's service was not restarted"):
        refresh(host)
    assert (guest.root.path / TOKEN).read_text() == f"{token_text()}\n"


@pytest.mark.parametrize("act", ACTS)
def test_what_the_guest_blocks_is_an_error_of_its_own(host: SimulatedHost, guest: Guest, act: str) -> None:
    with guest.running("-b", "guest-exec,guest-file-open"):
        for dry_run in (True, False):
            with unchanged(host), pytest.raises(BlockedByGuest, match="blocked by the guest of vm") as caught:
                ACTS[act](host, dry_run=dry_run)
            assert caught.value.facts["commands"] == ["guest-exec"]
            assert "FILTER_RPC_ARGS" in str(caught.value.hint)


def test_a_blocked_token_waits_in_the_seed(host: SimulatedHost, guest: Guest) -> None:
    put_license(host.sim.host_file.parent, client_tok=token_text(exp=4e9))
    with guest.running("-b", "guest-file-write"):
        done = refresh(host)
        blocked, waits = done.notes
        assert blocked.startswith("put-token: blocked by the guest of vm: ")
        assert blocked.endswith(" does not allow guest-file-write")
        assert waits == "the guest of vm gets it at its next boot"
        assert not refresh(host).changed
    assert guest.root.noted("systemctl") == []


def test_a_vm_without_a_seed_gets_its_token_and_otherwise_the_reason(host: SimulatedHost, guest: Guest) -> None:
    create(host.ports, request("A100-4C", name="bare", license_name="cad"))
    domain = host.ports.hypervisor.find_domain("bare")
    assert domain is not None
    port = host.ports.guest_agent
    assert port is not None
    run = partial(refresh_license, host.ports, context(), "bare", clear=False)
    blocking = guest.root.running(port, host.directory / "state", domain.uuid, "-b", "guest-exec")
    with blocking, pytest.raises(BlockedByGuest):
        run()
    with pytest.raises(Refused, match="bare has no seed"):
        run()
    with guest.root.running(port, host.directory / "state", domain.uuid):
        assert run().changed
    assert (guest.root.path / TOKEN).read_text() == f"{token_text()}\n"


@pytest.mark.parametrize("act", ACTS)
def test_a_guest_where_nothing_answers(host: SimulatedHost, act: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest_agent, "ANSWER_SECONDS", 0.05)
    for block in (liar(host, guest_info=b""), unchanged(host)):
        with block, pytest.raises(HostCannot, match="and this command did not go through it; no QEMU guest agent"):
            ACTS[act](host)
    stop(host.ports, "vm")
    with pytest.raises(Refused, match="vm is stopped: nothing answers in its guest"):
        ACTS[act](host)


def test_logging_on_is_the_helpers_alone(host: SimulatedHost, guest: Guest) -> None:
    with guest.running(), pytest.raises(HostCannot, match="did not go through it; the QEMU guest agent cannot do it"):
        allow_logon(host.ports, context(), "vm", "alice")


BAD_ACCOUNTS = [
    "",
    "a b",
    "-x",
    "ALL",
    "Ada",
    "CORP\\ada",
    "ada@corp",
    "a" * 33,
    "a" * 300,
    "a'b",
    'a"b',
    "a\n",
    "$(id)",
]


@pytest.mark.parametrize("user", BAD_ACCOUNTS)
def test_what_is_no_account_or_password_never_reaches_a_guest(host: SimulatedHost, user: str) -> None:
    good = new_password()
    for act in (partial(make_account, user=user), partial(set_password, user=user, password=good)):
        with pytest.raises(InvalidInput, match="is not the name of a local account"):
            act(host.ports, context(), "vm")


def test_a_bad_password_is_in_no_message(host: SimulatedHost) -> None:
    for password in ("short", "a" * 65, "secret-secret:x", "-secretsecret", "secret--secret", "secretsecret\n"):
        with pytest.raises(InvalidInput) as caught:
            set_password(host.ports, context(), "vm", user="ada", password=password)
        assert password not in f"{caught.value.message} {caught.value.hint} {caught.value.facts}"
    with pytest.raises(InvalidInput, match="and nobody, too"):
        allow_logon(host.ports, context(), "vm", "ada", nobody=True)


def test_passwords_differ_and_are_taken(host: SimulatedHost) -> None:
    passwords = {new_password() for _ in range(200)}
    assert len(passwords) == 200
    assert all(map(is_password, passwords))
    assert all(re.search("[a-z]", one) and re.search("[0-9]", one) and "-" in one for one in passwords)


def test_a_guest_with_windows_is_asked_in_its_own_words(host: SimulatedHost) -> None:
    ran: list[tuple[Any, ...]] = []

    def note(arguments: Any) -> object:
        stdin = base64.b64decode(arguments.get("input-data", "")).decode()
        ran.append((arguments["path"], *arguments["arg"], stdin))
        return {"pid": 7}

    with liar(host, guest_get_osinfo={"id": "mswindows"}, guest_exec=note):
        message_vm(host.ports, context(), "vm", "hi")
        shut_down_in(host.ports, context(), "vm", 10, "x" * 501)
        shut_down_in(host.ports, context(), "vm", None)
        assert refresh(host).changed is False, "the seed has it"
    assert ran == [
        ("msg.exe", "*", "hi\n"),
        ("shutdown.exe", "/s", "/t", "600", "/c", "x" * 500, ""),
        ("shutdown.exe", "/a", ""),
    ]


def end_connection(arguments: Any) -> object:
    raise OSError


def test_a_guest_that_shuts_down_at_once_may_not_answer_any_more(host: SimulatedHost) -> None:
    with liar(host, guest_exec_status=end_connection):
        assert shut_down_in(host.ports, context(), "vm", 0).changed
        with pytest.raises(LibvirtFailed, match="disappeared"):
            shut_down_in(host.ports, context(), "vm", 1)


def test_a_program_that_does_not_end_is_waited_for_once(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, "a100-40")
    create(host.ports, request("A100-4C", name="vm"))
    with liar(host, guest_exec_status={"exited": False}), pytest.raises(Busy, match="wall did not end within 20 s"):
        message_vm(host.ports, context(), "vm", "hi")


LIES = [
    {"guest_info": answer}
    for answer in (
        None,
        [],
        {},
        {"supported_commands": 1},
        {"supported_commands": [{}] * 1001},
        b"rubbish\n",
        b"\xff\n",
    )
] + [
    {"guest_info": b'{"return": ' + b"[" * 5000 + b"\n"},
    {"guest_info": b"x" * (MAX_ANSWER_CHARACTERS + 100) + b"\n"},
    {"guest_info": {"error": {"desc": 1}}},
    {"guest_get_osinfo": "rhel"},
    {"guest_exec": 7},
    {"guest_exec": {"pid": True}},
    {"guest_exec": {"pid": "7"}},
    {"guest_exec_status": None},
    {"guest_exec_status": {"exited": True, "exitcode": "0"}},
    {"guest_exec_status": {"exited": True, "exitcode": True}},
    {"guest_exec_status": {"exited": True, "exitcode": 1, "err-data": "?"}},
    {"guest_exec_status": {"exited": True, "exitcode": 1, "err-data": base64.b64encode(b"\x1b" * 9000).decode()}},
    {"guest_exec": {"error": {"desc": "\x1b[31m\u202e" + "x" * 5000}}},
]


@pytest.mark.parametrize("lie", LIES, ids=[str(number) for number, _ in enumerate(LIES)])
def test_a_guest_that_lies_is_refused_in_few_words(host: SimulatedHost, lie: dict[str, Any]) -> None:
    with liar(host, **lie), pytest.raises(Refused) as caught:
        message_vm(host.ports, context(), "vm", "hi")
    assert len(caught.value.message) < 400
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    "lie",
    [
        {"guest_info": {"supported_commands": [{"name": name, "enabled": 1} for name in COMMANDS]}},
        {"guest_info": {"supported_commands": [1, "guest-exec", {"name": ["guest-exec"], "enabled": True}]}},
    ],
)
def test_what_is_not_plainly_allowed_is_blocked(host: SimulatedHost, lie: dict[str, Any]) -> None:
    with liar(host, **lie), pytest.raises(BlockedByGuest):
        message_vm(host.ports, context(), "vm", "hi")


SECRET = base64.b64encode(f"{token_text()}\n".encode()).decode()


@pytest.mark.parametrize(
    "lie",
    [
        {"guest_file_open": "handle"},
        {"guest_file_write": {"error": {"desc": f"{token_text()} {SECRET}"}}},
        {"guest_file_close": {"error": {"desc": token_text()}}, "guest_file_write": end_connection},
    ],
    ids=["handle", "write", "close"],
)
def test_no_error_has_the_token(host: SimulatedHost, lie: dict[str, Any]) -> None:
    with liar(host, **lie), pytest.raises(VgpuctlError) as caught:
        refresh(host)
    for error in exception_chain(caught.value):
        shown = repr((error, vars(error)))
        assert (MARKER in shown, SECRET in shown) == (False, False)


def test_a_program_that_fails_with_the_token_has_no_words(host: SimulatedHost) -> None:
    statuses: Iterator[Any] = iter((0, 1))

    def fail(arguments: Any) -> object:
        words = base64.b64encode(token_text().encode()).decode()
        return {"exited": True, "exitcode": next(statuses), "err-data": words}

    with liar(host, guest_exec_status=fail), pytest.raises(Refused) as caught:
        refresh(host)
    assert caught.value.message == (
        "put-token failed in the guest of vm: the token cannot be put into /etc/nvidia/ClientConfigToken"
    )
