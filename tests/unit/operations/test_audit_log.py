# SPDX-License-Identifier: Apache-2.0
"""The log of commands: the newest entries that match, oldest first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts import open_sim_host
from vgpuctl.errors import HostCannot
from vgpuctl.library.audit import MAX_SEARCHED, read_log
from vgpuctl.model.port_values import AuditEntry
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

ENTRY = AuditEntry("create-vm", "vgpuctl create-vm a", "local", 0, None, None, "ok", 0, True, 0.5)
EVERYTHING = {"lines": 50, "vm": None, "gpu": None, "since": None, "user": None, "failed": False}


@pytest.fixture
def ports(tmp_path: Path) -> Host:
    """A host whose log has three entries."""
    host = open_sim_host(tmp_path)
    ports = replace(host.ports, audit_log=host.sim.audit)
    for number, (user, vms, status) in enumerate((("ada", ("a",), 0), ("bob", ("a", "b"), 4), ("ada", (), 0))):
        gpus = ("0000:3b:00.0",) if vms else ()
        entry = replace(ENTRY, user=user, vms=vms, gpus=gpus, exit_status=status, time=1_800_000_000.0 + number)
        host.sim.audit.write_entry(entry)
    return ports


@pytest.mark.parametrize(
    ("asked", "times"),
    [
        ({}, ["00", "01", "02"]),
        ({"lines": 2}, ["01", "02"]),
        ({"vm": "a"}, ["00", "01"]),
        ({"vm": "a", "lines": 1}, ["01"]),
        ({"gpu": "0000:3b:00.0", "user": "ada"}, ["00"]),
        ({"user": "ada", "lines": 1}, ["02"]),
        ({"since": 1_800_000_001.0}, ["01", "02"]),
        ({"failed": True}, ["01"]),
        ({"vm": "c"}, []),
    ],
)
def test_everything_that_is_given_must_match(ports: Host, asked: dict[str, object], times: list[str]) -> None:
    result = read_log(ports, **{**EVERYTHING, **asked})
    assert [entry.time for entry in result.data] == [f"2027-01-15T08:00:{second}Z" for second in times]
    assert result.warnings == ()


def test_a_search_that_ended_early_says_so(ports: Host) -> None:
    for _ in range(MAX_SEARCHED - 1):
        ports.audit_log.write_entry(replace(ENTRY, user="eve", time=1_800_000_100.0))
    result = read_log(ports, **{**EVERYTHING, "user": "ada"})
    assert [entry.time for entry in result.data] == ["2027-01-15T08:00:02Z"]
    assert result.warnings == (f"only the newest {MAX_SEARCHED} entries were searched for those of ada",)


def test_a_line_that_is_no_entry_is_counted(ports: Host, tmp_path: Path) -> None:
    with (tmp_path / "state/audit.jsonl").open("a") as file:
        file.write("{\n[]\n{}\n")
    result = read_log(ports, **EVERYTHING)
    assert (len(result.data), len(result.warnings)) == (3, 1)
    assert result.warnings[0].startswith("3 lines of ")


def test_a_host_without_a_log_says_so(ports: Host) -> None:
    with pytest.raises(HostCannot, match="it has no log of commands"):
        read_log(replace(ports, audit_log=None), **EVERYTHING)
