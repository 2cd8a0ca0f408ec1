# SPDX-License-Identifier: Apache-2.0
"""VMs that would unbind a VF or lost a vGPU, memory that VMs lock; stuck writes, leaks, claims, mdevctl."""

from __future__ import annotations

import pytest

from tests.unit.doctor.check_results import finding_text, run_check
from tests.values import A4C, ME, a100, assigned, snapshot, t4, taken, vm
from vgpuctl.doctor.check import FolderListing, Leftover, Verdict
from vgpuctl.doctor.vms import MDEVCTL_DIRECTORY, MEMINFO
from vgpuctl.model.gpu import Backend, Ownership, Vgpu
from vgpuctl.model.numbers import format_mib
from vgpuctl.model.port_values import HypervisorStatus
from vgpuctl.model.vm import HostdevRef, HostVgpu, StuckWrite, VmState
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


def meminfo(total_mib: int, free_mib: int) -> dict[str, str]:
    return {MEMINFO: f"MemTotal:  {total_mib * 1024} kB\nMemFree: 1 kB\nMemAvailable:  {free_mib * 1024} kB\n"}


@pytest.mark.parametrize(
    ("state", "total", "free", "verdict"),
    [
        (VmState.RUNNING, 8192, 100, Verdict.OK),
        (VmState.STOPPED, 8192, 4096, Verdict.OK),
        (VmState.STOPPED, 8192, 4095, Verdict.WARN),
        (VmState.RUNNING, 4095, 100, Verdict.WARN),
    ],
)
def test_the_memory_that_is_locked_must_be_there(state, total, free, verdict):
    host = snapshot(GPU, vms=(vm(1, OWN, memory_mib=4096, state=state),))
    result = run_check("locked-memory", host, files=meminfo(total, free))
    assert result.verdict is verdict
    assert f"MemTotal {format_mib(total)}" in finding_text(result)


def test_without_devices_or_figures_it_is_not_checked():
    assert run_check("locked-memory", snapshot(GPU, vms=(vm(1),))).verdict is Verdict.NOT_APPLICABLE
    assert run_check("locked-memory", snapshot(GPU, vms=(vm(1, OWN),))).verdict is Verdict.UNKNOWN
    off = HypervisorStatus(available=False, uri="qemu:///system", reason="refused")
    assert run_check("locked-memory", snapshot(GPU, hypervisor=off)).verdict is Verdict.UNKNOWN


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
