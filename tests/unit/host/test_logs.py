# SPDX-License-Identifier: Apache-2.0
"""The kernel log, from the first command that shows it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from vgpuctl.host.logs import MAX_FIELD_BYTES, MAX_VMS, HostKernelLog, JournalSocket, encode_entry
from vgpuctl.model.port_values import AuditEntry
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
