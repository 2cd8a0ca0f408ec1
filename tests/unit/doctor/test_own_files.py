# SPDX-License-Identifier: Apache-2.0
"""vgpuctl's own files, and the machine id."""

from __future__ import annotations

import pytest

from tests.unit.doctor.looks import judge, said
from tests.values import MACHINE
from vgpuctl.doctor.check import Text, Verdict
from vgpuctl.doctor.own_files import HOST_FILE, MACHINE_ID, RUN
from vgpuctl.model.records import FilePermissions


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
        ("# version: 1\n", 0o644, Verdict.WARN),
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
