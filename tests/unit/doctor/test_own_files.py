# SPDX-License-Identifier: Apache-2.0
"""vgpuctl's own files, and the machine id."""

from __future__ import annotations

import pytest

from tests.unit.doctor.looks import judge, said
from tests.values import MACHINE, a100, snapshot, t4
from vgpuctl.doctor.check import Text, Verdict
from vgpuctl.doctor.own_files import HOST_FILE, MACHINE_ID, RUN
from vgpuctl.model.records import FilePermissions
from vgpuctl.model.wish import PlacementSpec


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        (FilePermissions(0o700, 0, 0), Verdict.OK),
        (FilePermissions(0o755, 0, 0), Verdict.OK),
        (FilePermissions(0o770, 0, 100), Verdict.FAIL),
        (FilePermissions(0o777, 0, 0), Verdict.FAIL),
        (FilePermissions(0o700, 1000, 0), Verdict.FAIL),
    ],
)
def test_nobody_else_writes_claims(seen, verdict):
    found = judge("run-directory", permissions={RUN: seen})
    assert found.verdict is verdict
    assert f"mode {seen.mode:04o}, owner {seen.owner}" in said(found)


def test_a_run_directory_that_is_not_there_is_no_fault():
    assert judge("run-directory").verdict is Verdict.OK
    found = judge("run-directory", permissions={RUN: FilePermissions(0o700, 0, 0)}, closed="Permission denied")
    assert found.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("text", "mode", "verdict"),
    [
        (Text(), 0o644, Verdict.OK),
        ("version: 1\n", 0o644, Verdict.OK),
        ("version: 1\n", 0o666, Verdict.WARN),
        ("# version: 1\n", 0o644, Verdict.FAIL),
        ("version: 1\ngpu: {}\n", 0o644, Verdict.FAIL),
        (Text(problem=f"{HOST_FILE}: Permission denied"), 0o600, Verdict.UNKNOWN),
        (Text(problem=f"{HOST_FILE}: Is a directory"), 0o755, Verdict.FAIL),
    ],
)
def test_the_host_file(text, mode, verdict):
    found = judge("host-file", files={HOST_FILE: text}, permissions={HOST_FILE: FilePermissions(mode, 0, 0)})
    assert found.verdict is verdict


def test_a_host_file_that_is_wrong_is_told_with_its_line():
    found = judge("host-file", files={HOST_FILE: "version: 1\ngpu: {}\n"})
    assert f"{HOST_FILE}:2" in said(found)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (f"{MACHINE}\n", Verdict.OK),
        ("uninitialized\n", Verdict.FAIL),
        ("", Verdict.FAIL),
        (Text(), Verdict.FAIL),
        (Text(problem="Permission denied"), Verdict.UNKNOWN),
    ],
)
def test_the_machine_id(text, verdict):
    assert judge("machine-id", files={MACHINE_ID: text}).verdict is verdict


@pytest.mark.parametrize(
    ("demand", "verdict", "told"),
    [
        ("A100-5C", Verdict.OK, ()),
        ("A100-5D", Verdict.WARN, (f"{HOST_FILE}:3: placement.demand: no GPU here offers 'A100-5D'", "A100-5C")),
        ("A100-7C", Verdict.WARN, ("no GPU here offers 'A100-7C'", "list-profiles")),
        ("GRID A100-7C", Verdict.WARN, (f"{HOST_FILE}:3", "no GPU here offers 'GRID A100-7C'")),
        ("A16-2Q", Verdict.OK, ("no GPU here offers 'A16-2Q'",)),
    ],
)
def test_a_demand_that_no_gpu_offers_is_told_and_is_a_fault_where_it_was_hardly_meant_for_others(demand, verdict, told):
    text = f"version: 1\nplacement:\n  demand: {{A100-4C: 2, {demand}: 1}}\n"
    look = snapshot(a100(), placement=PlacementSpec(demand={"A100-4C": 2, demand: 1}))
    found = judge("demand", look, files={HOST_FILE: text})
    assert found.verdict is verdict
    assert all(part in said(found) for part in told)


def test_nothing_is_said_of_the_demand_while_vfs_are_off_or_where_there_is_none():
    text = "version: 1\nplacement: {demand: {A100-5D: 1}}\n"
    off = snapshot(a100(), t4(backend=None, vfs_total=16), placement=PlacementSpec(demand={"A100-5D": 1}))
    assert judge("demand", off, files={HOST_FILE: text}).verdict is Verdict.OK
    assert judge("demand", snapshot(a100()), files={HOST_FILE: "version: 1\n"}).verdict is Verdict.NOT_APPLICABLE
