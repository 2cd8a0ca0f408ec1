# SPDX-License-Identifier: Apache-2.0
"""Lines of the kernel's and the services' logs, and entries of vgpuctl's own, as `journalctl -o json` prints them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from vgpuctl.errors import HostCannot
from vgpuctl.host.logs import (
    MAX_FIELD_BYTES,
    MAX_VMS,
    HostKernelLog,
    JournalSocket,
    encode_entry,
    journal_arguments,
    read_journal,
)
from vgpuctl.model.port_values import AuditEntries, AuditEntry, AuditQuery
from vgpuctl.value import replace

ECHO = ["/bin/echo", "NVRM: one\nother\nNVRM: two"]
NOTHING, FAILS = ["/bin/true"], ["/bin/false"]


def test_only_lines_with_the_text_are_returned():
    assert HostKernelLog([ECHO]).kernel_lines("NVRM") == ("NVRM: one", "NVRM: two")
    assert HostKernelLog([ECHO]).kernel_lines("one", "other") == ("NVRM: one", "other")


def test_a_command_that_is_missing_or_may_not_see_it_is_passed_over():
    assert HostKernelLog([["/nonexistent"], ["/bin/false"], ECHO]).kernel_lines("two") == ("NVRM: two",)
    assert HostKernelLog([NOTHING, ECHO]).kernel_lines("two") == ("NVRM: two",)


def test_an_unavailable_log_is_not_empty():
    assert HostKernelLog([FAILS]).kernel_lines("NVRM") is None
    assert HostKernelLog([NOTHING]).kernel_lines("NVRM") is None, "a kernel without a line there is none"
    assert HostKernelLog(services=[FAILS]).service_lines("nvidia-vgpud") is None
    assert HostKernelLog(services=[]).service_lines("nvidia-vgpud") is None


def test_service_lines_come_by_unit_and_may_be_empty():
    assert HostKernelLog(services=[["/bin/echo", "said\n"]]).service_lines("x") == ("said", " -u x.service")
    assert HostKernelLog(services=[NOTHING]).service_lines("x") == ()


def test_this_hosts_own_log_is_text_or_nothing():
    assert all("x" in line for line in HostKernelLog().kernel_lines("x") or ())
    HostKernelLog().service_lines("nvidia-vgpud")


ENTRY = AuditEntry(
    command="create-vm",
    arguments="vgpuctl create-vm vdi-001 --profile A100-4C",
    host="local",
    uid=0,
    login_uid=1000,
    sudo_user="ada",
    result="ok",
    exit_status=0,
    changed=True,
    duration_seconds=1.25,
    plan=("claim it", "make it"),
)


def decoded(datagram: bytes) -> dict[str, str]:
    """Read a datagram: NAME=value, or NAME, a 64 bit length and the value."""
    result = {}
    while datagram:
        line, _, rest = datagram.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            length = int.from_bytes(rest[:8], "little")
            value, end, rest = rest[8 : 8 + length], rest[8 + length : 9 + length], rest[9 + length :]
            assert end == b"\n"
        result[name.decode()] = value.decode()
        datagram = rest
    return result


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(tmp_path / "socket"))
        bound.settimeout(10)
        yield bound


def test_one_datagram_with_structured_fields(listener: socket.socket, tmp_path: Path) -> None:
    JournalSocket(str(tmp_path / "socket")).write_entry(ENTRY)
    got = decoded(listener.recv(1 << 20))
    assert got["MESSAGE"] == "ada: vgpuctl create-vm vdi-001 --profile A100-4C: ok"
    assert got["SYSLOG_IDENTIFIER"] == "vgpuctl"
    assert got["PRIORITY"] == "5"
    assert got["VGPUCTL_PLAN"] == "claim it\nmake it"
    assert (got["VGPUCTL_CHANGED"], got["VGPUCTL_DURATION_SECONDS"], got["VGPUCTL_LOGIN_UID"]) == ("1", "1.250", "1000")
    assert "VGPUCTL_LEFT" not in got


def test_a_failure_is_a_warning_with_its_reason() -> None:
    failed = replace(ENTRY, result="no-capacity", exit_status=4, changed=False, message="no room", sudo_user=None)
    got = decoded(encode_entry(failed))
    assert got["PRIORITY"] == "4"
    assert (got["VGPUCTL_RESULT"], got["VGPUCTL_EXIT_STATUS"], got["VGPUCTL_ERROR"]) == ("no-capacity", "4", "no room")
    assert got["MESSAGE"].startswith("uid 0: ")


def test_long_fields_are_cut_and_say_so(listener: socket.socket, tmp_path: Path) -> None:
    long = tuple(f"vdi-{n:04d}: make the disk \N{LATIN SMALL LETTER U WITH DIAERESIS}" for n in range(20_000))
    huge = replace(ENTRY, arguments="x" * 4000, plan=long, undone=long, left=long, message="y" * 100_000)
    JournalSocket(str(tmp_path / "socket")).write_entry(huge)
    got = decoded(listener.recv(1 << 20))
    assert got["VGPUCTL_PLAN"].endswith(" bytes left out]")
    assert len(got["VGPUCTL_PLAN"].encode()) < MAX_FIELD_BYTES + 100
    assert got["VGPUCTL_LEFT"].startswith("vdi-0000: make the disk")


def test_a_value_cannot_add_a_field() -> None:
    got = decoded(encode_entry(replace(ENTRY, message="line\nVGPUCTL_UID=1", plan=("a\nVGPUCTL_UID=2",))))
    assert got["VGPUCTL_UID"] == "0"
    assert got["VGPUCTL_PLAN"] == "a VGPUCTL_UID=2"


def test_each_vm_and_gpu_has_a_field_of_its_own(listener: socket.socket, tmp_path: Path) -> None:
    vms = tuple(f"vdi-{n:04d}" for n in range(1000))
    JournalSocket(str(tmp_path / "socket")).write_entry(replace(ENTRY, vms=vms, gpus=("0000:3b:00.0", "0000:5e:00.0")))
    lines = listener.recv(1 << 20).splitlines()
    assert [line for line in lines if line.startswith(b"VGPUCTL_GPU=")] == [
        b"VGPUCTL_GPU=0000:3b:00.0", b"VGPUCTL_GPU=0000:5e:00.0",
    ]  # fmt: skip
    assert sum(line.startswith(b"VGPUCTL_VM=") for line in lines) == MAX_VMS
    assert len(lines) < 1024, "journald refuses an entry with more fields"


def test_long_names_do_not_make_the_datagram_too_long(listener: socket.socket, tmp_path: Path) -> None:
    long = replace(ENTRY, vms=tuple(f"{n:0200d}" for n in range(960)), plan=("x" * 100_000,), left=("y" * 100_000,))
    JournalSocket(str(tmp_path / "socket")).write_entry(long)
    assert listener.recv(1 << 20).count(b"VGPUCTL_VM=") == (60 << 10) // 200


def test_nobody_listening_is_no_error(tmp_path: Path) -> None:
    JournalSocket(str(tmp_path / "nothing")).write_entry(ENTRY)
    (tmp_path / "file").write_text("no socket")
    JournalSocket(str(tmp_path / "file")).write_entry(ENTRY)


def test_a_journal_that_reads_nothing_is_not_waited_for(listener: socket.socket, tmp_path: Path) -> None:
    journal = JournalSocket(str(tmp_path / "socket"))
    for _ in range(2000):
        journal.write_entry(ENTRY)
    assert decoded(listener.recv(1 << 20))["VGPUCTL_HOST"] == "local"


AUDITED = {
    "__REALTIME_TIMESTAMP": "1795614622039719", "_UID": "0", "_AUDIT_LOGINUID": "1000", "VGPUCTL_COMMAND": "create-vm",
    "VGPUCTL_ARGUMENTS": "vgpuctl create-vm a", "VGPUCTL_RESULT": "ok", "VGPUCTL_EXIT_STATUS": "0",
    "VGPUCTL_CHANGED": "1", "VGPUCTL_DURATION_SECONDS": "1.250", "VGPUCTL_VM": ["a", "b"],
    "VGPUCTL_GPU": "0000:3b:00.0",
}  # fmt: skip
NAMES = {0: "root", 1000: "ada", 1001: "eve"}


def read(tmp_path: Path, *lines: object, status: int = 0, stderr: str = "") -> AuditEntries:
    """Read what a program prints that stands for journalctl."""
    (tmp_path / "out").write_text("".join(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in lines))
    script = f"cat {tmp_path / 'out'}; echo '{stderr}' >&2; exit {status}"
    return read_journal("id", AuditQuery(10), ["/bin/sh", "-c", script], lambda uid: NAMES[uid])


def test_an_entry_has_its_vms_and_gpus_and_who_it_was(tmp_path: Path) -> None:
    (entry,) = read(tmp_path, AUDITED).entries
    assert (entry.vms, entry.gpus, entry.user, entry.uid) == (("a", "b"), ("0000:3b:00.0",), "ada", 0)
    assert (entry.time, entry.duration_seconds, entry.changed, entry.message) == (1795614622.039719, 1.25, True, None)


def test_only_root_is_believed_what_sudo_said(tmp_path: Path) -> None:
    no_login = {key: value for key, value in AUDITED.items() if key != "_AUDIT_LOGINUID"}
    by_sudo = {**no_login, "VGPUCTL_SUDO_USER": "bob"}
    forged = {**by_sudo, "_UID": "1001", "VGPUCTL_UID": "0"}
    unset = {**AUDITED, "_AUDIT_LOGINUID": str(2**32 - 1)}
    users = [entry.user for entry in read(tmp_path, no_login, by_sudo, forged, unset).entries]
    assert users == ["root", "bob", "eve", "root"]


def test_only_root_is_believed_for_whom_the_agent_worked(tmp_path: Path) -> None:
    agents = {**AUDITED, "_AUDIT_LOGINUID": None, "VGPUCTL_ACCOUNT": "bob", "VGPUCTL_UID": "1002"}
    agents |= {"VGPUCTL_VIA": "agent", "VGPUCTL_ADDRESS": "10.0.0.7", "VGPUCTL_ON_BEHALF_OF": "ann"}
    forged = {**agents, "_UID": "1001"}
    mine, eves = read(tmp_path, agents, forged).entries
    assert (mine.user, mine.uid, mine.account, mine.login_uid) == ("bob", 1002, "bob", None)
    assert (mine.via, mine.address, mine.on_behalf_of) == ("agent", "10.0.0.7", "ann")
    assert (eves.user, eves.uid, eves.account) == ("eve", 1001, None)


def test_an_entry_of_the_agent_names_its_user(tmp_path: Path) -> None:
    entry = replace(ENTRY, uid=1002, sudo_user=None, account="bob", via="agent", on_behalf_of="ann")
    fields = decoded(encode_entry(entry))
    assert fields["MESSAGE"].startswith("bob: ")
    assert (fields["VGPUCTL_UID"], fields["VGPUCTL_ACCOUNT"], fields["VGPUCTL_ON_BEHALF_OF"]) == ("1002", "bob", "ann")
    assert "VGPUCTL_ADDRESS" not in fields


def test_odd_values_do_not_end_the_reading(tmp_path: Path) -> None:
    odd = {
        **AUDITED,
        "VGPUCTL_ERROR": list(b"\xff\x1b[31m"),
        "VGPUCTL_LEFT": "one\ntwo",
        "VGPUCTL_VM": [list(b"x"), 7],
    }
    odd |= {"VGPUCTL_EXIT_STATUS": "many", "VGPUCTL_DURATION_SECONDS": "[]", "VGPUCTL_GPU": None}
    no_time = {key: value for key, value in AUDITED.items() if key != "__REALTIME_TIMESTAMP"}
    (entry,) = read(tmp_path, "", "[]", "{", no_time, odd).entries
    assert (entry.message, entry.left, entry.vms) == ("\N{REPLACEMENT CHARACTER}\x1b[31m", ("one", "two"), ("x",))
    assert (entry.exit_status, entry.duration_seconds, entry.gpus) == (0, 0.0, ())


def test_a_user_who_sees_only_his_own_entries_is_told(tmp_path: Path) -> None:
    hint = "Hint: You are currently not seeing messages from other users and the system."
    warning = "you see your own entries only; root sees those of all users"
    assert read(tmp_path, AUDITED, stderr=hint).warnings == (warning,)
    assert read(tmp_path, AUDITED).warnings == ()


def test_what_journalctl_says_besides_is_passed_on(tmp_path: Path) -> None:
    log = read(tmp_path, stderr="No journal files were found.")
    assert (log.entries, log.warnings) == ((), ("journalctl: No journal files were found.",))


def test_a_journal_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HostCannot, match="the journal cannot be read: no journal files") as caught:
        read(tmp_path, status=1, stderr="no journal files")
    assert caught.value.facts["check"] == "journal"
    with pytest.raises(HostCannot, match="cannot be read"):
        read_journal("id", AuditQuery(10), ["/nonexistent/journalctl"])


def test_the_journal_itself_looks_for_vm_gpu_time_and_failures() -> None:
    plain = journal_arguments("id", AuditQuery(50))
    assert plain[:6] == ["-o", "json", "--all", "--no-pager", "-n", "50"]
    assert plain[-2:] == ["MESSAGE_ID=id", "SYSLOG_IDENTIFIER=vgpuctl"]
    full = journal_arguments("id", AuditQuery(5, vm="a b", gpu="0000:3b:00.0", since=1.9, failed=True))
    assert full[-6:] == [
        "--since=@1", "MESSAGE_ID=id", "SYSLOG_IDENTIFIER=vgpuctl", "VGPUCTL_VM=a b", "VGPUCTL_GPU=0000:3b:00.0",
        "PRIORITY=4",
    ]  # fmt: skip
