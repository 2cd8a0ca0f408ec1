# SPDX-License-Identifier: Apache-2.0
"""The GPUs that a replay is on: those of a host, empty or as they are, once or many times."""

from __future__ import annotations

from tests.unit.capacity.test_gpu_instances import H1, H3, host
from tests.values import A4C, A5C, a100, snapshot, taken
from vgpuctl.capacity.on_demand import on_demand
from vgpuctl.capacity.site import site
from vgpuctl.placement.slots import Slots
from vgpuctl.value import replace

SECOND = "0000:5e:00.0"


def one() -> object:
    gpu = a100(framebuffer_mib=40960)
    return snapshot(gpu, a100(SECOND, framebuffer_mib=40960), vgpus=(taken(gpu, A4C, 0), taken(gpu, A4C, 1)))


def test_gpus_are_taken_as_empty() -> None:
    found = site(one())
    assert [gpu.group.state for gpu in found.gpus] == [found.kinds[g.group.kind].empty for g in found.gpus]
    assert (found.framebuffer_mib, found.used_mib) == (2 * 40960, (0, 0))
    assert all(kind.left(kind.empty, "A100-4C") == 10 for kind in found.kinds)
    fleet = found.fleet(found.kinds)
    assert [fleet.vgpus(n) for n in range(2)] == [0, 0]


def test_what_is_there_is_kept_when_it_is_asked_for() -> None:
    found = site(one(), keep=True)
    assert found.used_mib == (8192, 0)
    fleet = found.fleet(found.kinds)
    assert [fleet.vgpus(n) for n in range(2)] == [2, 0]
    lefts = [fleet.kind(fleet.group_of(n)).left(fleet.group_of(n).state, "A100-4C") for n in range(2)]
    assert lefts == [8, 10]
    assert not fleet.kind(fleet.group_of(0)).left(fleet.group_of(0).state, "A100-5C")


def test_many_hosts_are_the_same_gpus_again() -> None:
    once, found = site(one(), keep=True), site(one(), keep=True, hosts=3)
    assert found.gpus == once.gpus * 3
    assert found.framebuffer_mib == 3 * once.framebuffer_mib


def test_a_gpu_that_takes_nothing_new_is_left_out_with_the_reason() -> None:
    found = site(snapshot(a100(), a100(SECOND, cordoned=True)))
    assert len(found.gpus) == 1
    assert "it is cordoned" in found.left_out[SECOND]


def test_kinds_that_are_of_no_use_go_with_their_gpus() -> None:
    other = a100(SECOND, types=(A5C,), framebuffer_mib=40960)
    found = site(snapshot(a100(framebuffer_mib=40960), other))
    useful = ["A100-4C" in kind.sizes for kind in found.kinds]
    assert sum(useful) == 1
    assert len(found.only(useful).gpus) == 1


def test_each_kind_is_called_as_its_gpus() -> None:
    found = site(snapshot(a100(model="NVIDIA A100-PCIE-40GB"), a100(SECOND, model="NVIDIA A16", types=(A5C,))))
    assert [[it("A100"), it("A16")] for it in found.called] == [[True, False], [False, True]]


def test_instances_come_with_the_vgpus_where_they_are_made_on_demand() -> None:
    gpu = replace(host(19), framebuffer_mib=81920)
    (kept,), (made,) = site(snapshot(gpu)).kinds, site(snapshot(gpu), instances_on_demand=True).kinds
    assert (kept.left(kept.empty, H1.profile), kept.left(kept.empty, H3.profile)) == (1, 0)
    assert (made.left(made.empty, H1.profile), made.left(made.empty, H3.profile)) == (7, 2)
    assert isinstance(made, Slots)
    assert made.fits(made.empty, {H1.profile: 3, H3.profile: 1})
    assert not made.fits(made.empty, {H1.profile: 5, H3.profile: 1})
    unknown = site(snapshot(replace(gpu, framebuffer_mib=None)), instances_on_demand=True)
    assert (unknown.gpus, list(unknown.left_out)) == ((), [gpu.address])
    plain = a100(SECOND)
    assert on_demand(plain) is None
    assert len(site(snapshot(gpu, plain), instances_on_demand=True, hosts=2).gpus) == 4
