# SPDX-License-Identifier: Apache-2.0
"""A VM's missing devices and claims are made again without libvirt, or refused; more is in the hook's tests."""

from __future__ import annotations

import pytest

from tests.hosts import SimulatedHost, context, create, living_operation, open_sim_host, picture, rebooted, request
from tests.reserving_vms import vm_of
from vgpuctl.errors import Busy, NoCapacity
from vgpuctl.model.gpu import Backend
from vgpuctl.model.vm import Claim, RecordState, Vm
from vgpuctl.operations.devices import has_missing_devices, make_devices
from vgpuctl.operations.guards import GPU_SETUP_CLAIM
from vgpuctl.value import replace


def make(host: SimulatedHost, vm: Vm) -> tuple[str, ...]:
    assert vm.record is not None
    return make_devices(host.ports, context(wait_seconds=5), vm, vm.record, (vm,)).steps


@pytest.fixture
def vm(host: SimulatedHost) -> Vm:
    create(host.ports, request("A100-4C", name="vm"), start=False)
    return vm_of(host, "vm")


def test_a_claim_alone_that_is_missing_is_written_again(host, vm):
    before = picture(host)
    host.ports.claims.remove(vm.record.vgpus[0].carrier, vm.uuid)
    assert has_missing_devices(host.ports, vm, vm.record)
    make(host, vm)
    assert picture(host) == before
    assert not has_missing_devices(host.ports, vm, vm.record)


def test_a_gpu_that_others_filled_says_no_room_with_the_numbers(tmp_path):
    host = open_sim_host(tmp_path, "t4")
    create(host.ports, request("T4-16Q", name="vm"), start=False)
    host = rebooted(host)
    vm = vm_of(host, "vm")
    t4_8q = f"/sys/bus/pci/devices/{vm.record.vgpus[0].gpu}/mdev_supported_types/nvidia-233"
    host.ports.sysfs.write(f"{t4_8q}/create", f"{host.ports.new_uuid()}\n")
    before = picture(host)
    with pytest.raises(NoCapacity, match="no room for T4-16Q"):
        make(host, vm)
    assert picture(host) == before


def test_a_vm_that_is_half_made_is_left_to_reconcile(host, vm):
    with pytest.raises(Busy, match="is unfinished"):
        make(host, replace(vm, record=replace(vm.record, state=RecordState.REMOVING)))


def test_nothing_is_let_pass_while_its_gpu_is_being_set_up(host, vm):
    operation = living_operation(host.ports)
    gpu = vm.record.vgpus[0].gpu
    whole = Claim(
        carrier=gpu,
        backend=Backend.PASSTHROUGH,
        gpu=gpu,
        function=gpu,
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
