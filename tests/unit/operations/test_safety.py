# SPDX-License-Identifier: Apache-2.0
"""Unmanaged devices, those with users' work and those the host itself uses are never removed, reused or taken."""

from __future__ import annotations

import pytest

from tests.hosts import create, delete, open_sim_host, picture, request, run_reconcile, start, stop
from tests.values import A4C, a100, assigned, snapshot, vm, vm_uuid
from vgpuctl.backends import backend_for
from vgpuctl.domain.record import record_to_xml
from vgpuctl.errors import HostCannot, InUse
from vgpuctl.model.gpu import Backend, GpuFunction
from vgpuctl.model.port_values import DeviceUser, DomainLeftovers, HypervisorStatus
from vgpuctl.model.vm import DiskRef, ManagedDisk, RecordState, VmState
from vgpuctl.observe import ReadScope, observe
from vgpuctl.observe.definition import read_vm
from vgpuctl.operations.plans.chains import build_chains, recorded_references, refuse_shared_disks
from vgpuctl.operations.plans.choose import choose_vgpus
from vgpuctl.operations.plans.remove import vm_removal_plan
from vgpuctl.value import replace

VF = "/sys/bus/pci/devices/0000:3b:00.4/nvidia/current_vgpu_type"
RTX, RTX_AUDIO = "0000:d8:00.0", "0000:d8:00.1"


class Session:
    """A libvirt that answers for a user's session: it shows none of the host's VMs."""

    def __init__(self, real):
        self._real = real

    def __getattr__(self, name):
        return getattr(self._real, name)

    def status(self):
        return HypervisorStatus(True, "qemu:///session", libvirt_version=10_000_000)

    def domains(self):
        return ()


def chains(observed):
    """What records alone say about files."""
    return build_chains(observed, recorded_references(observed, ()))


def test_a_vm_that_runs_is_never_removed_although_its_record_says_half_made(tmp_path):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"))
    before = picture(host)
    domain = host.ports.hypervisor.find_domain("vm")
    record = read_vm(host.ports, domain).record
    host.ports.hypervisor.set_record(domain.uuid, record_to_xml(replace(record, state=RecordState.CREATING)))
    later = host.again()
    assert [f.kind for f in run_reconcile(later.ports, dry_run=True).data.findings] == ["half-made"]
    run_reconcile(later.ports)
    assert picture(later) == before
    domain = later.ports.hypervisor.find_domain("vm")
    assert read_vm(later.ports, domain).record.state is RecordState.READY


def test_over_a_session_connection_nothing_is_changed(tmp_path):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"), start=False)
    before = picture(host)
    ports = replace(host.ports, hypervisor=Session(host.ports.hypervisor))
    for act in (lambda: run_reconcile(ports), lambda: create(ports, request("A100-4C", name="other"))):
        with pytest.raises(HostCannot) as raised:
            act()
        assert raised.value.facts["check"] == "session"
    assert picture(host) == before


def test_an_unmanaged_vgpu_on_a_vms_assigned_vf_survives_deletion(tmp_path):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"), start=False)
    host.sim.reboot()
    host = host.again()
    host.ports.sysfs.write(VF, "469\n")
    run_reconcile(host.ports)
    done = delete(host.ports, "vm")
    assert host.ports.sysfs.read(VF) == "469\n"
    assert any("0000:3b:00.4" in note for note in done.notes)
    assert not picture(host).domains


