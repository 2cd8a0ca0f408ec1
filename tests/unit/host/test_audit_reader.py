# SPDX-License-Identifier: Apache-2.0
"""Entries of systemd's journal, as `journalctl -o json` prints them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vgpuctl.errors import HostCannot
from vgpuctl.host.logs import journal_arguments, read_journal
from vgpuctl.model.port_values import AuditEntries, AuditQuery

ENTRY = {
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
    (entry,) = read(tmp_path, ENTRY).entries
    assert (entry.vms, entry.gpus, entry.user, entry.uid) == (("a", "b"), ("0000:3b:00.0",), "ada", 0)
    assert (entry.time, entry.duration_seconds, entry.changed, entry.message) == (1795614622.039719, 1.25, True, None)


def test_only_root_is_believed_what_sudo_said(tmp_path: Path) -> None:
    no_login = {key: value for key, value in ENTRY.items() if key != "_AUDIT_LOGINUID"}
    by_sudo = {**no_login, "VGPUCTL_SUDO_USER": "bob"}
    forged = {**by_sudo, "_UID": "1001", "VGPUCTL_UID": "0"}
    unset = {**ENTRY, "_AUDIT_LOGINUID": str(2**32 - 1)}
    users = [entry.user for entry in read(tmp_path, no_login, by_sudo, forged, unset).entries]
    assert users == ["root", "bob", "eve", "root"]


def test_odd_values_do_not_end_the_reading(tmp_path: Path) -> None:
    odd = {**ENTRY, "VGPUCTL_ERROR": list(b"\xff\x1b[31m"), "VGPUCTL_LEFT": "one\ntwo", "VGPUCTL_VM": [list(b"x"), 7]}
    odd |= {"VGPUCTL_EXIT_STATUS": "many", "VGPUCTL_DURATION_SECONDS": "[]", "VGPUCTL_GPU": None}
    no_time = {key: value for key, value in ENTRY.items() if key != "__REALTIME_TIMESTAMP"}
    (entry,) = read(tmp_path, "", "[]", "{", no_time, odd).entries
    assert (entry.message, entry.left, entry.vms) == ("\N{REPLACEMENT CHARACTER}\x1b[31m", ("one", "two"), ("x",))
    assert (entry.exit_status, entry.duration_seconds, entry.gpus) == (0, 0.0, ())


def test_a_user_who_sees_only_his_own_entries_is_told(tmp_path: Path) -> None:
    hint = "Hint: You are currently not seeing messages from other users and the system."
    warning = "you see your own entries only; root sees those of all users"
    assert read(tmp_path, ENTRY, stderr=hint).warnings == (warning,)
    assert read(tmp_path, ENTRY).warnings == ()


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
