# SPDX-License-Identifier: Apache-2.0
"""Which places a VM has that reserves them only while it runs, and where it goes."""

from __future__ import annotations

import pytest

from tests.values import A4C, A5C, MACHINE, ME, T2Q, a100, changed, promised, snapshot, t4, vm, vm_uuid
from vgpuctl.capacity.ownership import carrier_uuid
from vgpuctl.errors import InUse, NoCapacity
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.vm import PromisedVgpu, Vm, VmState
from vgpuctl.plan.choose import choose
from vgpuctl.plan.claims import claims_for
from vgpuctl.plan.reserve import emptied, held, homeless, places, someday, wish_for
from vgpuctl.value import replace


def lent(number: int, *vgpus: PromisedVgpu, spec: str = "{}", state: VmState = VmState.STOPPED) -> Vm:
    """Return a VM that reserves these only while it runs."""
    made = vm(number, *vgpus)
    assert made.promise is not None
    return replace(made, state=state, promise=replace(made.promise, reserve="running", spec=spec))


def mdev(number: int, gpu: Gpu) -> PromisedVgpu:
    """Return a promised mdev of test VM `number`."""
    return promised(gpu, T2Q, carrier=carrier_uuid(vm_uuid(number), 0))


def test_nothing_is_held_without_a_claim_a_device_or_a_running_vm():
    gpu = a100()
    mine = lent(1, promised(gpu, A4C))
    assert mine.promise is not None
    seen = snapshot(gpu, vms=(mine,))
    assert held(seen, mine, mine.promise) == ()
    assert homeless(seen, mine, mine.promise) == mine.promise.vgpus
    claims = claims_for(mine.name, mine.promise, ME, "test")
    seen = snapshot(gpu, vms=(mine,), claims=claims)
    assert held(seen, mine, mine.promise) == mine.promise.vgpus
    runs = replace(mine, state=VmState.RUNNING)
    assert held(snapshot(gpu, vms=(runs,)), runs, mine.promise) == mine.promise.vgpus


def test_what_is_held_is_where_the_claim_is_not_where_the_record_says():
    here, there = t4(), t4("0000:af:00.0")
    mine = lent(1, mdev(1, here))
    assert mine.promise is not None
    moved = replace(mine.promise, vgpus=(mdev(1, there),))
    claims = claims_for(mine.name, moved, ME, "test")
    assert held(snapshot(here, there, vms=(mine,), claims=claims), mine, mine.promise) == moved.vgpus


def test_its_own_place_comes_first_and_then_any_other():
    gpu = a100()
    mine = lent(1, promised(gpu, A4C, 3))
    assert mine.promise is not None
    assert [v.function for v in places(snapshot(gpu, vms=(mine,)), mine, mine.promise)] == ["0000:3b:00.7"]
    other = vm(2, promised(gpu, A4C, 3))
    seen = snapshot(gpu, vms=(mine, other))
    assert [v.carrier for v in places(seen, mine, mine.promise)] == ["0000:3b:00.4"]
    with pytest.raises(
        InUse, match=r"vdi-001 reserves 0000:3b:00\.7 only while it runs, and vdi-002 has it"
    ) as refused:
        places(seen, mine, mine.promise, fixed=True)
    assert refused.value.hint == "vgpuctl start-vm vdi-001 gives it a free one"


def test_an_mdev_goes_anywhere_also_when_the_definition_is_fixed_but_becomes_no_function():
    here, there = t4(available={T2Q.type_id: 0}), t4("0000:af:00.0")
    mine = lent(1, mdev(1, here))
    assert mine.promise is not None
    (found,) = places(snapshot(here, there, vms=(mine,)), mine, mine.promise, fixed=True)
    assert (found.gpu, found.carrier) == ("0000:af:00.0", mine.promise.vgpus[0].carrier)
    other = a100(types=(replace(A4C, profile="T4-2Q", name="GRID T4-2Q", framebuffer_mib=2048),))
    with pytest.raises(NoCapacity):
        places(snapshot(here, other, vms=(mine,)), mine, mine.promise, fixed=True)


def test_the_gpu_that_was_typed_is_kept():
    here, there = t4(available={T2Q.type_id: 0}), t4("0000:af:00.0")
    mine = lent(1, mdev(1, here), spec='{"gpu": "0000:5e:00.0"}')
    assert mine.promise is not None
    assert wish_for(mine, mine.promise, mine.promise.vgpus).where.gpus == ("0000:5e:00.0",)
    with pytest.raises(NoCapacity):
        places(snapshot(here, there, vms=(mine,)), mine, mine.promise)


def test_what_an_excluded_gpu_had_goes_to_another_one():
    here, there = t4(), t4("0000:af:00.0")
    mine = lent(1, mdev(1, here))
    assert mine.promise is not None
    (found,) = places(snapshot(here, there, vms=(mine,)), mine, mine.promise, frozenset({here.address}))
    assert found.gpu == there.address


def test_someday_asks_only_what_the_host_could_do_with_nothing_on_it():
    gpu = a100(vfs=2)
    full = changed(changed(gpu, 0, current_type="469", available={}), 1, current_type="469", available={})
    seen = snapshot(replace(full, cordoned=True))
    wanted = wish_for(lent(1), lent(1).promise, (promised(gpu, A4C),))
    with pytest.raises(NoCapacity):
        choose(seen, wanted, vm_uuid(1))
    assert [v.profile for v in someday(seen, wanted, vm_uuid(1))] == ["A100-4C"]
    assert emptied(seen).vgpus == ()
    with pytest.raises(NoCapacity):
        someday(seen, replace(wanted, profiles=(("A100-4C", 3),)), vm_uuid(1))


def test_the_records_of_others_take_nothing_and_a_kept_place_is_never_lent():
    gpu = a100(vfs=1)
    away = lent(1, promised(gpu, A4C))
    mine = lent(2, promised(gpu, A4C))
    assert mine.promise is not None
    assert places(snapshot(gpu, vms=(away, mine)), mine, mine.promise) == mine.promise.vgpus
    kept = vm(3, promised(gpu, A5C))
    with pytest.raises(NoCapacity):
        places(snapshot(gpu, vms=(kept, mine)), mine, mine.promise)
    assert kept.promise is not None
    assert kept.promise.machine_id == MACHINE


def test_why_a_function_that_nobody_has_cannot_be_had_is_said():
    gpu = a100(types=(A4C,), vfs=12)
    others = [vm(n, promised(gpu, A4C, n - 1)) for n in range(2, 12)]
    mine = lent(1, promised(gpu, A4C, 0))
    assert mine.promise is not None
    with pytest.raises(InUse, match="10 of 10 in use"):
        places(snapshot(gpu, vms=(mine, *others)), mine, mine.promise, fixed=True)
    with pytest.raises(InUse, match="it is cordoned"):
        places(snapshot(replace(gpu, cordoned=True), vms=(mine,)), mine, mine.promise, fixed=True)
