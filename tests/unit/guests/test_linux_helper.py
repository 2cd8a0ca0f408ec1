# SPDX-License-Identifier: Apache-2.0
"""The helper for guests with Linux: its reports, its requests, and its lines through the port."""

from __future__ import annotations

import ast
import hashlib
import json
import stat
import threading
import time
from pathlib import Path

import pytest

from tests.guests.helper import PROGRAM, Peer, Programs, program
from vgpuctl.model.guest_report import MAX_LINE_BYTES, GuestAnswer, GuestReport, parse_line

DIGEST = hashlib.sha256(b"abc.def").hexdigest()
HOST, BRANCH = b"580.178\0\0\0", b"r580_178\0\0"


def config_space(vendor: bytes = b"\xde\x10", mark: bytes = b"VF", before: bytes = b"") -> bytes:
    """Return a PCI configuration space: another capability, then the vendor-specific one."""
    records = before + bytes([0, 22]) + HOST + BRANCH
    power = bytes([0x01, 0x68, 0, 0, 0, 0, 0, 0])
    vendor_specific = bytes([0x09, 0, 5 + len(records)]) + mark + records
    return (vendor + bytes(0x32) + b"\x60" + bytes(0x2B) + power + vendor_specific).ljust(256, b"\0")


@pytest.fixture
def programs() -> Programs:
    return Programs()


@pytest.fixture
def guest(tmp_path: Path, programs: Programs) -> program.Guest:
    return program.Guest(tmp_path, programs)


def put(root: Path, path: str, data: bytes | str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data.encode() if isinstance(data, str) else data)


def test_it_runs_with_the_oldest_python_that_it_names() -> None:
    ast.parse(PROGRAM.read_text(), feature_version=(3, 9))


@pytest.mark.parametrize(
    ("config", "versions"),
    [
        (config_space(), ("580.178", "r580_178")),
        (config_space(before=bytes([7, 4, 1, 1])), ("580.178", "r580_178")),
        (config_space(mark=b"XX"), None),
        (config_space(before=bytes([0, 22]) + b"\xff" * 20), (None, None)),
        (config_space(before=bytes([7, 0])), None),
        (b"\xde\x10", None),
        ((b"\xde\x10" + bytes(0x32) + b"\x60" + bytes(0x2B) + bytes([0x01, 0x60])).ljust(256, b"\0"), None),
    ],
)  # fmt: skip
def test_the_hosts_driver_is_in_the_vgpus_configuration_space(config: bytes, versions: tuple[str, str] | None) -> None:
    assert program.find_host_driver(config) == versions


def test_a_report_has_what_the_guest_knows(tmp_path: Path, guest: program.Guest, programs: Programs) -> None:
    put(tmp_path, "sys/bus/pci/devices/0000:06:00.0/config", config_space(vendor=b"\x86\x80"))
    put(tmp_path, "sys/bus/pci/devices/0000:07:00.0/config", config_space())
    put(tmp_path, "sys/module/nvidia/version", "570.211\n")
    put(tmp_path, "proc/12/comm", "nvidia-cuda-mps\n")
    programs.log_on("bob", since=int((time.time() - 600) * 1e6))
    programs.log_on("alice")
    programs.log_on("alice", since=int((time.time() - 60) * 1e6))
    programs.log_on("gdm", kind="greeter")
    programs.log_on("carol", state="closing")
    report = guest.report()
    bob = report["users"][1].pop("idle_seconds")
    assert 600 <= bob < 630
    assert report == {
        "type": "report",
        "helper": program.VERSION,
        "users": [{"user": "alice", "state": "active", "idle_seconds": 0}, {"user": "bob", "state": "active"}],
        "driver": "570.211",
        "host_driver": "580.178",
        "host_branch": "r580_178",
        "mps": True,
    }


def test_a_guest_without_anything_says_so(guest: program.Guest, programs: Programs) -> None:
    assert guest.report()["users"] == []
    programs.failing.add("loginctl")
    guest._slow = {}
    report = guest.report()
    assert (report["users"], report["driver"], report["host_driver"], report["mps"]) == (None, None, None, False)
    assert isinstance(parse_line(json.dumps(report).encode(), 1.0), GuestReport)


