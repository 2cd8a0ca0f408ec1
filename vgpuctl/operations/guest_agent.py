# SPDX-License-Identifier: Apache-2.0
"""The QEMU guest agent (qemu-ga) of a VM, which carries out requests where the helper in the guest does not report.

Its answers come from the guest: only values of the expected types are used, and texts are short and have no control
characters. The commands are those of docs/interop/qemu-ga-ref in QEMU.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from vgpuctl.errors import BlockedByGuest, Busy, LibvirtFailed, Refused, VgpuctlError
from vgpuctl.model.names import is_visible
from vgpuctl.model.vm import Vm
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.ports.guests import GuestAgent
    from vgpuctl.ports.host import Host
    from vgpuctl.ports.system import Clock

ANSWER_SECONDS = 5
PROGRAM_SECONDS = 20.0
_LOOK_SECONDS = 0.2
_MAX_CHARACTERS = 300
_MAX_OUTPUT = 8192
"""Of the output of a program, in base64."""
_MAX_COMMANDS = 1000
_MAX_WINDOWS_TEXT = 500
"""shutdown.exe takes 512 characters."""
_REFUSED = 1
"""libvirt's error number for what the guest agent refused."""
_NO_ANSWER = (3, 74, 86, 97)
"""libvirt's error numbers without an answer: not supported, no channel, unresponsive, not synchronized."""
_ENDED = (42, 55, *_NO_ANSWER)
_PROGRAMS = ("guest-exec", "guest-exec-status")
_FILES = ("guest-file-open", "guest-file-write", "guest-file-close")
_TOKEN_DIRECTORY = "/etc/nvidia/ClientConfigToken"  # noqa: S105 - a directory
_TOKEN_FILE = f"{_TOKEN_DIRECTORY}/client_configuration_token_vgpuctl.tok"
_TOKEN_PART = f"{_TOKEN_DIRECTORY}/.client_configuration_token_vgpuctl.tok.vgpuctl"
_PREPARE = 'mkdir -p -- "$1" && rm -f -- "$2" && umask 077 && : >"$2"'
"""qemu-ga makes a new file with mode 0666, so it opens one that is root's alone already."""
_REPLACE = """\
printf '%s  %s\\n' "$4" "$2" | sha256sum -c - >/dev/null 2>&1 || exit 3
chown 0:0 "$2" && chmod 600 "$2" && sync "$2" && mv -f -- "$2" "$3" || exit 1
for other in "$1"/*.tok; do
    [ "$other" = "$3" ] || rm -f -- "$other" || exit 1
done
systemctl --no-block try-restart nvidia-gridd.service || exit 4
"""
"""What the helper's put_token does with the last part of a token."""
_REPLACE_FAILURES = {
    3: "the token has another sha256 than it should; another command may have written it, too",
    4: "the token is in place, but NVIDIA's service was not restarted",
}


class ConnectedAgent(Value):
    """The guest agent of a running VM, which answers and allows what a request needs."""

    vm: Vm
    port: GuestAgent
    clock: Clock
    is_windows: bool


def connect_agent(host: Host, vm: Vm, verb: str) -> ConnectedAgent | None:
    """Return the guest agent of a running VM, which allows what a request needs; None if no guest agent answers.

    Raises:
        BlockedByGuest: the guest's administrator blocks it.
        Refused: it refuses to say what it allows, or its answer has another form.
        VgpuctlError: as `ports.guests.GuestAgent.command`.
    """
    port = host.guest_agent
    if port is None:
        return None
    try:
        info = _ask(port, vm, "guest-info")
    except LibvirtFailed as error:
        if error.facts.get("libvirt_code") in _NO_ANSWER:
            return None
        raise
    listed = info.get("supported_commands") if isinstance(info, dict) else None
    if not isinstance(listed, list) or len(listed) > _MAX_COMMANDS:
        raise _wrong_form(vm, "guest-info")
    allowed = [c.get("name") for c in listed if isinstance(c, dict) and c.get("enabled") is True]
    needed = ("guest-get-osinfo", *_PROGRAMS, *(_FILES if verb == "put-token" else ()))
    blocked = [command for command in needed if command not in allowed]
    if blocked:
        raise _blocked_error(vm, verb, blocked)
    system = _ask(port, vm, "guest-get-osinfo")
    if not isinstance(system, dict):
        raise _wrong_form(vm, "guest-get-osinfo")
    return ConnectedAgent(vm, port, host.clock, system.get("id") == "mswindows")


