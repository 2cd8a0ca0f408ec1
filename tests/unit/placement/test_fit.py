# SPDX-License-Identifier: Apache-2.0
"""Several profiles on observed GPUs: slots if they fit, reasons if they do not, and no guess."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.unit.gpu.test_gpu_instances import H1
from tests.unit.gpu.test_gpu_instances import host as instances_host
from tests.unit.gpu.test_mixed_size import gpu as mixed
from tests.values import A4C, A5C, T4Q, a100, assigned, snapshot, t4, taken, vm
from vgpuctl.errors import NotFound
from vgpuctl.placement.fit import check_fit
from vgpuctl.value import replace


def test_each_gets_a_gpu_when_all_fit():
    one, two = a100(), a100("0000:86:00.0")
    result = check_fit(snapshot(one, two), (one, two), [("A100-4C", 4), ("A100-5C", 3), ("A100-4C", 6)])
    assert result.fits is True
    assert result.requested == {"A100-4C": 10, "A100-5C": 3}
    by_gpu = {(s.gpu.address, s.profile) for s in result.planned}
    assert len(result.planned) == 13
    assert len(by_gpu) == 2


def test_the_fewest_that_are_too_many_are_named_with_what_each_gpu_has_room_for():
    gpu = a100()
    result = check_fit(snapshot(gpu, vms=[vm(1, assigned(gpu, A4C))]), (gpu,), [("A100-4C", 3), ("A100-5C", 2)])
    assert result.fits is False
    assert result.excess == (("A100-5C", 2),)
    (barrier,) = result.rooms
    assert "it has 1 of another size" in barrier.room.reasons[0]


def test_on_a_mixed_size_gpu_each_gets_a_placement_and_no_two_overlap():
    gpu = mixed()
    types = sorted((t for t in gpu.types if t.placement_ids), key=lambda t: t.placement_size or 0)[:2]
    result = check_fit(snapshot(gpu), (gpu,), [(t.profile, 2) for t in types])
    assert result.fits is True
    sizes = {t.profile: t.placement_size or 0 for t in types}
    covered = [n for s in result.planned for n in range(s.placement_id or 0, (s.placement_id or 0) + sizes[s.profile])]
    assert len(covered) == len(set(covered)) == 2 * sum(sizes.values())


def test_fit_is_unknown_without_a_maximum():
    gpu = a100(types=(replace(A4C, max_per_gpu=None), A5C))
    result = check_fit(snapshot(gpu), (gpu,), [("A100-4C", 3)])
    assert result.fits is None
    assert "not known" in str(result.reason)


def test_a_cordoned_gpu_takes_nothing_and_says_so():
    gpu = replace(a100(), cordoned=True)
    result = check_fit(snapshot(gpu), (gpu,), [("A100-4C", 1)])
    assert result.fits is False
    assert "it is cordoned" in result.rooms[0].room.reasons[0]


def test_a_profile_of_any_model_counts_the_gpus_of_all():
    gpus = (a100(), t4(types=(replace(T4Q, name="GRID T4-4C", profile="T4-4C"),)))
    result = check_fit(snapshot(*gpus), gpus, [("4C", 13), ("GRID A100-4C", 1)])
    assert result.fits is True
    assert result.requested == {"4C": 13, "A100-4C": 1}
    assert Counter((s.gpu.address, s.profile) for s in result.planned) == {
        (gpus[0].address, "A100-4C"): 10,
        (gpus[1].address, "T4-4C"): 4,
    }
    few = check_fit(snapshot(*gpus), gpus, [("4C", 15)])
    assert (few.fits, few.excess) == (False, (("4C", 1),))
    assert [b.room.free for b in few.rooms] == [10, 4]


def test_a_profile_that_no_gpu_knows_is_refused():
    with pytest.raises(NotFound, match="A100-9C"):
        check_fit(snapshot(a100(), t4()), (a100(), t4()), [("A100-4C", 1), ("A100-9C", 1)])


def test_a_gpu_with_more_recorded_vgpus_than_instances_leaves_the_others_countable() -> None:
    """Its instances were made differently after the VMs were recorded."""
    over = instances_host(19, 19, 9)
    second = instances_host(9, 19)
    second = replace(second, address="0000:5e:00.0", functions=a100("0000:5e:00.0", second.types, vfs=48).functions)
    recorded = tuple(taken(over, H1, n, present=False) for n in range(3))
    result = check_fit(snapshot(over, second, vgpus=recorded), (over, second), [("H100-3-40C", 3), ("H100-1-10C", 2)])
    assert (result.fits, dict(result.excess)) == (False, {"H100-3-40C": 1, "H100-1-10C": 1})