def test_sessions_are_read_again_after_a_change(tmp_path: Path, guest: program.Guest, programs: Programs) -> None:
    sessions = tmp_path / "run/systemd/sessions"
    sessions.mkdir(parents=True)
    assert guest.report()["users"] == []
    programs.log_on("alice")
    assert guest.report()["users"] == [], "nothing has changed there"
    (sessions / "1").touch()
    assert [user["user"] for user in guest.report()["users"]] == ["alice"]


def ask(guest: program.Guest, verb: str, **values: object) -> str | None:
    """Return why a request was refused; None: it was carried out."""
    answer = guest.answer({"verb": verb, "id": 7, **values})
    parsed = parse_line(json.dumps(answer).encode(), 1.0)
    assert isinstance(parsed, GuestAnswer)
    assert parsed.id == 7
    return parsed.error


def test_a_message_goes_to_terminals_and_desktops(tmp_path: Path, guest: program.Guest, programs: Programs) -> None:
    assert ask(guest, "message", text="hello") == "nobody is logged on"
    programs.log_on("root")
    put(tmp_path, "run/user/0/bus", "")
    assert ask(guest, "message", text="save\x1b[31m\nnow") is None
    bus = f"DBUS_SESSION_BUS_ADDRESS=unix:path={tmp_path}/run/user/0/bus"
    assert (programs.ran[0], programs.stdin) == (("wall",), "save [31m now\n")
    assert programs.ran[1][:10] == ("setsid", "--fork", "timeout", "5", "runuser", "-u", "root", "--", "env", bus)
    assert programs.ran[1][-1] == "save [31m now"
    programs.failing.add("setsid")
    assert ask(guest, "message", text="--help") is None, "the terminals have it"
    programs.failing.add("wall")
    assert ask(guest, "message", text="x") == "wall failed: no"
    assert ask(guest, "message", text=" ") == "a text is missing"
    programs.failing.add("loginctl")
    assert ask(guest, "message", text="x") == "systemd-logind does not say who is logged on"


def test_a_token_comes_in_parts_and_replaces_others(tmp_path: Path, guest: program.Guest, programs: Programs) -> None:
    put(tmp_path, "etc/nvidia/ClientConfigToken/old.tok", "old")
    put(tmp_path, "etc/nvidia/ClientConfigToken/.client_configuration_token_vgpuctl.tok.vgpuctl", "half")
    folder = tmp_path / "etc/nvidia/ClientConfigToken"
    assert ask(guest, "put-token", part=1, parts=2, data="abc.", sha256=DIGEST) is None
    assert (folder / "old.tok").exists()
    assert ask(guest, "put-token", part=2, parts=2, data="def", sha256=DIGEST) is None
    (file,) = folder.iterdir()
    assert (file.name, file.read_text()) == ("client_configuration_token_vgpuctl.tok", "abc.def\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert programs.ran == [("systemctl", "--no-block", "try-restart", "nvidia-gridd.service")]


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"part": 2, "parts": 2, "data": "abc"}, "part 2 of the token came in the wrong order"),
        ({"part": 1, "parts": 1, "data": "a b"}, "this is no license token"),
        ({"part": 1, "parts": 1, "data": "a" * 70000}, "this is no license token"),
        ({"part": 1, "parts": 1, "data": "abc", "sha256": DIGEST}, "the token has another sha256 than it should"),
        ({"part": 0, "parts": 1, "data": "a"}, "put-token needs part, parts and data"),
        ({"part": 1, "parts": 1}, "put-token needs part, parts and data"),
    ],
)
def test_what_is_no_token_is_refused(
    guest: program.Guest, tmp_path: Path, values: dict[str, object], error: str
) -> None:
    assert ask(guest, "put-token", **values) == error
    assert not (tmp_path / "etc").exists()