def show_message(agent: ConnectedAgent, text: str) -> None:
    """Show a text to everybody who is logged on; with Linux only in terminals.

    Raises:
        Busy: the program in the guest did not end in time.
        Refused: the guest agent refused to run it, or it failed.
        VgpuctlError: as `ports.guests.GuestAgent.command`.
    """
    words = ("msg.exe", "*") if agent.is_windows else ("wall",)
    _must_run(agent, *words, stdin=f"{text}\n")  # as an argument of wall it might name a file


def shut_down_in(agent: ConnectedAgent, minutes: int | None, text: str | None) -> None:
    """Have the guest shut down in so many minutes; None: cancel that.

    Raises:
        VgpuctlError: as `show_message`.
    """
    if agent.is_windows:
        comment = () if text is None else ("/c", text[:_MAX_WINDOWS_TEXT])
        words = ("shutdown.exe", "/a") if minutes is None else ("shutdown.exe", "/s", "/t", str(minutes * 60), *comment)
    else:
        warning = () if text is None else (text,)
        words = ("/sbin/shutdown", *(("-c",) if minutes is None else ("-h", "--", f"+{minutes}", *warning)))
    _must_run(agent, *words, ends_guest=minutes == 0)


def put_token(agent: ConnectedAgent, token: str) -> None:
    """Replace the license token in a guest with Linux, and restart NVIDIA's service there.

    Once the guest has the token, errors have no words of the guest: the token might be among them.

    Raises:
        VgpuctlError: as `show_message`.
    """
    name, data = agent.vm.name, f"{token}\n".encode()
    _must_run(agent, "/bin/sh", "-c", _PREPARE, "sh", _TOKEN_DIRECTORY, _TOKEN_PART)
    handle = _ask(agent.port, agent.vm, "guest-file-open", path=_TOKEN_PART, mode="r+")
    if type(handle) is not int:
        raise _wrong_form(agent.vm, "guest-file-open")
    try:
        encoded = {"buf-b64": base64.b64encode(data).decode()}
        _ask(agent.port, agent.vm, "guest-file-write", has_secret=True, handle=handle, **encoded)
    finally:
        with suppress(VgpuctlError):  # the program below checks what was written
            _ask(agent.port, agent.vm, "guest-file-close", has_secret=True, handle=handle)
    digest = hashlib.sha256(data).hexdigest()
    words = ("/bin/sh", "-c", _REPLACE, "sh", _TOKEN_DIRECTORY, _TOKEN_PART, _TOKEN_FILE, digest)
    status, _ = _run(agent, words, has_secret=True)
    if status:
        reason = _REPLACE_FAILURES.get(status, f"the token cannot be put into {_TOKEN_DIRECTORY}")
        raise Refused(f"put-token failed in the guest of {name}: {reason}", vm=name)


def _must_run(agent: ConnectedAgent, *words: str, stdin: str = "", ends_guest: bool = False) -> None:
    """Run a program in the guest.

    Raises:
        Refused: it failed; the message has its last words.
        VgpuctlError: as `_run`.
    """
    status, output = _run(agent, words, stdin, ends_guest=ends_guest)
    if status:
        reason = output or (f"exit status {status}" if status > 0 else "a signal ended it")
        raise Refused(f"{words[0]} failed in the guest of {agent.vm.name}: {reason}", vm=agent.vm.name)