def test_every_function_of_a_passed_through_gpu_is_taken(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    create(host.ports, request(name="vm", mode="passthrough", gpu=RTX), start=False)
    with pytest.raises(InUse) as raised:
        create(host.ports, request(name="other", mode="passthrough", gpu=RTX_AUDIO), start=False)
    assert "vm" in str(raised.value)
    start(host.ports, "vm")
    stop(host.ports, "vm")
    delete(host.ports, "vm")
    assert not picture(host).claims


@pytest.mark.parametrize("driver", ["igb", "nvme"])
def test_a_device_that_serves_the_host_is_not_passed_through(driver):
    gpu = a100(vfs=0, driver=driver, is_display_class=False)
    function = GpuFunction(gpu.address, gpu.path, driver=driver, iommu_group=7)
    with pytest.raises(InUse) as raised:
        backend_for(Backend.PASSTHROUGH).check(snapshot(gpu), gpu, function, force_console=True)
    assert driver in str(raised.value)
    assert "nodedev-detach" in str(raised.value.hint)


@pytest.mark.parametrize("clone", [True, False])
def test_a_disk_that_another_vm_uses_or_is_a_clone_of_is_not_deleted(clone):
    path = "/var/lib/libvirt/images/golden.qcow2"
    golden = vm(1, assigned(a100(), A4C, 1))
    mine = replace(golden.record, disks=(ManagedDisk("default", "golden.qcow2", path, 1 << 30),))
    other = vm(2, assigned(a100(), A4C, 2))
    if clone:
        disk = ManagedDisk("default", "clone.qcow2", "/x/clone.qcow2", 1 << 30, base=path, base_format="qcow2")
        other = replace(other, record=replace(other.record, disks=(disk,)))
    else:
        other = replace(other, disks=(DiskRef("disk", "vda", path, "qcow2"),))
    with pytest.raises(InUse) as raised:
        refuse_shared_disks(chains(snapshot(a100(), vms=(golden, other))), golden, mine)
    assert other.name in str(raised.value)
    assert "--keep-disks" in str(raised.value.hint)
    refuse_shared_disks(chains(snapshot(a100(), vms=(golden,))), golden, mine)


def test_the_disk_of_a_vm_is_no_base_image(tmp_path):
    host = open_sim_host(tmp_path)
    made = create(host.ports, request("A100-4C", name="golden"), start=False)
    path = made.data.disks[0].path
    before = picture(host)
    with pytest.raises(InUse) as raised:
        create(host.ports, request("A100-4C", name="clone", image=path))
    assert "golden" in str(raised.value)
    assert "qemu-img convert" in str(raised.value.hint)
    assert picture(host) == before


def test_a_crashed_vm_may_still_hold_its_devices_and_is_stopped_before_they_go():
    crashed = replace(vm(1, assigned(a100(), A4C, 1)), state=VmState.CRASHED)
    steps = [
        type(s).__name__ for s in vm_removal_plan(crashed, crashed.record, DomainLeftovers(), keep_disks=False).steps
    ]
    assert steps.index("StopDomain") < steps.index("ClearVgpuType")


def test_a_vf_of_a_gpu_assigned_whole_is_not_available(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    gpu = next(g for g in observe(host.ports, ReadScope(every_function=True)).gpus if g.backend is Backend.SRIOV_VF)
    whole = replace(assigned(gpu, A4C, 1), backend=Backend.PASSTHROUGH, carrier=gpu.address, function=gpu.address)
    observed = snapshot(gpu, vms=(vm(1, whole),))
    with pytest.raises(InUse) as raised:
        choose_vgpus(observed, request(mode="sriov", gpu=gpu.address), vm_uuid(9))
    assert vm(1).name in str(raised.value)


class ShownByXorg:
    """Files and processes of a host on which Xorg has begun to show its screen on every GPU."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def listdir(self, path):
        return ("card0",) if path.endswith("/drm") else self._inner.listdir(path)

    def find_holders(self, nodes):
        return (DeviceUser(7, "Xorg"),) if "/dev/dri/card0" in nodes else ()


@pytest.mark.parametrize("force", [False, True])
def test_a_stopped_vm_gets_a_gpu_that_shows_the_hosts_screen_only_if_it_was_made_so(tmp_path, force):
    host = open_sim_host(tmp_path, "mixed")
    create(host.ports, request(name="vm", mode="passthrough", gpu=RTX, force_console=force), start=False)
    before = picture(host)
    shown = replace(host.ports, processes=ShownByXorg(host.ports.processes), sysfs=ShownByXorg(host.ports.sysfs))
    if force:
        start(shown, "vm")
        return
    with pytest.raises(InUse, match=r"Xorg \(pid 7\)"):
        start(shown, "vm")
    assert picture(host) == before
