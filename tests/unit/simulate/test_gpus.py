# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a replay: those of a host, empty or in their current state, once or many times."""

from __future__ import annotations

from tests.values import A4C, A5C, a100, snapshot, t4, taken
from vgpuctl.model.gpu import Backend, VgpuType
from vgpuctl.simulate.gpus import list_simulated_gpus
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


def test_a_pool_of_unknown_size_is_left_out_while_vgpus_use_it() -> None:
    """The driver says how many more fit; how many an empty GPU takes is not known."""
    small = VgpuType("vnpu-vir01", "vir01", "vir01", 3072)
    gpu = replace(t4(available={"vnpu-vir01": 3}), types=(small,), vendor_id="19e5", framebuffer_mib=24576)
    used = snapshot(gpu, vgpus=(taken(gpu, small),))
    assert "is not known" in list_simulated_gpus(used).excluded_gpus[gpu.address]
    assert len(list_simulated_gpus(used, keep_vgpus=True).gpus) == len(list_simulated_gpus(snapshot(gpu)).gpus) == 1


def test_kinds_that_are_of_no_use_go_with_their_gpus() -> None:
    other = a100(SECOND, types=(A5C,), framebuffer_mib=40960)
    result = list_simulated_gpus(snapshot(a100(framebuffer_mib=40960), other))
    useful = ["A100-4C" in kind.sizes for kind in result.kinds]
    assert sum(useful) == 1
    assert len(result.keep_kinds(useful).gpus) == 1


def test_gpus_are_counted_by_kind() -> None:
    small = a100(SECOND, model="NVIDIA A16", types=(A5C,), framebuffer_mib=16384)
    result = list_simulated_gpus(snapshot(a100(framebuffer_mib=40960), small), host_count=3)
    assert [(row.model, row.count, row.framebuffer_mib) for row in result.count_by_kind()] == [
        ("NVIDIA A100-PCIE-40GB", 3, 40960),
        ("NVIDIA A16", 3, 16384),
    ]
    assert [row.model for row in result.keep_kinds([False, True]).count_by_kind()] == ["NVIDIA A16"]


def test_a_gpu_whose_framebuffer_is_unknown_is_left_out() -> None:
    plain_vfs = a100(SECOND, backend=Backend.SRIOV_VF, types=(), framebuffer_mib=None)
    result = list_simulated_gpus(snapshot(a100(), plain_vfs))
    assert len(result.gpus) == 1
    assert result.excluded_gpus == {SECOND: "its framebuffer is not known"}
