# SPDX-License-Identifier: Apache-2.0
"""Stuck writes, leaks, unreadable claims, mdevctl's definitions."""

from __future__ import annotations

import pytest

from tests.unit.doctor.looks import judge, said
from tests.values import A4C, ME, a100, snapshot, t4, taken
from vgpuctl.doctor.check import FolderListing, Leftover, Verdict
from vgpuctl.doctor.leftovers import MDEVCTL_DIRECTORY
from vgpuctl.model.vm import HostVgpu, StuckWrite


def test_no_stuck_write():
    assert judge("stuck-writes", snapshot(a100())).verdict is Verdict.OK


def test_a_stuck_write_fails_with_process_and_file():
    write = StuckWrite(ME, "0000:3b:00.0", "/sys/bus/pci/devices/0000:3b:00.0/sriov_numvfs", "0")
    found = judge("stuck-writes", snapshot(a100(), stuck_writes=(write,)))
    assert found.verdict is Verdict.FAIL
    assert f"process {ME.pid} waits in the kernel writing {write.path}" in said(found)


@pytest.mark.parametrize("name", ["stuck-writes", "leftovers", "claims"])
def test_files_readable_only_by_root_are_unknown(name):
    found = judge(name, snapshot(a100()), claims_problem="/run/vgpuctl/claims: Permission denied", leftovers=())
    assert found.verdict is Verdict.UNKNOWN
    assert "Permission denied" in said(found)


def test_nothing_is_left():
    told = (Leftover("copied-record", "VM x carries a copy", "nothing"), Leftover("stuck-write", "w", "it ends"))
    assert judge("leftovers", leftovers=()).verdict is Verdict.OK
    assert judge("leftovers", leftovers=told).verdict is Verdict.OK


def test_a_leak_is_a_warning_for_reconcile():
    found = judge("leftovers", leftovers=(Leftover("leaked", "A100-4C on 0000:3b:00.4: its VM is gone", "remove it"),))
    assert (found.verdict, found.fix) == (Verdict.WARN, "vgpuctl reconcile")
    assert "leaked: A100-4C on 0000:3b:00.4" in said(found)


def test_other_leftovers_name_another_fix():
    newer = Leftover("unreadable-record", "VM x has a record", "nothing: upgrade vgpuctl")
    assert judge("leftovers", leftovers=(newer,)).fix == "upgrade vgpuctl"
    leak = Leftover("leaked", "A100-4C on 0000:3b:00.4: its VM is gone", "remove it")
    assert judge("leftovers", leftovers=(newer, leak)).fix == "vgpuctl reconcile; upgrade vgpuctl"


def test_leftovers_are_unknown_without_libvirt():
    assert judge("leftovers", leftovers_problem="refused").evidence == ("refused",)


def test_unreadable_claims_fail():
    assert judge("claims", snapshot(a100())).verdict is Verdict.OK
    found = judge("claims", snapshot(a100(), unreadable_claims=("0000:3b:00.4",)))
    assert found.verdict is Verdict.FAIL
    assert "/run/vgpuctl/claims/0000:3b:00.4" in said(found)


def test_mdevctl_on_another_device_is_no_harm():
    assert judge("mdevctl", snapshot(t4()), folders={MDEVCTL_DIRECTORY: ("0000:00:02.0",)}).verdict is Verdict.OK
    assert judge("mdevctl", snapshot(t4())).verdict is Verdict.OK


def test_mdevctl_on_a_gpu_is_a_warning():
    found = judge("mdevctl", snapshot(t4()), folders={MDEVCTL_DIRECTORY: ("0000:5e:00.0",)})
    assert found.verdict is Verdict.WARN
    assert f"{MDEVCTL_DIRECTORY}/0000:5e:00.0" in said(found)
    closed = FolderListing(problem=f"{MDEVCTL_DIRECTORY}: Permission denied")
    assert judge("mdevctl", snapshot(t4()), folders={MDEVCTL_DIRECTORY: closed}).verdict is Verdict.UNKNOWN


KEPT = HostVgpu("spare", "A100-4C", "0000:3b:00.0", "0000:3b:00.4")


def test_each_host_vgpu_exists():
    gpu = a100()
    assert judge("kept-vgpus", snapshot(gpu)).verdict is Verdict.NOT_APPLICABLE
    there = taken(gpu, A4C, name="spare", vm=None)
    assert judge("kept-vgpus", snapshot(gpu, host_vgpus=(KEPT,), vgpus=(there,))).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        ({"name": "spare", "present": False}, "spare: A100-4C on 0000:3b:00.0 is missing"),
        ({"name": "spare", "reason": "it carries A100-5C"}, "spare: it carries A100-5C"),
        ({}, "spare: 0000:3b:00.4 is the vGPU of vdi-000"),
    ],
)
def test_a_missing_changed_or_taken_host_vgpu_is_a_warning(seen, text):
    gpu = a100()
    found = judge("kept-vgpus", snapshot(gpu, host_vgpus=(KEPT,), vgpus=(taken(gpu, A4C, **seen),)))
    assert found.verdict is Verdict.WARN
    assert found.fix is not None
    assert found.fix.endswith("vgpuctl restore-host")
    assert ("host.yaml" in found.fix) == ("is the vGPU of" in text)
    assert text in said(found)


def test_an_unreadable_host_yaml_makes_host_vgpus_unknown():
    assert judge("kept-vgpus", snapshot(a100(), host_file_problem="line 2")).verdict is Verdict.UNKNOWN
