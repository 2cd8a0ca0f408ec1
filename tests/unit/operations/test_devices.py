# SPDX-License-Identifier: Apache-2.0
"""A VM's missing devices are created without libvirt, at their place, or refused with the holder of that place."""

from __future__ import annotations

import pytest

from tests.hosts import SimulatedHost, context, create, living_operation, open_sim_host, picture, request
from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.errors import Busy, InUse, NoCapacity
from vgpuctl.model.gpu import Backend
from vgpuctl.model.vm import Claim, RecordState, Vm
from vgpuctl.operations.devices import has_missing_devices, make_devices, needs_device_creation
from vgpuctl.operations.guards import GPU_SETUP_CLAIM
from vgpuctl.value import replace


def vm_of(host: SimulatedHost, name: str = "vm") -> Vm:
    record = host.ports.hypervisor.find_domain(name)
    assert record is not None
    return parse_domain(record.xml, record.state, host.ports.machine_id)


def make(host: SimulatedHost, vm: Vm) -> tuple[str, ...]:
    assert vm.record is not None
    return make_devices(host.ports, context(wait_seconds=5), vm, vm.record, (vm,)).steps


def booted(tmp_path, scenario: str, profile: str, **more) -> SimulatedHost:
    host = open_sim_host(tmp_path, scenario)
    create(host.ports, request(profile, name="vm", **more), start=False)
    host.sim.reboot()
    return host.again()


@pytest.mark.parametrize(("scenario", "profile"), [("a100-40", "A100-4C"), ("t4", "T4-2Q"), ("a16", "A16-2Q")])
def test_what_a_boot_took_is_made_where_it_was_and_then_nothing_is_missing(tmp_path, scenario, profile):
    host = open_sim_host(tmp_path, scenario)
    create(host.ports, request(profile, name="vm"), start=False)
    before = picture(host)
    host.sim.reboot()
    host = host.again()
    vm = vm_of(host)
    assert vm.record is not None
    assert needs_device_creation(vm.record)
    assert has_missing_devices(host.ports, vm, vm.record)
    assert make(host, vm)
    assert picture(host) == before
    assert not has_missing_devices(host.ports, vm, vm.record)


def test_a_claim_alone_that_is_missing_is_written_again(tmp_path):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"), start=False)
    before = picture(host)
    vm = vm_of(host)
    assert vm.record is not None
    host.ports.claims.remove(vm.record.vgpus[0].carrier, vm.uuid)
    assert has_missing_devices(host.ports, vm, vm.record)
    make(host, vm)
    assert picture(host) == before


def test_a_place_that_is_claimed_for_another_vm_is_refused_with_its_name(tmp_path):
    host = booted(tmp_path, "a100-40", "A100-4C")
    vm = vm_of(host)
    create(host.ports, request("A100-4C", name="other"), start=False)
    taken = host.ports.claims.all()[0]
    host.ports.claims.add(replace(taken, carrier="0000:3b:00.4"))
    before = picture(host)
    with pytest.raises(Busy, match=r"0000:3b:00\.4 is claimed for VM other"):
        make(host, vm)
    assert picture(host) == before


def test_a_place_that_somebody_else_took_by_hand_is_left_to_him(tmp_path):
    host = booted(tmp_path, "a100-40", "A100-4C")
    host.ports.sysfs.write("/sys/bus/pci/devices/0000:3b:00.4/nvidia/current_vgpu_type", "469\n")
    before = picture(host)
    with pytest.raises(InUse, match="has A100-5C, not A100-4C as vm needs"):
        make(host, vm_of(host))
    assert picture(host) == before


def test_a_gpu_that_others_filled_says_no_room_with_the_numbers(tmp_path):
    host = booted(tmp_path, "t4", "T4-16Q")
    create_path = "/sys/bus/pci/devices/{}/mdev_supported_types/{}/create"
    gpu = vm_of(host).record.vgpus[0].gpu
    types = f"/sys/bus/pci/devices/{gpu}/mdev_supported_types"
    small = next(
        t for t in host.ports.sysfs.listdir(types) if host.ports.sysfs.read(f"{types}/{t}/name").strip().endswith("-8Q")
    )
    host.ports.sysfs.write(create_path.format(gpu, small), f"{host.ports.new_uuid()}\n")
    before = picture(host)
    with pytest.raises(NoCapacity, match="no room for T4-16Q"):
        make(host, vm_of(host))
    assert picture(host) == before


def test_a_vm_that_is_half_made_is_left_to_reconcile(tmp_path):
    host = booted(tmp_path, "a100-40", "A100-4C")
    vm = vm_of(host)
    half = replace(vm, record=replace(vm.record, state=RecordState.REMOVING))
    with pytest.raises(Busy, match="is unfinished"):
        make(host, half)


def test_nothing_is_let_pass_while_its_gpu_is_being_set_up(tmp_path):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"), start=False)
    vm = vm_of(host)
    assert vm.record is not None
    operation = living_operation(host.ports)
    whole = Claim(
        carrier=vm.record.vgpus[0].gpu,
        backend=Backend.PASSTHROUGH,
        gpu=vm.record.vgpus[0].gpu,
        function=vm.record.vgpus[0].gpu,
        vm=GPU_SETUP_CLAIM,
        vm_uuid=host.ports.new_uuid(),
        profile=None,
        framebuffer_mib=None,
        process=operation.process,
        command="vgpuctl set-mode",
        operation=operation.id,
    )
    host.ports.claims.add(whole)
    with pytest.raises(Busy, match=r"is setting up 0000:3b:00\.0"):
        has_missing_devices(host.ports, vm, vm.record)
    host.ports.claims.remove(whole.carrier, whole.vm_uuid)
    assert not has_missing_devices(host.ports, vm, vm.record)
