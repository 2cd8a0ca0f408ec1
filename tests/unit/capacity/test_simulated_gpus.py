# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a replay: those of a host, empty or in their current state, once or many times."""

from __future__ import annotations

from tests.unit.capacity.test_gpu_instances import H1, H3, host
from tests.values import A4C, A5C, a100, snapshot, taken
from vgpuctl.capacity.mig_on_demand import make_on_demand_gpu
from vgpuctl.capacity.simulated_gpus import list_simulated_gpus
from vgpuctl.placement.slice_kind import SliceKind
from vgpuctl.value import replace

SECOND = "0000:5e:00.0"


def one() -> object:
    gpu = a100(framebuffer_mib=40960)
    return snapshot(gpu, a100(SECOND, framebuffer_mib=40960), vgpus=(taken(gpu, A4C, 0), taken(gpu, A4C, 1)))


def test_gpus_are_taken_as_empty() -> None:
    result = list_simulated_gpus(one())
    assert [gpu.group.state for gpu in result.gpus] == [result.kinds[g.group.kind_index].empty for g in result.gpus]
    assert (result.framebuffer_mib, result.used_mib) == (2 * 40960, (0, 0))
    assert all(kind.count_remaining(kind.empty, "A100-4C") == 10 for kind in result.kinds)
    fleet = result.make_fleet(result.kinds)
    assert [fleet.vgpu_count(n) for n in range(2)] == [0, 0]


def test_existing_vgpus_are_kept_on_request() -> None:
    result = list_simulated_gpus(one(), keep_vgpus=True)
    assert result.used_mib == (8192, 0)
    fleet = result.make_fleet(result.kinds)
    assert [fleet.vgpu_count(n) for n in range(2)] == [2, 0]
    lefts = [fleet.kind_of(fleet.group_of(n)).count_remaining(fleet.group_of(n).state, "A100-4C") for n in range(2)]
    assert lefts == [8, 10]
    assert not fleet.kind_of(fleet.group_of(0)).count_remaining(fleet.group_of(0).state, "A100-5C")


def test_many_hosts_are_the_same_gpus_again() -> None:
    once, result = (
        list_simulated_gpus(one(), keep_vgpus=True),
        list_simulated_gpus(one(), keep_vgpus=True, host_count=3),
    )
    assert result.gpus == once.gpus * 3
    assert result.framebuffer_mib == 3 * once.framebuffer_mib


def test_a_gpu_that_takes_nothing_new_is_left_out_with_the_reason() -> None:
    result = list_simulated_gpus(snapshot(a100(), a100(SECOND, cordoned=True)))
    assert len(result.gpus) == 1
    assert "it is cordoned" in result.excluded_gpus[SECOND]


def test_kinds_that_are_of_no_use_go_with_their_gpus() -> None:
    other = a100(SECOND, types=(A5C,), framebuffer_mib=40960)
    result = list_simulated_gpus(snapshot(a100(framebuffer_mib=40960), other))
    useful = ["A100-4C" in kind.sizes for kind in result.kinds]
    assert sum(useful) == 1
    assert len(result.keep_kinds(useful).gpus) == 1


def test_each_kind_is_called_as_its_gpus() -> None:
    result = list_simulated_gpus(
        snapshot(a100(model="NVIDIA A100-PCIE-40GB"), a100(SECOND, model="NVIDIA A16", types=(A5C,)))
    )
    assert [[it("A100"), it("A16")] for it in result.model_matchers] == [[True, False], [False, True]]


def test_instances_come_with_the_vgpus_where_they_are_made_on_demand() -> None:
    gpu = replace(host(19), framebuffer_mib=81920)
    (kept,), (made,) = (
        list_simulated_gpus(snapshot(gpu)).kinds,
        list_simulated_gpus(snapshot(gpu), instances_on_demand=True).kinds,
    )
    assert (kept.count_remaining(kept.empty, H1.profile), kept.count_remaining(kept.empty, H3.profile)) == (1, 0)
    assert (made.count_remaining(made.empty, H1.profile), made.count_remaining(made.empty, H3.profile)) == (7, 2)
    assert isinstance(made, SliceKind)
    assert made.fits(made.empty, {H1.profile: 3, H3.profile: 1})
    assert not made.fits(made.empty, {H1.profile: 5, H3.profile: 1})
    unknown = list_simulated_gpus(snapshot(replace(gpu, framebuffer_mib=None)), instances_on_demand=True)
    assert (unknown.gpus, list(unknown.excluded_gpus)) == ((), [gpu.address])
    plain = a100(SECOND)
    assert make_on_demand_gpu(plain) is None
    assert len(list_simulated_gpus(snapshot(gpu, plain), instances_on_demand=True, host_count=2).gpus) == 4