def _run(
    agent: ConnectedAgent,
    words: Sequence[str],
    stdin: str = "",
    *,
    ends_guest: bool = False,
    has_secret: bool = False,
) -> tuple[int, str]:
    """Run a program in the guest; return its exit status, -1 for a signal, and its last line on stderr.

    `ends_guest`: the guest may be off before it tells the exit status.

    Raises:
        Busy: the program did not end in time.
        Refused: the guest agent refused to run it.
        VgpuctlError: as `ports.guests.GuestAgent.command`.
    """
    port, vm = agent.port, agent.vm
    given: dict[str, object] = {"path": words[0], "arg": list(words[1:]), "capture-output": True}
    if stdin:
        given["input-data"] = base64.b64encode(stdin.encode()).decode()
    started = _ask(port, vm, "guest-exec", has_secret=has_secret, **given)
    pid = started.get("pid") if isinstance(started, dict) else None
    if type(pid) is not int:
        raise _wrong_form(vm, "guest-exec")
    deadline = agent.clock.monotonic() + PROGRAM_SECONDS
    while True:
        try:
            status = _ask(port, vm, "guest-exec-status", has_secret=has_secret, pid=pid)
        except LibvirtFailed as error:
            if ends_guest and error.facts.get("libvirt_code") in _ENDED:
                return 0, ""
            raise
        if not isinstance(status, dict) or type(code := status.get("exitcode", -1)) is not int:
            raise _wrong_form(vm, "guest-exec-status")
        if status.get("exited") is True:
            return code, _last_line(status.get("err-data"))
        if agent.clock.monotonic() >= deadline:
            raise Busy(f"{words[0]} did not end within {PROGRAM_SECONDS:g} s in the guest of {vm.name}", vm=vm.name)
        agent.clock.sleep(_LOOK_SECONDS)


def _ask(port: GuestAgent, vm: Vm, command: str, *, has_secret: bool = False, **arguments: object) -> object:
    """Have the guest agent carry out a command, and return what that returned. `has_secret`: the guest knows one.

    Raises:
        Refused: it refused.
        VgpuctlError: as `ports.guests.GuestAgent.command`.
    """
    try:
        return port.command(vm.uuid, command, arguments, wait_seconds=ANSWER_SECONDS)
    except LibvirtFailed as error:
        if error.facts.get("libvirt_code") != _REFUSED:
            raise
        text = error.message.rpartition(f"'{command}': ")[2]
    reason = "" if has_secret else f": {_clean(text)}"  # raised outside: the error above has the guest's words
    raise Refused(f"the QEMU guest agent in {vm.name} refused {command}{reason}", vm=vm.name)


def _last_line(output: object) -> str:
    """Return the last line of a program's output, from base64."""
    if not isinstance(output, str):
        return ""
    try:
        text = base64.b64decode(output[:_MAX_OUTPUT]).decode("utf-8", "replace")
    except ValueError:
        return ""
    return next((line for line in reversed([_clean(line) for line in text.splitlines()]) if line), "")


def _clean(text: str) -> str:
    return "".join(filter(is_visible, text)).strip()[:_MAX_CHARACTERS]


def _wrong_form(vm: Vm, command: str) -> Refused:
    return Refused(f"the QEMU guest agent in {vm.name} gave no usable answer to {command}", vm=vm.name)


def _blocked_error(vm: Vm, verb: str, commands: Sequence[str]) -> BlockedByGuest:
    return BlockedByGuest(
        f"{verb}: blocked by the guest of {vm.name}: its QEMU guest agent does not allow {', '.join(commands)}",
        hint="in the guest, allow them in /etc/sysconfig/qemu-ga (RHEL: FILTER_RPC_ARGS or BLOCK_RPCS) or "
        "/etc/qemu/qemu-ga.conf (allow-rpcs, block-rpcs), then systemctl restart qemu-guest-agent; or install "
        "vgpuctl's helper there: vgpuctl print-helper",
        vm=vm.name,
        commands=list(commands),
    )
