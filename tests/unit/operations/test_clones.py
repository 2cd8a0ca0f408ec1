# SPDX-License-Identifier: Apache-2.0
"""A clone of a VM names the devices of the original: it is shown everywhere, and nothing begins that it would break."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.hosts import SimulatedHost, context, create, delete, open_sim_host, request, start
from tests.meanwhile import unchanged
from tests.unit.doctor.check_results import run_check
from tests.unit.operations.test_change import reprofile
from vgpuctl.errors import InUse
from vgpuctl.hook import run as hook
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.attach import attach, detach
from vgpuctl.operations.gpu_mode import ModeRequest, set_mode
from vgpuctl.operations.gpu_scheduler import SchedulerRequest, set_scheduler
from vgpuctl.operations.queries import list_vms
from vgpuctl.operations.refresh import refresh_vm
from vgpuctl.operations.vgpus import list_vgpus
from vgpuctl.ports.host import Host

BACKENDS = [("a100-40", "A100-4C"), ("t4", "T4-2Q"), ("a16", "A16-2Q")]
IN_USE = "of vm is in use by VM vm-clone, which is running"
PLAIN_VFS = """version: 1
images: [{path: /srv/images/ubuntu-24.04.qcow2, format: qcow2, size_gib: 20}]
gpus:
  - {model: GPU, address: "0000:00:02.0", backend: sriov-vf, driver: i915, vendor_id: "8086", device_id: "46d1",
     class: "030000", configurable: true, vfs: {total: 7, enabled: 7}}
"""
IMAGE = "/srv/images/ubuntu-24.04.qcow2"


def define_clone(ports: Host, name: str = "vm", clone: str = "vm-clone") -> str:
    """Define a copy of a VM as virt-clone does, without its disks; return the clone's UUID."""
    xml = ports.hypervisor.find_domain(name).xml.replace(f"<name>{name}<", f"<name>{clone}<")
    xml = re.sub(r"<uuid>[^<]*</uuid>", "", xml, count=1)
    xml = re.sub(r"<disk type.*?</disk>", "", re.sub(r"<mac address='[^']*'/>", "", xml), flags=re.DOTALL)
    return ports.hypervisor.define(xml).uuid


def with_clone(tmp_path: Path, scenario: str, profile: str, *, runs: bool = True) -> SimulatedHost:
    host = open_sim_host(tmp_path, scenario)
    create(host.ports, request(profile, name="vm", image=IMAGE), start=False)
    clone = define_clone(host.ports)
    if runs:
        host.ports.hypervisor.start(clone)
    return host


CHANGES = {
    "start": lambda host: start(host.ports, "vm"),
    "delete": lambda host: delete(host.ports, "vm"),
    "detach": lambda host: detach(host.ports, context(wait_seconds=0), "vm"),
    "attach": lambda host: attach(host.ports, context(wait_seconds=0), request("T4-2Q", name="vm")),
    "set-vm": lambda host: reprofile(host, "T4-4Q"),
    "refresh": lambda host: refresh_vm(host.ports, context(wait_seconds=0), "vm", IMAGE, drain=False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_while_the_clone_runs_every_change_of_the_original_is_refused_before_it_begins(tmp_path, change):
    host = with_clone(tmp_path, "t4", "T4-2Q")
    with unchanged(host), pytest.raises(InUse, match=f"{IN_USE} and names it too") as raised:
        CHANGES[change](host)
    assert raised.value.status == 3
    hint = "virsh shutdown vm-clone; then virsh detach-device-alias vm-clone ua-vgpuctl-0 --config"
    assert raised.value.hint == hint


@pytest.mark.parametrize(("scenario", "profile"), BACKENDS)
@pytest.mark.parametrize("runs", [True, False])
def test_a_clone_is_shown_with_what_it_names(tmp_path, scenario, profile, runs):
    host = with_clone(tmp_path, scenario, profile, runs=runs)
    original, clone = list_vms(host.ports, context()).data
    assert original.vgpus == clone.vgpus
    assert [(v.vm, v.other_vms) for v in clone.vgpus] == [("vm", ("vm-clone",))]
    assert [(v.vm, v.other_vms) for v in list_vgpus(host.ports).data] == [("vm", ("vm-clone",))]
    finding = run_check("shared-vgpus", observe(host.ports, ReadScope()))
    assert finding.verdict == "warn"
    assert "vm, vm-clone" in finding.evidence[0]


@pytest.mark.parametrize(("scenario", "profile"), BACKENDS)
def test_the_hook_refuses_the_start_of_a_clone_until_the_original_is_deleted(tmp_path, scenario, profile):
    host = with_clone(tmp_path, scenario, profile, runs=False)
    xml = host.ports.hypervisor.find_domain("vm-clone").xml
    with pytest.raises(InUse, match=r"is the vGPU of VM vm, and vm-clone names it too") as raised:
        hook.prepare(host.ports, xml)
    assert raised.value.hint == "virsh detach-device-alias vm-clone ua-vgpuctl-0 --config"
    delete(host.ports, "vm")
    hook.prepare(host.ports, xml)


def test_a_vm_that_reserves_only_while_it_runs_does_not_block_its_clone(tmp_path):
    host = open_sim_host(tmp_path, "t4")
    create(host.ports, request("T4-2Q", name="vm", reserve="running"), start=False)
    define_clone(host.ports)
    xml = host.ports.hypervisor.find_domain("vm-clone").xml
    hook.prepare(host.ports, xml)
    start(host.ports, "vm")
    with pytest.raises(InUse, match="is the vGPU of VM vm"):
        hook.prepare(host.ports, xml)


def test_a_gpu_that_a_running_clone_uses_is_not_set_up(tmp_path):
    host = with_clone(tmp_path, "a100-40", "A100-4C")
    wanted = SchedulerRequest("0000:3b:00.0", SchedulerSpec(SchedulerPolicy.EQUAL_SHARE), drain=True)
    with unchanged(host), pytest.raises(InUse, match=IN_USE) as raised:
        set_scheduler(host.ports, context(), wanted)
    assert raised.value.status == 3


def test_plain_vfs_that_a_running_clone_uses_stay(tmp_path):
    host = open_sim_host(tmp_path, text=PLAIN_VFS)
    create(host.ports, request(name="vm", mode="sriov", image=IMAGE), start=False)
    host.ports.hypervisor.start(define_clone(host.ports))
    with unchanged(host), pytest.raises(InUse, match=IN_USE):
        set_mode(host.ports, context(), ModeRequest("0000:00:02.0", "sriov", 2, drain=True))


def test_a_clone_of_a_vm_with_a_whole_gpu_takes_no_vgpus_away(tmp_path):
    host = open_sim_host(tmp_path, text="version: 1\ngpus: [{model: RTX 4090, driver: vfio-pci}]\n")
    create(host.ports, request(name="vm", mode="passthrough"), start=False)
    define_clone(host.ports)
    finding = run_check("shared-vgpus", observe(host.ports, ReadScope()))
    assert (finding.verdict, finding.evidence[0].partition(":")[0]) == ("warn", "vm, vm-clone")
