# SPDX-License-Identifier: Apache-2.0
"""Unmanaged devices, those with users' work and those the host itself uses are never removed, reused or taken."""

from __future__ import annotations

import pytest

from tests.adopting import take
from tests.hosts import (
    context,
    create,
    delete,
    open_sim_host,
    operation,
    picture,
    request,
    run_reconcile,
    start,
    stop,
)
from tests.meanwhile import rebooted, unchanged, with_calls
from tests.values import A4C, a100, assigned, snapshot, vm, vm_uuid
from vgpuctl.backends import backend_for
from vgpuctl.errors import HostCannot, InUse, Refused
from vgpuctl.model.gpu import Backend, GpuFunction
from vgpuctl.model.port_values import DeviceUser, HypervisorStatus
from vgpuctl.model.vm import DiskRef, ManagedDisk
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.attach import attach
from vgpuctl.operations.plans.chains import build_chains, recorded_references, refuse_shared_disks
from vgpuctl.operations.plans.choose import choose_vgpus
from vgpuctl.value import replace

VF = "/sys/bus/pci/devices/0000:3b:00.4/nvidia/current_vgpu_type"
RTX, RTX_AUDIO = "0000:d8:00.0", "0000:d8:00.1"


def chains(observed):
    """What records alone say about files."""
    return build_chains(observed, recorded_references(observed, ()))


def test_over_a_session_connection_nothing_is_changed(tmp_path):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"), start=False)
    status = HypervisorStatus(True, "qemu:///session", libvirt_version=10_000_000)
    ports = with_calls(host.ports, "hypervisor", status=lambda: status, domains=lambda: ())
    for act in (lambda: run_reconcile(ports), lambda: create(ports, request("A100-4C", name="other"))):
        with unchanged(host), pytest.raises(HostCannot) as raised:
            act()
        assert raised.value.facts["check"] == "session"


def test_an_unmanaged_vgpu_on_a_vms_assigned_vf_survives_deletion(tmp_path):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"), start=False)
    host = rebooted(host)
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
    with unchanged(host), pytest.raises(InUse) as raised:
        create(host.ports, request("A100-4C", name="clone", image=path))
    assert "golden" in str(raised.value)
    assert "qemu-img convert" in str(raised.value.hint)


def test_a_vf_of_a_gpu_assigned_whole_is_not_available(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    gpu = next(g for g in observe(host.ports, ReadScope(every_function=True)).gpus if g.backend is Backend.SRIOV_VF)
    whole = replace(assigned(gpu, A4C, 1), backend=Backend.PASSTHROUGH, carrier=gpu.address, function=gpu.address)
    observed = snapshot(gpu, vms=(vm(1, whole),))
    with pytest.raises(InUse) as raised:
        choose_vgpus(observed, request(mode="sriov", gpu=gpu.address), vm_uuid(9))
    assert vm(1).name in str(raised.value)


def shown_by_xorg(host):
    """Return a host on which Xorg has begun to show its screen on every GPU."""
    listdir = host.ports.sysfs.listdir
    ports = with_calls(host.ports, "sysfs", listdir=lambda p: ("card0",) if p.endswith("/drm") else listdir(p))
    xorg = (DeviceUser(7, "Xorg"),)
    return with_calls(ports, "processes", find_holders=lambda nodes: xorg if "/dev/dri/card0" in nodes else ())


def starts_only_if(force, host):
    """Start the VM when Xorg has the screen on its GPUs: it starts, or the error names Xorg and nothing is changed."""
    shown = shown_by_xorg(host)
    if force:
        start(shown, "vm")
        return
    with unchanged(host), pytest.raises(InUse, match=r"Xorg \(pid 7\)"):
        start(shown, "vm")


@pytest.mark.parametrize("force", [False, True])
def test_a_stopped_vm_gets_a_gpu_that_shows_the_hosts_screen_only_if_it_was_made_so(tmp_path, force):
    host = open_sim_host(tmp_path, "mixed")
    create(host.ports, request(name="vm", mode="passthrough", gpu=RTX, force_console=force), start=False)
    starts_only_if(force, host)


@pytest.mark.parametrize("force", [False, True])
def test_a_gpu_that_a_vm_gets_later_may_show_the_hosts_screen_only_if_it_was_allowed(tmp_path, force):
    host = open_sim_host(tmp_path, "h100-pcie-x8")
    create(host.ports, request(name="vm", mode="passthrough", gpus=1), start=False)
    wanted = request(name="vm", mode="passthrough", gpus=1, force_console=force)
    with operation(host.ports):
        attach(host.ports, context(), wanted)
    starts_only_if(force, host)


LOST = """version: 1
title: t
gpus: [{model: MI300X, driver: vfio-pci}]
"""


def test_a_vm_that_already_has_a_gpu_that_a_reset_breaks_starts(tmp_path):
    host = open_sim_host(tmp_path, text=LOST.replace("vfio-pci}", "vfio-pci, vgpus: [{vm: desk, running: false}]}"))
    take(host)
    assert start(host.ports, "desk").changed


def test_a_gpu_that_a_reset_breaks_goes_to_a_vm_only_if_that_is_said(tmp_path):
    host = open_sim_host(tmp_path, text=LOST)
    gpu = "0000:3b:00.0"
    with unchanged(host), pytest.raises(Refused, match="is lost until the host boots") as raised:
        create(host.ports, request(name="vm", mode="passthrough", gpu=gpu))
    assert "--force-reset" in raised.value.hint
    create(host.ports, request(name="vm", mode="passthrough", gpu=gpu, force_reset=True))
    stop(host.ports, "vm")
    start(host.ports, "vm")
