# SPDX-License-Identifier: Apache-2.0
"""VMs that would unbind a VF or lost a vGPU, memory that VMs lock; stuck writes, leaks, claims, mdevctl."""

from __future__ import annotations

import pytest

from tests.unit.doctor.check_results import (
    FAIL,
    NOT_APPLICABLE,
    OK,
    UNKNOWN,
    WARN,
    assert_verdict,
    case,
    finding_text,
    run_check,
)
from tests.values import A4C, ME, a100, assigned, snapshot, t4, taken, vm
from vgpuctl.doctor.check import FolderListing, Leftover
from vgpuctl.doctor.vms import MDEVCTL_DIRECTORY, MEMINFO
from vgpuctl.model.gpu import Backend, Ownership, Vgpu
from vgpuctl.model.numbers import format_mib
from vgpuctl.model.port_values import HypervisorStatus
from vgpuctl.model.vm import HostdevRef, HostVgpu, StuckWrite, VmState
from vgpuctl.value import replace

GPU = a100()
OWN = assigned(GPU, A4C)
REFUSED = HypervisorStatus(available=False, uri="qemu:///system", reason="refused")
MANAGED_VF = HostdevRef("pci", OWN.carrier, managed=True)
ELSEWHERE = HostdevRef("pci", "0000:af:00.0", managed=True)
WRITE = StuckWrite(ME, "0000:3b:00.0", "/sys/bus/pci/devices/0000:3b:00.0/sriov_numvfs", "0")
LEAK = Leftover("leaked", "A100-4C on 0000:3b:00.4: its VM is gone", "remove it")
NEWER = Leftover("unreadable-record", "VM x has a record", "nothing: upgrade vgpuctl")
REPORTED = (Leftover("copied-record", "VM x carries a copy", "nothing"), Leftover("stuck-write", "w", "it ends"))
KEPT = HostVgpu("spare", "A100-4C", "0000:3b:00.0", "0000:3b:00.4")


def mdevctl(verdict, *words, folder=None):
    folders = {} if folder is None else {MDEVCTL_DIRECTORY: folder}
    return case("mdevctl", verdict, *words, snapshot=snapshot(t4()), folders=folders)


def kept(verdict, *words, **seen):
    return case("kept-vgpus", verdict, *words, snapshot=snapshot(GPU, **seen))


CASES = {
    "VMs that leave the driver alone": case(
        "managed-vfs", OK, snapshot=snapshot(GPU, vms=(vm(1, OWN), vm(2, hostdevs=(ELSEWHERE,))))
    ),
    "a managed VF of NVIDIA's driver": case(
        "managed-vfs", FAIL, f"VM vdi-001: {OWN.carrier} with managed='yes'",
        snapshot=snapshot(GPU, vms=(vm(1, hostdevs=(MANAGED_VF,)),)),
    ),
    "no such VFs": case("managed-vfs", NOT_APPLICABLE, snapshot=snapshot(t4())),
    "VFs without libvirt": case("managed-vfs", UNKNOWN, snapshot=snapshot(GPU, hypervisor=REFUSED)),
    "lost vGPUs without libvirt": case("lost-vgpus", UNKNOWN, snapshot=snapshot(GPU, hypervisor=REFUSED)),
    "VMs without devices lock no memory": case("locked-memory", NOT_APPLICABLE, snapshot=snapshot(GPU, vms=(vm(1),))),
    "memory without figures": case("locked-memory", UNKNOWN, snapshot=snapshot(GPU, vms=(vm(1, OWN),))),
    "memory without libvirt": case("locked-memory", UNKNOWN, snapshot=snapshot(GPU, hypervisor=REFUSED)),
    "no stuck write": case("stuck-writes", OK, snapshot=snapshot(GPU)),
    "a stuck write with process and file": case(
        "stuck-writes", FAIL, f"process {ME.pid} waits in the kernel writing {WRITE.path}",
        snapshot=snapshot(GPU, stuck_writes=(WRITE,)),
    ),
    "nothing is left": case("leftovers", OK, leftovers=()),
    "what other checks report": case("leftovers", OK, leftovers=REPORTED),
    "a leak": case("leftovers", WARN, "leaked: A100-4C on 0000:3b:00.4", "vgpuctl reconcile-host", leftovers=(LEAK,)),
    "a leftover with another fix": case("leftovers", WARN, "upgrade vgpuctl", leftovers=(NEWER,)),
    "leftovers with two fixes": case(
        "leftovers", WARN, "vgpuctl reconcile-host; upgrade vgpuctl", leftovers=(NEWER, LEAK)
    ),
    "leftovers without libvirt": case("leftovers", UNKNOWN, "refused", leftovers_problem="refused"),
    "claims that can be read": case("claims", OK, snapshot=snapshot(GPU)),
    "a claim that cannot be read": case(
        "claims", FAIL, "/run/vgpuctl/claims/0000:3b:00.4",
        snapshot=snapshot(GPU, unreadable_claims=("0000:3b:00.4",)),
    ),
    "mdevctl on another device": mdevctl(OK, folder=("0000:00:02.0",)),
    "a host without mdevctl": mdevctl(OK),
    "mdevctl on a GPU": mdevctl(WARN, f"{MDEVCTL_DIRECTORY}/0000:5e:00.0", folder=("0000:5e:00.0",)),
    "mdevctl's files that cannot be read": mdevctl(
        UNKNOWN, folder=FolderListing(problem=f"{MDEVCTL_DIRECTORY}: Permission denied")
    ),
    "no vGPUs of host.yaml": kept(NOT_APPLICABLE),
    "each vGPU of host.yaml exists": kept(
        OK, host_vgpus=(KEPT,), vgpus=(taken(GPU, A4C, name="spare", vm=None),)
    ),
    "a host.yaml that cannot be read": kept(UNKNOWN, host_file_problem="line 2"),
}  # fmt: skip


