# SPDX-License-Identifier: Apache-2.0
"""A VM's missing devices are made without libvirt, at their place, or refused with who has it."""

from __future__ import annotations

import pytest

from tests.worlds import Host, Silent, create, open_host, picture, wish
from vgpuctl.domain.parse import parse
from vgpuctl.engine.devices import has_devices, make_devices, missing_devices
from vgpuctl.engine.guards import SETTING_UP
from vgpuctl.errors import Busy, InUse, NoCapacity
from vgpuctl.model.gpu import Backend
from vgpuctl.model.vm import Claim, PromiseState, Vm
from vgpuctl.value import replace


def vm_of(host: Host, name: str = "vm") -> Vm:
    record = host.world.hypervisor.find_domain(name)
    assert record is not None
    return parse(record.xml, record.state, host.world.machine_id)


def make(host: Host, vm: Vm) -> tuple[str, ...]:
    assert vm.promise is not None
    return make_devices(host.world, vm, vm.promise, (vm,), 5.0, Silent())


def booted(tmp_path, scenario: str, profile: str, **more) -> Host:
    host = open_host(tmp_path, scenario)
    create(host.world, wish(profile, name="vm", **more), start=False)
    host.sim.reboot()
    return host.again()


@pytest.mark.parametrize(("scenario", "profile"), [("a100-40", "A100-4C"), ("t4", "T4-2Q"), ("a16", "A16-2Q")])
def test_what_a_boot_took_is_made_where_it_was_and_then_nothing_is_missing(tmp_path, scenario, profile):
    host = open_host(tmp_path, scenario)
    create(host.world, wish(profile, name="vm"), start=False)
    before = picture(host)
    host.sim.reboot()
    host = host.again()
    vm = vm_of(host)
    assert vm.promise is not None
    assert has_devices(vm.promise)
    assert missing_devices(host.world, vm, vm.promise)
    assert make(host, vm)
    assert picture(host) == before
    assert not missing_devices(host.world, vm, vm.promise)


def test_a_claim_alone_that_is_missing_is_written_again(tmp_path):
    host = open_host(tmp_path)
    create(host.world, wish("A100-4C", name="vm"), start=False)
    before = picture(host)
    vm = vm_of(host)
    assert vm.promise is not None
    host.world.claims.remove(vm.promise.vgpus[0].carrier, vm.uuid)
    assert missing_devices(host.world, vm, vm.promise)
    make(host, vm)
    assert picture(host) == before


def test_a_place_that_is_claimed_for_another_vm_is_refused_with_its_name(tmp_path):
    host = booted(tmp_path, "a100-40", "A100-4C")
    vm = vm_of(host)
    create(host.world, wish("A100-4C", name="other"), start=False)
    taken = host.world.claims.all()[0]
    host.world.claims.add(replace(taken, carrier="0000:3b:00.4"))
    before = picture(host)
    with pytest.raises(Busy, match=r"0000:3b:00\.4 is claimed for VM other"):
        make(host, vm)
    assert picture(host) == before


def test_a_place_that_somebody_else_took_by_hand_is_left_to_him(tmp_path):
    host = booted(tmp_path, "a100-40", "A100-4C")
    host.world.sysfs.write("/sys/bus/pci/devices/0000:3b:00.4/nvidia/current_vgpu_type", "469\n")
    before = picture(host)
    with pytest.raises(InUse, match="carries A100-5C, not A100-4C as vm needs"):
        make(host, vm_of(host))
    assert picture(host) == before


def test_a_gpu_that_others_filled_says_no_room_with_the_numbers(tmp_path):
    host = booted(tmp_path, "t4", "T4-16Q")
    create_path = "/sys/bus/pci/devices/{}/mdev_supported_types/{}/create"
    gpu = vm_of(host).promise.vgpus[0].gpu
    types = f"/sys/bus/pci/devices/{gpu}/mdev_supported_types"
    small = next(
        t for t in host.world.sysfs.listdir(types) if host.world.sysfs.read(f"{types}/{t}/name").strip().endswith("-8Q")
    )
    host.world.sysfs.write(create_path.format(gpu, small), f"{host.world.new_uuid()}\n")
    before = picture(host)
    with pytest.raises(NoCapacity, match="no room for T4-16Q"):
        make(host, vm_of(host))
    assert picture(host) == before


def test_a_vm_that_is_half_made_is_left_to_reconcile(tmp_path):
    host = booted(tmp_path, "a100-40", "A100-4C")
    vm = vm_of(host)
    half = replace(vm, promise=replace(vm.promise, state=PromiseState.REMOVING))
    with pytest.raises(Busy, match="half-way"):
        make(host, half)


def test_nothing_is_let_pass_while_its_gpu_is_being_set_up(tmp_path):
    host = open_host(tmp_path)
    create(host.world, wish("A100-4C", name="vm"), start=False)
    vm = vm_of(host)
    assert vm.promise is not None
    whole = Claim(
        carrier=vm.promise.vgpus[0].gpu,
        backend=Backend.PASSTHROUGH,
        gpu=vm.promise.vgpus[0].gpu,
        function=vm.promise.vgpus[0].gpu,
        vm=SETTING_UP,
        vm_uuid=host.world.new_uuid(),
        profile=None,
        framebuffer_mib=None,
        process=host.world.processes.this(),
        command="vgpuctl set-mode",
    )
    host.world.claims.add(whole)
    with pytest.raises(Busy, match=r"sets 0000:3b:00\.0 up"):
        missing_devices(host.world, vm, vm.promise)
    host.world.claims.remove(whole.carrier, whole.vm_uuid)
    assert not missing_devices(host.world, vm, vm.promise)
