# SPDX-License-Identifier: Apache-2.0
"""Stuck writes, leaks, unreadable claims, mdevctl's definitions."""

from __future__ import annotations

import pytest

from tests.unit.doctor.check_results import finding_text, run_check
from tests.values import A4C, ME, a100, snapshot, t4, taken
from vgpuctl.doctor.check import FolderListing, Leftover, Verdict
from vgpuctl.doctor.leftovers import MDEVCTL_DIRECTORY
from vgpuctl.model.vm import HostVgpu, StuckWrite


def test_no_stuck_write():
    assert run_check("stuck-writes", snapshot(a100())).verdict is Verdict.OK


def test_a_stuck_write_fails_with_process_and_file():
    write = StuckWrite(ME, "0000:3b:00.0", "/sys/bus/pci/devices/0000:3b:00.0/sriov_numvfs", "0")
    result = run_check("stuck-writes", snapshot(a100(), stuck_writes=(write,)))
    assert result.verdict is Verdict.FAIL
    assert f"process {ME.pid} waits in the kernel writing {write.path}" in finding_text(result)


@pytest.mark.parametrize("name", ["stuck-writes", "leftovers", "claims"])
def test_files_readable_only_by_root_are_unknown(name):
    result = run_check(name, snapshot(a100()), claims_problem="/run/vgpuctl/claims: Permission denied", leftovers=())
    assert result.verdict is Verdict.UNKNOWN
    assert "Permission denied" in finding_text(result)


def test_nothing_is_left():
    reported = (Leftover("copied-record", "VM x carries a copy", "nothing"), Leftover("stuck-write", "w", "it ends"))
    assert run_check("leftovers", leftovers=()).verdict is Verdict.OK
    assert run_check("leftovers", leftovers=reported).verdict is Verdict.OK


def test_a_leak_is_a_warning_for_reconcile():
    result = run_check(
        "leftovers", leftovers=(Leftover("leaked", "A100-4C on 0000:3b:00.4: its VM is gone", "remove it"),)
    )
    assert (result.verdict, result.fix) == (Verdict.WARN, "vgpuctl reconcile-host")
    assert "leaked: A100-4C on 0000:3b:00.4" in finding_text(result)


def test_other_leftovers_name_another_fix():
    newer = Leftover("unreadable-record", "VM x has a record", "nothing: upgrade vgpuctl")
    assert run_check("leftovers", leftovers=(newer,)).fix == "upgrade vgpuctl"
    leak = Leftover("leaked", "A100-4C on 0000:3b:00.4: its VM is gone", "remove it")
    assert run_check("leftovers", leftovers=(newer, leak)).fix == "vgpuctl reconcile-host; upgrade vgpuctl"


def test_leftovers_are_unknown_without_libvirt():
    assert run_check("leftovers", leftovers_problem="refused").evidence == ("refused",)


def test_unreadable_claims_fail():
    assert run_check("claims", snapshot(a100())).verdict is Verdict.OK
    result = run_check("claims", snapshot(a100(), unreadable_claims=("0000:3b:00.4",)))
    assert result.verdict is Verdict.FAIL
    assert "/run/vgpuctl/claims/0000:3b:00.4" in finding_text(result)


def test_mdevctl_on_another_device_is_no_harm():
    assert run_check("mdevctl", snapshot(t4()), folders={MDEVCTL_DIRECTORY: ("0000:00:02.0",)}).verdict is Verdict.OK
    assert run_check("mdevctl", snapshot(t4())).verdict is Verdict.OK


def test_mdevctl_on_a_gpu_is_a_warning():
    result = run_check("mdevctl", snapshot(t4()), folders={MDEVCTL_DIRECTORY: ("0000:5e:00.0",)})
    assert result.verdict is Verdict.WARN
    assert f"{MDEVCTL_DIRECTORY}/0000:5e:00.0" in finding_text(result)
    closed = FolderListing(problem=f"{MDEVCTL_DIRECTORY}: Permission denied")
    assert run_check("mdevctl", snapshot(t4()), folders={MDEVCTL_DIRECTORY: closed}).verdict is Verdict.UNKNOWN


KEPT = HostVgpu("spare", "A100-4C", "0000:3b:00.0", "0000:3b:00.4")


def test_each_host_vgpu_exists():
    gpu = a100()
    assert run_check("kept-vgpus", snapshot(gpu)).verdict is Verdict.NOT_APPLICABLE
    there = taken(gpu, A4C, name="spare", vm=None)
    assert run_check("kept-vgpus", snapshot(gpu, host_vgpus=(KEPT,), vgpus=(there,))).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        ({"name": "spare", "present": False}, "spare: A100-4C on 0000:3b:00.0 is missing"),
        ({"name": "spare", "reason": "it has A100-5C"}, "spare: it has A100-5C"),
        ({}, "spare: 0000:3b:00.4 is the vGPU of vdi-000"),
    ],
)
def test_a_missing_changed_or_taken_host_vgpu_is_a_warning(seen, text):
    gpu = a100()
    result = run_check("kept-vgpus", snapshot(gpu, host_vgpus=(KEPT,), vgpus=(taken(gpu, A4C, **seen),)))
    assert result.verdict is Verdict.WARN
    assert result.fix is not None
    assert result.fix.endswith("vgpuctl restore-host")
    assert ("host.yaml" in result.fix) == ("is the vGPU of" in text)
    assert text in finding_text(result)


def test_an_unreadable_host_yaml_makes_host_vgpus_unknown():
    assert run_check("kept-vgpus", snapshot(a100(), host_file_problem="line 2")).verdict is Verdict.UNKNOWN
