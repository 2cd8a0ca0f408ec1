# SPDX-License-Identifier: Apache-2.0
"""VMs that would unbind a VF from the driver that it needs."""

from __future__ import annotations

from tests.unit.doctor.check_results import run_check
from tests.values import A4C, a100, assigned, snapshot, t4, vm
from vgpuctl.doctor.check import Verdict
from vgpuctl.model.gpu import Backend, Ownership, Vgpu
from vgpuctl.model.port_values import HypervisorStatus
from vgpuctl.model.vm import HostdevRef, VmState
from vgpuctl.value import replace

GPU = a100()
OWN = assigned(GPU, A4C)


def test_vms_that_leave_the_driver_alone():
    other = HostdevRef("pci", "0000:af:00.0", managed=True)
    assert run_check("managed-vfs", snapshot(GPU, vms=(vm(1, OWN), vm(2, hostdevs=(other,))))).verdict is Verdict.OK


def test_a_managed_vf_of_nvidias_driver_fails_with_the_vms_name():
    wrong = HostdevRef("pci", OWN.carrier, managed=True)
    result = run_check("managed-vfs", snapshot(GPU, vms=(vm(1, hostdevs=(wrong,)),)))
    assert result.verdict is Verdict.FAIL
    assert result.evidence == (f"VM vdi-001: {OWN.carrier} with managed='yes'",)


def test_without_such_vfs_or_libvirt_it_is_not_checked():
    off = HypervisorStatus(available=False, uri="qemu:///system", reason="refused")
    assert run_check("managed-vfs", snapshot(t4())).verdict is Verdict.NOT_APPLICABLE
    assert run_check("managed-vfs", snapshot(GPU, hypervisor=off)).verdict is Verdict.UNKNOWN


def carried(number, *, present, needs_device=False):
    name = vm(number, OWN)
    return Vgpu(
        OWN.carrier,
        OWN.gpu,
        OWN.function,
        Ownership.MANAGED,
        present,
        profile="A100-4C",
        vm=name.name,
        vm_uuid=name.uuid,
        needs_device=needs_device,
    )


def test_a_running_vm_whose_vgpu_is_gone_fails_and_a_stopped_one_does_not():
    running = replace(vm(1, OWN), state=VmState.RUNNING)
    lost = run_check("lost-vgpus", snapshot(GPU, vms=(running,), vgpus=(carried(1, present=False),)))
    assert lost.verdict is Verdict.FAIL
    assert lost.evidence == (f"VM vdi-001 runs, but A100-4C on {OWN.function} is gone",)
    assert "start-vm" in lost.fix
    for state, present in ((VmState.RUNNING, True), (VmState.STOPPED, False)):
        machine = replace(vm(1, OWN), state=state)
        result = run_check("lost-vgpus", snapshot(GPU, vms=(machine,), vgpus=(carried(1, present=present),)))
        assert result.verdict is Verdict.OK, state
    off = HypervisorStatus(available=False, uri="qemu:///system", reason="refused")
    assert run_check("lost-vgpus", snapshot(GPU, hypervisor=off)).verdict is Verdict.UNKNOWN


def test_vms_that_are_off_without_their_vgpus_warn_and_what_creates_them_is_named():
    off = tuple(replace(vm(number, OWN), state=VmState.STOPPED) for number in (1, 2))
    missing = tuple(carried(number, present=False, needs_device=True) for number in (1, 2))
    one = run_check("lost-vgpus", snapshot(GPU, vms=off[:1], vgpus=missing[:1]))
    assert (one.verdict, one.evidence[1:]) == (Verdict.WARN, ("vdi-001",))
    assert one.evidence[0].startswith("1 VM that is off lacks its vGPUs")
    assert one.fix == "all of them now: vgpuctl restore-host; those of one VM at its start: vgpuctl start-vm vdi-001"
    both = run_check("lost-vgpus", snapshot(GPU, vms=off, vgpus=missing))
    assert both.evidence[0].startswith("2 VMs that are off lack their vGPUs")


def test_a_vm_that_reserves_only_while_it_runs_cannot_start_where_no_gpu_has_vfs_any_more():
    plain = replace(OWN, backend=Backend.SRIOV_VF, profile=None)
    waiting = vm(1, plain, state=VmState.STOPPED)
    waiting = replace(waiting, record=replace(waiting.record, reserve="running"))
    gone = a100(backend=Backend.PASSTHROUGH, vfs_enabled=0, vfs_total=0, functions=(), types=(), driver="i915")
    result = run_check("lost-vgpus", snapshot(gone, vms=(waiting,)))
    assert result.verdict is Verdict.FAIL
    assert result.evidence[0].startswith(
        f"VM vdi-001 is off, and cannot start: {OWN.carrier} does not exist: 0 of 0 VFs"
    )
    elsewhere = replace(t4(), address="0000:af:00.0", backend=Backend.SRIOV_VF)
    assert run_check("lost-vgpus", snapshot(gone, elsewhere, vms=(waiting,))).verdict is Verdict.OK
