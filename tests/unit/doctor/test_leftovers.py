# SPDX-License-Identifier: Apache-2.0
"""Stuck writes, leaks, unreadable claims, mdevctl's definitions."""

from __future__ import annotations

import pytest

from tests.unit.doctor.looks import judge, said
from tests.values import A4C, ME, a100, snapshot, t4, taken
from vgpuctl.doctor.check import Folder, Leftover, Verdict
from vgpuctl.doctor.leftovers import MDEVCTL
from vgpuctl.model.vm import NamedVgpu, StuckWrite


def test_no_write_waits():
    assert judge("stuck-writes", snapshot(a100())).verdict is Verdict.OK


def test_a_write_that_waits_fails_with_its_process_and_file():
    write = StuckWrite(ME, "0000:3b:00.0", "/sys/bus/pci/devices/0000:3b:00.0/sriov_numvfs", "0")
    found = judge("stuck-writes", snapshot(a100(), stuck=(write,)))
    assert found.verdict is Verdict.FAIL
    assert f"process {ME.pid} waits in the kernel writing {write.path}" in said(found)


@pytest.mark.parametrize("name", ["stuck-writes", "leftovers", "claims"])
def test_what_only_root_may_read_is_unknown_and_not_none(name):
    found = judge(name, snapshot(a100()), closed="/run/vgpuctl/claims: Permission denied", leftovers=())
    assert found.verdict is Verdict.UNKNOWN
    assert "Permission denied" in said(found)


def test_nothing_is_left():
    told = (Leftover("copied-record", "VM x carries a copy", "nothing"), Leftover("stuck-write", "w", "it ends"))
    assert judge("leftovers", leftovers=()).verdict is Verdict.OK
    assert judge("leftovers", leftovers=told).verdict is Verdict.OK


def test_a_leak_is_a_warning_that_reconcile_mends():
    found = judge("leftovers", leftovers=(Leftover("leaked", "A100-4C on 0000:3b:00.4: its VM is gone", "remove it"),))
    assert (found.verdict, found.fix) == (Verdict.WARN, "vgpuctl reconcile")
    assert "leaked: A100-4C on 0000:3b:00.4" in said(found)


def test_what_reconcile_does_not_mend_says_what_does():
    newer = Leftover("unreadable-record", "VM x has a record", "nothing: upgrade vgpuctl")
    assert judge("leftovers", leftovers=(newer,)).fix == "upgrade vgpuctl"
    leak = Leftover("leaked", "A100-4C on 0000:3b:00.4: its VM is gone", "remove it")
    assert judge("leftovers", leftovers=(newer, leak)).fix == "vgpuctl reconcile; upgrade vgpuctl"


def test_leftovers_are_unknown_without_libvirt():
    assert judge("leftovers", leftovers_problem="refused").evidence == ("refused",)


def test_claims_that_cannot_be_understood_fail():
    assert judge("claims", snapshot(a100())).verdict is Verdict.OK
    found = judge("claims", snapshot(a100(), unreadable_claims=("0000:3b:00.4",)))
    assert found.verdict is Verdict.FAIL
    assert "/run/vgpuctl/claims/0000:3b:00.4" in said(found)


def test_mdevctl_on_another_device_is_no_harm():
    assert judge("mdevctl", snapshot(t4()), folders={MDEVCTL: ("0000:00:02.0",)}).verdict is Verdict.OK
    assert judge("mdevctl", snapshot(t4())).verdict is Verdict.OK


def test_mdevctl_on_a_gpu_of_ours_is_a_warning():
    found = judge("mdevctl", snapshot(t4()), folders={MDEVCTL: ("0000:5e:00.0",)})
    assert found.verdict is Verdict.WARN
    assert f"{MDEVCTL}/0000:5e:00.0" in said(found)
    closed = Folder(problem=f"{MDEVCTL}: Permission denied")
    assert judge("mdevctl", snapshot(t4()), folders={MDEVCTL: closed}).verdict is Verdict.UNKNOWN


KEPT = NamedVgpu("spare", "A100-4C", "0000:3b:00.0", "0000:3b:00.4")


def test_each_kept_vgpu_is_made():
    gpu = a100()
    assert judge("kept-vgpus", snapshot(gpu)).verdict is Verdict.NOT_APPLICABLE
    there = taken(gpu, A4C, name="spare", vm=None)
    assert judge("kept-vgpus", snapshot(gpu, named=(KEPT,), vgpus=(there,))).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        ({"name": "spare", "present": False}, "spare: A100-4C on 0000:3b:00.0 is missing"),
        ({"name": "spare", "reason": "it carries A100-5C"}, "spare: it carries A100-5C"),
        ({}, "spare: 0000:3b:00.4 is the vGPU of vdi-000"),
    ],
)
def test_a_kept_vgpu_that_is_missing_changed_or_a_vms_is_a_warning(seen, text):
    gpu = a100()
    found = judge("kept-vgpus", snapshot(gpu, named=(KEPT,), vgpus=(taken(gpu, A4C, **seen),)))
    assert found.verdict is Verdict.WARN
    assert found.fix is not None
    assert found.fix.endswith("vgpuctl restore-host")
    assert ("host.yaml" in found.fix) == ("is the vGPU of" in text)
    assert text in said(found)


def test_what_host_yaml_keeps_is_unknown_while_it_cannot_be_read():
    assert judge("kept-vgpus", snapshot(a100(), host_file_problem="line 2")).verdict is Verdict.UNKNOWN