def test_one_user_may_log_on(tmp_path: Path, guest: program.Guest, programs: Programs) -> None:
    put(tmp_path, "etc/pam.d/sshd", "# account required pam_access.so\n")
    assert "pam_access.so" in (ask(guest, "allow-logon", user="alice") or "")
    put(tmp_path, "etc/pam.d/sshd", "account required pam_access.so accessfile=/etc/x\nauth required pam_access.so\n")
    put(tmp_path, "etc/pam.d/crond", "account required pam_access.so\n")
    assert "pam_access.so" in (ask(guest, "allow-logon", user="alice") or "")
    put(tmp_path, "etc/pam.d/login", "account include common\n")
    put(tmp_path, "etc/pam.d/common", "@include deeper\n")
    put(tmp_path, "etc/pam.d/deeper", "@include common\n-account [default=bad] /lib/security/pam_access.so\n")
    module = "usr/lib/x86_64-linux-gnu/security/pam_access.so"
    assert "older Linux-PAM" in (ask(guest, "allow-logon", user="alice") or "")
    put(tmp_path, module, "\0/etc/security/access.conf\0")
    assert "older Linux-PAM" in (ask(guest, "allow-logon", user="alice") or "")
    assert not (tmp_path / "etc/security").exists()
    put(tmp_path, module, "\0/etc/security/access.conf\0/etc/security/access.d/*.conf\0")
    assert ask(guest, "allow-logon", user="CORP\\alice") is None
    programs.groups = "alice:x:7:alice\n"
    assert ask(guest, "allow-logon", user="alice") is None
    programs.groups = "alice:x:7:alice,bob\n"
    assert ask(guest, "allow-logon", user="alice") == "alice is also a group, with the members bob"
    assert "for a host" in (ask(guest, "allow-logon", user="alice@corp.example") or "")
    programs.failing.add("getent")
    assert ask(guest, "allow-logon", user="users") == "this guest has no user users"
    programs.failing.clear()
    programs.groups = ""
    assert ask(guest, "allow-logon", user="CORP\\alice") is None
    access = tmp_path / "etc/security/access.d/90-vgpuctl.conf"
    rules = (tmp_path / "etc/security/access.d/90-vgpuctl.conf").read_text().splitlines()[1:]
    assert rules == ["+:root:ALL", "+:(vgpuctl-logon):ALL", *program.OTHER_RULES, "+:CORP\\alice:ALL", "-:ALL:ALL"]
    assert ask(guest, "allow-logon", user=None) is None
    assert not access.exists()
    for user in ("a b", "alice:ALL", "", "-x", "alice\n+:bob:ALL", "ALL", "all", "Local", 7):
        assert ask(guest, "allow-logon", user=user) == "allow-logon needs the name of a user"


def put_access(root: Path) -> None:
    """Turn pam_access on in a guest."""
    put(root, "etc/pam.d/sshd", "account required pam_access.so\n")
    put(root, "lib64/security/pam_access.so", "/etc/security/access.d/*.conf")


ACCESS = "etc/security/access.d/90-vgpuctl.conf"
ONCE = "var/lib/vgpuctl-guest/one-time-password"
PASSWORD = "abcd2-efgh3-jkmn4-pqrs5"


def test_nobody_may_log_on_but_administrators(tmp_path: Path, guest: program.Guest) -> None:
    assert "pam_access.so" in (ask(guest, "allow-logon", nobody=True) or "")
    put_access(tmp_path)
    assert ask(guest, "allow-logon", nobody=True) is None
    rules = (tmp_path / ACCESS).read_text().splitlines()[1:]
    assert rules == ["+:root:ALL", "+:(vgpuctl-logon):ALL", *program.OTHER_RULES, "-:ALL:ALL"]
    for values in ({}, {"nobody": 1}, {"nobody": "true"}, {"nobody": False}, {"user": 7, "nobody": True}):
        assert ask(guest, "allow-logon", **values) == "allow-logon needs the name of a user"
    assert (tmp_path / ACCESS).read_text().splitlines()[1:] == rules


def test_an_account_is_made_and_let_in(tmp_path: Path, guest: program.Guest, programs: Programs) -> None:
    programs.users = {"root", "ubuntu"}
    put(tmp_path, "bin/bash", "")
    assert "pam_access.so" in (ask(guest, "make-account", user="ada") or "")
    assert programs.users == {"root", "ubuntu"}
    put_access(tmp_path)
    assert ask(guest, "make-account", user="ada") is None
    made = [words for words in programs.ran if words[0] == "useradd"]
    assert made == [("useradd", "--no-user-group", "--create-home", "--shell", "/bin/bash", "ada")]
    assert "+:ada:ALL" in (tmp_path / ACCESS).read_text()
    assert ask(guest, "make-account", user="ada") is None, "again"
    assert [words for words in programs.ran if words[0] == "useradd"] == made
    for user in ("root", "ubuntu"):
        assert ask(guest, "make-account", user=user) == f"this guest has an account {user} of its own"
    assert "+:ada:ALL" in (tmp_path / ACCESS).read_text()