@pytest.mark.parametrize("one", CASES.values(), ids=CASES)
def test_the_verdict_on(one):
    assert_verdict(one)


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
    assert lost.verdict is FAIL
    assert lost.evidence == (f"VM vdi-001 runs, but A100-4C on {OWN.function} is gone",)
    assert "start-vm" in lost.fix
    for state, present in ((VmState.RUNNING, True), (VmState.STOPPED, False)):
        machine = replace(vm(1, OWN), state=state)
        result = run_check("lost-vgpus", snapshot(GPU, vms=(machine,), vgpus=(carried(1, present=present),)))
        assert result.verdict is OK, state


def test_vms_that_are_off_without_their_vgpus_warn_and_what_creates_them_is_named():
    off = tuple(replace(vm(number, OWN), state=VmState.STOPPED) for number in (1, 2))
    missing = tuple(carried(number, present=False, needs_device=True) for number in (1, 2))
    one = run_check("lost-vgpus", snapshot(GPU, vms=off[:1], vgpus=missing[:1]))
    assert (one.verdict, one.evidence[1:]) == (WARN, ("vdi-001",))
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
    assert result.verdict is FAIL
    assert result.evidence[0].startswith(
        f"VM vdi-001 is off, and cannot start: {OWN.carrier} does not exist: 0 of 0 VFs"
    )
    elsewhere = replace(t4(), address="0000:af:00.0", backend=Backend.SRIOV_VF)
    assert run_check("lost-vgpus", snapshot(gone, elsewhere, vms=(waiting,))).verdict is OK


def meminfo(total_mib: int, free_mib: int) -> dict[str, str]:
    return {MEMINFO: f"MemTotal:  {total_mib * 1024} kB\nMemFree: 1 kB\nMemAvailable:  {free_mib * 1024} kB\n"}


@pytest.mark.parametrize(
    ("state", "total", "free", "verdict"),
    [
        (VmState.RUNNING, 8192, 100, OK),
        (VmState.STOPPED, 8192, 4096, OK),
        (VmState.STOPPED, 8192, 4095, WARN),
        (VmState.RUNNING, 4095, 100, WARN),
    ],
)
def test_the_memory_that_is_locked_must_be_there(state, total, free, verdict):
    host = snapshot(GPU, vms=(vm(1, OWN, memory_mib=4096, state=state),))
    result = run_check("locked-memory", host, files=meminfo(total, free))
    assert result.verdict is verdict
    assert f"MemTotal {format_mib(total)}" in finding_text(result)


@pytest.mark.parametrize("name", ["stuck-writes", "leftovers", "claims"])
def test_files_readable_only_by_root_are_unknown(name):
    result = run_check(name, snapshot(a100()), claims_problem="/run/vgpuctl/claims: Permission denied", leftovers=())
    assert result.verdict is UNKNOWN
    assert "Permission denied" in finding_text(result)


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
    assert result.verdict is WARN
    assert result.fix.endswith("vgpuctl restore-host")
    assert ("host.yaml" in result.fix) == ("is the vGPU of" in text)
    assert text in finding_text(result)
