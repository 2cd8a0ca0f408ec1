# SPDX-License-Identifier: Apache-2.0
"""vgpuctl's own files, and the machine id."""

from __future__ import annotations

import pytest

from tests.unit.doctor.check_results import finding_text, run_check
from tests.values import MACHINE, a100, snapshot, t4
from vgpuctl.doctor.check import FileContent, Verdict
from vgpuctl.doctor.own_files import HOST_FILE, MACHINE_ID, RUN_DIRECTORY
from vgpuctl.model.port_values import FilePermissions
from vgpuctl.model.request import PlacementSpec


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
    result = run_check("run-directory", permissions={RUN_DIRECTORY: seen})
    assert result.verdict is verdict
    assert f"mode {seen.mode:04o}, owner {seen.owner}" in finding_text(result)


def test_a_missing_run_directory_is_ok():
    assert run_check("run-directory").verdict is Verdict.OK
    result = run_check(
        "run-directory", permissions={RUN_DIRECTORY: FilePermissions(0o700, 0, 0)}, claims_problem="Permission denied"
    )
    assert result.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("text", "mode", "verdict"),
    [
        (FileContent(), 0o644, Verdict.OK),
        ("version: 1\n", 0o644, Verdict.OK),
        ("version: 1\n", 0o666, Verdict.WARN),
        ("# version: 1\n", 0o644, Verdict.FAIL),
        ("version: 1\ngpu: {}\n", 0o644, Verdict.FAIL),
        (FileContent(problem=f"{HOST_FILE}: Permission denied"), 0o600, Verdict.UNKNOWN),
        (FileContent(problem=f"{HOST_FILE}: Is a directory"), 0o755, Verdict.FAIL),
    ],
)
def test_the_host_file(text, mode, verdict):
    result = run_check("host-file", files={HOST_FILE: text}, permissions={HOST_FILE: FilePermissions(mode, 0, 0)})
    assert result.verdict is verdict


def test_an_invalid_host_file_has_its_line():
    result = run_check("host-file", files={HOST_FILE: "version: 1\ngpu: {}\n"})
    assert f"{HOST_FILE}:2" in finding_text(result)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (f"{MACHINE}\n", Verdict.OK),
        ("uninitialized\n", Verdict.FAIL),
        ("", Verdict.FAIL),
        (FileContent(), Verdict.FAIL),
        (FileContent(problem="Permission denied"), Verdict.UNKNOWN),
    ],
)
def test_the_machine_id(text, verdict):
    assert run_check("machine-id", files={MACHINE_ID: text}).verdict is verdict


@pytest.mark.parametrize(
    ("demand", "verdict", "reported"),
    [
        ("A100-5C", Verdict.OK, ()),
        ("A100-5D", Verdict.WARN, (f"{HOST_FILE}:3: placement.demand: no GPU here offers 'A100-5D'", "A100-5C")),
        ("A100-7C", Verdict.WARN, ("no GPU here offers 'A100-7C'", "list-profiles")),
        ("GRID A100-7C", Verdict.WARN, (f"{HOST_FILE}:3", "no GPU here offers 'GRID A100-7C'")),
        ("A16-2Q", Verdict.OK, ("no GPU here offers 'A16-2Q'",)),
    ],
)
def test_an_unoffered_demand_is_named_and_fails_when_a_typo_is_likely(demand, verdict, reported):
    text = f"version: 1\nplacement:\n  demand: {{A100-4C: 2, {demand}: 1}}\n"
    observed = snapshot(a100(), placement_spec=PlacementSpec(demand={"A100-4C": 2, demand: 1}))
    result = run_check("demand", observed, files={HOST_FILE: text})
    assert result.verdict is verdict
    assert all(part in finding_text(result) for part in reported)


def test_demand_is_not_checked_without_vfs_or_demand():
    text = "version: 1\nplacement: {demand: {A100-5D: 1}}\n"
    off = snapshot(a100(), t4(backend=None, vfs_total=16), placement_spec=PlacementSpec(demand={"A100-5D": 1}))
    assert run_check("demand", off, files={HOST_FILE: text}).verdict is Verdict.OK
    assert run_check("demand", snapshot(a100()), files={HOST_FILE: "version: 1\n"}).verdict is Verdict.NOT_APPLICABLE