@pytest.mark.parametrize(
    "user",
    ["a b", "-x", "--help", "ALL", "all", "Ada", "CORP\\ada", "ada@corp", "a" * 33, "a" * 300, "", "a'b", 'a"b', "a\n",
     "a:b", "a\0", "1a", "../a", "$(id)", "\N{LATIN SMALL LETTER E WITH ACUTE}ve", None, 7, ["ada"]],
)  # fmt: skip
def test_what_is_no_account_is_refused(tmp_path: Path, guest: program.Guest, programs: Programs, user: object) -> None:
    put_access(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert ask(guest, "make-account", user=user) == "make-account needs the name of an account"
    assert "account that make-account made" in (ask(guest, "set-password", user=user, password=PASSWORD) or "")
    assert (sorted(tmp_path.rglob("*")), programs.ran) == (before, [])


def test_a_one_time_password_must_be_changed(tmp_path: Path, guest: program.Guest, programs: Programs) -> None:
    put_access(tmp_path)
    programs.users = {"root"}
    error = "set-password needs the name of the account that make-account made"
    assert ask(guest, "set-password", user="root", password=PASSWORD) == error
    assert ask(guest, "make-account", user="ada") is None
    for user in ("root", "bob"):
        assert ask(guest, "set-password", user=user, password=PASSWORD) == error
    programs.ran.clear()
    assert ask(guest, "set-password", user="ada", password=PASSWORD) is None
    assert [words for words in programs.ran if words[0] != "getent"] == [
        ("chpasswd",),
        ("chage", "--lastday", "0", "ada"),
    ]
    assert programs.stdin == f"ada:{PASSWORD}\n"
    assert not [one for one in tmp_path.rglob("*") if one.is_file() and PASSWORD in one.read_text()]
    for password in ("short", "a" * 65, "abcd-efgh-jkmn:root", "abcdefghjkmn\nroot:x", "-abcdefghjkmn", 7, None, ""):
        text = ask(guest, "set-password", user="ada", password=password)
        assert text == "set-password needs a password of 12 to 64 letters and digits"
    programs.failing.add("chpasswd")
    programs.failed = f"bad password {PASSWORD}"
    assert ask(guest, "set-password", user="ada", password=PASSWORD) == "chpasswd failed: bad password ***"
    programs.users.discard("ada")
    assert ask(guest, "set-password", user="ada", password=PASSWORD) == error


def test_where_xrdp_is_a_password_is_locked_after_its_log_on(
    tmp_path: Path, guest: program.Guest, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_access(tmp_path)
    put(tmp_path, "etc/pam.d/xrdp-sesman", "")
    programs.users = set()
    ask(guest, "make-account", user="ada")
    programs.log_on("ada")

    def locks() -> list[tuple[str, ...]]:
        programs.ran.clear()
        guest._slow = {}
        guest.report()
        return [words for words in programs.ran if words[0] == "usermod"]

    locked = [("usermod", "--lock", "ada")]
    assert ask(guest, "set-password", user="ada", password=PASSWORD) is None
    assert "chage" not in {words[0] for words in programs.ran}
    assert stat.S_IMODE((tmp_path / ONCE).stat().st_mode) == 0o600
    programs.log_on("bob")
    assert locks() == [], "the session that he has, and another's, are no log-on with it"
    programs.log_on("ada")
    programs.failing.add("usermod")
    assert (locks(), (tmp_path / ONCE).exists()) == ([], True)
    programs.failing.clear()
    assert (locks(), (tmp_path / ONCE).exists()) == (locked, False)
    assert locks() == []
    ask(guest, "set-password", user="ada", password=PASSWORD)
    assert locks() == []
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + program.ONCE_SECONDS + 1)
    assert locks() == locked
    for damaged in ("", "[]", '{"user": "ada"}', '{"user": "ada", "sessions": 7, "time": "x"}'):
        put(tmp_path, ONCE, damaged)
        assert locks() == locked, damaged


def test_a_shutdown_is_announced_and_cancelled(guest: program.Guest, programs: Programs) -> None:
    assert ask(guest, "shutdown-in", minutes=10, text="New image") is None
    assert ask(guest, "shutdown-in", minutes=0) is None
    assert ask(guest, "shutdown-in", minutes=None) is None
    assert programs.ran == [
        ("shutdown", "-h", "--", "+10", "New image"), ("shutdown", "-h", "--", "+0"), ("shutdown", "-c"),
    ]  # fmt: skip
    for minutes in (-1, 1441, True, "5", 1.5):
        assert ask(guest, "shutdown-in", minutes=minutes) == "shutdown-in needs a number of minutes, 0 to 1440"


def test_other_requests_are_refused(guest: program.Guest) -> None:
    assert "has no such request" in (ask(guest, "run", command="id") or "")
    assert "has no such request" in (ask(guest, "\x1b[31m") or "")


def test_it_reports_when_asked_and_answers(tmp_path: Path, guest: program.Guest, programs: Programs) -> None:
    peer = Peer()
    peer.end.sendall(b'no json\n[1]\n{"verb": "shutdown-in", "id": 3, "minutes": 1}\n{"verb":')
    is_over: list[bool] = []
    serving = threading.Thread(target=program.serve, args=(peer.port, guest, lambda: bool(is_over)))
    serving.start()
    assert isinstance(parse_line(peer.line().rstrip(b"\n"), 1.0), GuestReport)
    assert parse_line(peer.line().rstrip(b"\n"), 1.0) == GuestAnswer(3, None)
    peer.end.sendall(b' "report"}\n')
    assert isinstance(parse_line(peer.line().rstrip(b"\n"), 1.0), GuestReport)
    is_over.append(True)
    peer.end.sendall(b"\n")
    serving.join(30)
    assert not serving.is_alive()
    assert programs.ran == [("shutdown", "-h", "--", "+1")]


def test_a_line_is_never_too_long(guest: program.Guest, programs: Programs) -> None:
    for number in range(100):
        programs.log_on("\N{SNOWMAN}" * 60 + f"{number:03}")
    peer = Peer()
    assert peer.port.send(guest.report())
    line = peer.line()
    assert len(line) <= MAX_LINE_BYTES
    report = parse_line(line.rstrip(b"\n"), 1.0)
    assert isinstance(report, GuestReport)
    assert report.users


def test_a_host_that_sends_too_much_is_not_read(guest: program.Guest) -> None:
    peer = Peer()
    peer.end.setblocking(False)
    requests = []
    data = b'{"verb": "' + b"x" * 10000 + b'"}\n{"verb": "report"}\n'
    while data:
        data = data[peer.end.send(data[:3000]) :]
        requests += peer.port.wait(1)
    while not requests:
        requests += peer.port.wait(1)
    assert requests == [{"verb": "report"}]


def test_before_an_image_is_made_tokens_and_their_copies_go(tmp_path: Path, programs: Programs) -> None:
    kept = (
        "etc/nvidia/gridd.conf",
        "var/lib/vgpuctl-guest/driver",
        "etc/rancher/k3s/config.yaml.d/60-vgpuctl-gpu.yaml",
    )
    secret = (
        "etc/nvidia/ClientConfigToken/client_configuration_token_vgpuctl.tok",
        "etc/nvidia/ClientConfigToken/client_configuration_token_01.tok",
        "etc/rancher/k3s/config.yaml.d/50-vgpuctl-join.yaml",
        "etc/security/access.d/90-vgpuctl.conf",
        "etc/vgpuctl/join.yaml",
        "var/lib/cloud/instances/i-1/boothooks/part-001",
        "var/lib/cloud/instances/i-1/obj.pkl",
        "var/lib/cloud/instances/i-1/scripts/deep/part-001",
        "var/lib/cloud/instances/i-1/user-data.txt.i",
        "var/lib/cloud/instances/i-1/vendor-data.txt",
        "var/lib/cloud/seed/nocloud/user-data",
    )
    for path in (*kept, *secret):
        put(tmp_path, path, "c2VjcmV0")
    assert program.clean(tmp_path, programs) == sorted(str(tmp_path / path) for path in secret)
    assert {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()} == set(kept)
    assert programs.ran == [("cloud-init", "clean", "--logs", "--seed"), ("fstrim", "--all", "--verbose")]
    assert program.clean(tmp_path, programs) == []


def test_a_guest_without_cloud_init_is_cleaned_too(
    tmp_path: Path, programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    programs.failing.add("cloud-init")
    put(tmp_path, "etc/vgpuctl/join.yaml", "x")
    assert len(program.clean(tmp_path, programs)) == 1
    assert programs.ran[-1][0] == "fstrim"
    assert "cloud-init was not cleaned" in capsys.readouterr().err
