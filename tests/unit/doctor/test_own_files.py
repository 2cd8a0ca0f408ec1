# SPDX-License-Identifier: Apache-2.0
"""vgpuctl's own files, and the machine id."""

from __future__ import annotations

import pytest

from tests.unit.doctor.check_results import finding_text, run_check
from tests.values import MACHINE, a100, snapshot
from vgpuctl.doctor.check import FileContent, Verdict
from vgpuctl.doctor.own_files import HOST_FILE, MACHINE_ID, RUN_DIRECTORY
from vgpuctl.model.gpu import VgpuType
from vgpuctl.model.port_values import FilePermissions
from vgpuctl.value import replace


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


def test_a_profile_that_no_gpu_here_can_ever_offer_is_named_with_its_line():
    text = "version: 1\ngpus:\n  all:\n    profiles: [A100-4C, A100-44C]\n  T4: {profiles: [T4-1Q]}\n"
    card = replace(a100(), types=(VgpuType("nvidia-468", "GRID A100-4C", "A100-4C", 4096, max_per_gpu=10),))
    result = run_check("host-file", snapshot(card), files={HOST_FILE: text})
    assert result.verdict is Verdict.WARN
    assert result.evidence == (
        f"{HOST_FILE}:4: gpus.all: {card.address} can never offer the profile A100-44C (did you mean A100-4C?)",
    )
    unknown_types = replace(card, types=(), model="10de:20f1", vendor_id="10de", device_id="20f1")
    assert run_check("host-file", snapshot(unknown_types), files={HOST_FILE: text}).verdict is Verdict.OK
