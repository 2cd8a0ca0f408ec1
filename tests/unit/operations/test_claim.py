# SPDX-License-Identifier: Apache-2.0
"""What happens under the lock: observe again, choose, claim; and how claims and devices are taken over or made again.

What the hook makes is in the hook's tests.
"""

from __future__ import annotations

import pytest

from tests.faults import CHANGING, counted, failing
from tests.hosts import SimulatedHost, context, create, living_operation, open_sim_host, picture, request, take_over
from tests.meanwhile import on_call, rebooted, unchanged
from tests.reserving_vms import small, vm_of
from tests.unit.operations.test_ensure_vms import ensure, names
from tests.values import A4C, a100, assigned, claim
from vgpuctl.errors import Busy, Failed, NoCapacity
from vgpuctl.model.vm import RecordState, Vm
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.devices import has_missing_devices, make_devices
from vgpuctl.operations.guards import GPU_SETUP_CLAIM
from vgpuctl.value import replace


def test_a_gpu_that_filled_up_before_the_lock_gives_no_capacity(tmp_path, host):
    other = open_sim_host(tmp_path).ports
    ports = on_call(host.ports, "claims.lock", lambda: create(other, request("A100-8C", 5)), nth=1)
    with pytest.raises(NoCapacity):
        create(ports, request("A100-8C"))
    assert len(host.ports.claims.all()) == 5


def test_of_two_who_want_a_whole_gpu_of_a_model_at_once_each_gets_one(tmp_path):
    host = open_sim_host(tmp_path, text="version: 1\ngpus:\n  - {model: RTX 4090}\n  - {model: RTX 4090}\n")
    other = open_sim_host(tmp_path, host.scenario).ports
    whole = request(mode="passthrough", gpu="10de:2684")
    ports = on_call(host.ports, "claims.lock", lambda: create(other, replace(whole, name="other")), nth=1)
    create(ports, whole)
    assert len({v.gpu for v in observe(host.ports, ReadScope()).vgpus}) == 2


@pytest.mark.parametrize("many", [False, True])
def test_a_gpu_that_host_yaml_closed_between_the_look_and_the_lock_is_not_used(tmp_path, many):
    host, profile = small(tmp_path, "vendor-vf", 2)
    first, second = (g.address for g in observe(host.ports, ReadScope()).gpus)
    closed = f'version: 1\ngpus:\n  "{first}": {{cordoned: true}}\n'
    ports = on_call(host.ports, "claims.lock", lambda: host.sim.host_file.write_text(closed), nth=1)
    if many:
        ensure(ports, request(profile), names(2))
    else:
        create(ports, request(profile))
    assert {v.gpu for v in observe(host.ports, ReadScope()).vgpus} == {second}


def test_claims_of_a_dead_process_are_taken_over_and_lost_ones_rewritten(ports):
    one, two = (claim(assigned(a100(), A4C, n), 1, ports.operations.current().id) for n in range(2))
    ports.claims.add(replace(one, operation=None))
    assert [step.claim for step in take_over(ports, (one, two), 0)] == [two]
    assert ports.claims.all() == (one, two)


def test_a_lost_claim_stays_lost_on_request(ports):
    assert take_over(ports, (claim(assigned(a100(), A4C), 1),), 0, include_missing=False) == ()
    assert ports.claims.all() == ()


def test_claims_of_a_live_process_are_refused_with_its_pid_and_command(host):
    mine = claim(assigned(a100(), A4C), 1, living_operation(host.ports).id)
    host.ports.claims.add(mine)
    with pytest.raises(Busy) as raised:
        take_over(host.ports, (replace(mine, operation=host.ports.operations.current().id),), 0)
    assert raised.value.facts["pid"] == mine.process.pid
    assert mine.command in str(raised.value)


def test_a_claim_of_another_vm_is_refused_with_its_name(ports):
    ports.claims.add(claim(assigned(a100(), A4C), 2, None))
    with pytest.raises(Busy) as raised:
        take_over(ports, (claim(assigned(a100(), A4C), 1),), 0)
    assert "vdi-002" in str(raised.value)


def test_when_one_claim_cannot_be_taken_over_all_are_as_before(tmp_path):
    gpu = a100()
    both = tuple(claim(assigned(gpu, A4C, n), 1) for n in range(2))

    def prepared(name):
        ports = open_sim_host(tmp_path / name).ports
        for one in both:
            ports.claims.add(replace(one, operation="dead"))
        return ports

    calls = counted(prepared("dry"), lambda w: take_over(w, both, 0))
    numbers = [n for n, call in enumerate(calls, 1) if call in CHANGING]
    assert len(numbers) == 2
    for number in numbers:
        ports = prepared(str(number))
        before = ports.claims.all()
        with pytest.raises(Failed) as raised:
            take_over(failing(ports, number), both, 0)
        assert raised.value.facts["errno"]
        assert ports.claims.all() == before


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
    with unchanged(host), pytest.raises(NoCapacity, match="no room for T4-16Q"):
        make(host, vm)


def test_a_vm_that_is_half_made_is_left_to_reconcile(host, vm):
    with pytest.raises(Busy, match="is half deleted"):
        make(host, replace(vm, record=replace(vm.record, state=RecordState.REMOVING)))


def test_nothing_is_let_pass_while_its_gpu_is_being_set_up(host, vm):
    operation = living_operation(host.ports)
    (vgpu,) = vm.record.vgpus
    whole = replace(
        claim(replace(vgpu, carrier=vgpu.gpu, function=vgpu.gpu), 2, operation.id),
        vm=GPU_SETUP_CLAIM,
        process=operation.process,
    )
    host.ports.claims.add(whole)
    with pytest.raises(Busy, match=r"is setting up 0000:3b:00\.0"):
        has_missing_devices(host.ports, vm, vm.record)
    host.ports.claims.remove(whole.carrier, whole.vm_uuid)
    assert not has_missing_devices(host.ports, vm, vm.record)
