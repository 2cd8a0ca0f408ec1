# SPDX-License-Identifier: Apache-2.0
"""MIG and mixed-size (heterogeneous) mode: what NVML refuses, which types a VF lists, and where a vGPU is placed.

Sources of the numbers: the errors of each call in nvml.h, NVIDIA's MIG and vGPU guides, the open kernel modules
(kernel_vgpu_mgr.c) and the vGPU driver's VFIO interface.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

import pytest

from tests.contract.site import MDEV, Site, new_uuid
from vgpuctl.errors import NvmlFailed
from vgpuctl.model.gpu import MigState, PlacementSpan
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec, SchedulerState

pytestmark = pytest.mark.forms("mdev-vf", "vendor-vf")
INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, IN_USE, INSUFFICIENT_RESOURCES = 2, 3, 6, 19, 23
BEST_EFFORT = SchedulerState(SchedulerPolicy.BEST_EFFORT)
TIME_SLICED = ["468", "469", "470", "471", "472", "473"]
ONE, ONE_BIG, TWO, THREE, FOUR, SEVEN = 19, 15, 14, 9, 5, 0
"""GPU instance profiles of the A100 40GB: 1g.5gb, 1g.10gb, 2g.10gb, 3g.20gb, 4g.20gb, 7g.40gb."""


@pytest.fixture(autouse=True)
def back(site: Site) -> Iterator[None]:
    """Restore the initial state afterwards: no vGPU, MIG off, mixed-size mode off, VFs on."""
    yield
    for vf in site.vfs:
        clear(site, vf)
    gpu = site.nvml_gpu()
    other_scheduler = gpu.scheduler is not None and gpu.scheduler.state != BEST_EFFORT
    if gpu.mig is not None and (gpu.mig.enabled or gpu.mig.pending_enabled or other_scheduler):
        sriov_manage(site, "-d")
        site.ports.nvml.set_mig(site.gpu, enabled=False)
    elif gpu.mixed_size:
        site.ports.nvml.set_mixed_size(site.gpu, enabled=False)
    sriov_manage(site, "-e")  # fast if the VFs are already on


def mig(site: Site) -> MigState:
    result = site.nvml_gpu().mig
    assert result is not None
    return result


def sriov_manage(site: Site, flag: str) -> None:
    result = site.ports.vendor_commands.sriov_manage(flag, site.gpu, deadline_seconds=60)
    assert result.status == 0, result.text


def turn_mig_on(site: Site) -> None:
    sriov_manage(site, "-d")
    site.ports.nvml.set_mig(site.gpu, enabled=True)
    sriov_manage(site, "-e")


def refusal(call: Callable[[], object]) -> object:
    """The NVML error code of a call that must fail."""
    with pytest.raises(NvmlFailed) as raised:
        call()
    return raised.value.facts["nvml_code"]


def listed(site: Site, vf: str) -> list[str]:
    """The numbers of the types that can be created on a VF now."""
    if site.form == "vendor-vf":
        text = site.ports.sysfs.read(site.type_file(vf, "creatable_vgpu_types"))
        result = [line.split(":")[0].strip() for line in text.splitlines()]
        return sorted(number for number in result if number.isdigit())
    kinds = site.ports.sysfs.listdir(f"/sys/bus/pci/devices/{vf}/mdev_supported_types")
    creatable = [k for k in kinds if site.ports.sysfs.read(site.mdev_file(vf, k, "available_instances")).strip() == "1"]
    return sorted(kind.removeprefix("nvidia-") for kind in creatable)


def refused(site: Site, vf: str, number: str) -> int | None:
    """The errno of creating a vGPU, or None on success."""
    if site.form == "vendor-vf":
        return site.refused(site.type_file(vf), f"{number}\n")
    return site.refused(site.mdev_file(vf, f"nvidia-{number}", "create"), f"{new_uuid()}\n")


def make(site: Site, vf: str, number: str) -> None:
    assert refused(site, vf, number) is None


def clear(site: Site, vf: str) -> None:
    if site.form == "vendor-vf":
        if site.ports.sysfs.read(site.type_file(vf)).strip() != "0":
            site.ports.sysfs.write_uninterruptible(site.type_file(vf), "0\n", gpu=site.gpu, deadline_seconds=20)
        return
    directory = f"/sys/bus/pci/devices/{vf}/mdev_supported_types"
    for kind in site.ports.sysfs.listdir(directory):
        for device in site.ports.sysfs.listdir(f"{directory}/{kind}/devices"):
            site.remove(device)


def read_vf_file(site: Site, vf: str, name: str) -> str:
    return site.ports.sysfs.read(site.type_file(vf, name)).strip()


def placement_file(site: Site, vf: str) -> str:
    """The placement_id file of the vGPU on a VF: a file of the VF or of its mdev."""
    if site.form == "vendor-vf":
        return site.type_file(vf, "placement_id")
    return f"{MDEV}/{mdev_on(site, vf)}/nvidia/placement_id"


def mdev_on(site: Site, vf: str) -> str:
    directory = f"/sys/bus/pci/devices/{vf}/mdev_supported_types"
    kinds = site.ports.sysfs.listdir(directory)
    (device,) = (d for kind in kinds for d in site.ports.sysfs.listdir(f"{directory}/{kind}/devices"))
    return device


def placement_of(site: Site, vf: str) -> str:
    return site.ports.sysfs.read(placement_file(site, vf)).strip()


# --------------------------------------------------------------------------- MIG


def test_a_gpu_has_mig_profiles_and_placements(site: Site) -> None:
    result = mig(site)
    assert (result.enabled, result.pending_enabled, result.instances) == (False, False, ())
    assert {p.profile_id: (p.name, p.compute_slices, p.max_instances, p.memory_mib) for p in result.profiles} == {
        19: ("1g.5gb", 1, 7, 4864),
        20: ("1g.5gb+me", 1, 1, 4864),
        15: ("1g.10gb", 1, 4, 9856),
        14: ("2g.10gb", 2, 3, 9856),
        9: ("3g.20gb", 3, 2, 19968),
        5: ("4g.20gb", 4, 1, 19968),
        0: ("7g.40gb", 7, 1, 40192),
    }
    places = {p.profile_id: p.placements for p in result.profiles}
    assert places[ONE] == tuple(PlacementSpan(start, 1) for start in range(7))
    assert (places[ONE_BIG], places[TWO]) == (
        tuple(PlacementSpan(s, 2) for s in (0, 2, 4, 6)),
        (PlacementSpan(0, 2), PlacementSpan(2, 2), PlacementSpan(4, 2)),
    )
    assert (places[THREE], places[FOUR], places[SEVEN]) == (
        (PlacementSpan(0, 4), PlacementSpan(4, 4)),
        (PlacementSpan(0, 4),),
        (PlacementSpan(0, 8),),
    )


def test_types_have_their_gpu_instance_profile(site: Site) -> None:
    types = site.nvml_gpu().types
    assert {n: types[n].gi_profile_id for n in (468, 474, 475, 476, 477, 478, 1053)} == {
        468: None, 474: ONE, 475: TWO, 476: THREE, 477: FOUR, 478: SEVEN, 1053: ONE_BIG,
    }  # fmt: skip
    assert (types[474].max_per_gi, types[474].placement_ids) == (1, None)


def test_mig_cannot_change_while_vfs_are_on(site: Site) -> None:
    assert refusal(lambda: site.ports.nvml.set_mig(site.gpu, enabled=True)) == IN_USE
    assert (mig(site).enabled, mig(site).pending_enabled) == (False, False)
    site.ports.nvml.set_mig(site.gpu, enabled=False)


def test_without_mig_there_are_no_instances_and_no_types_for_them(site: Site) -> None:
    assert refusal(lambda: site.ports.nvml.create_gpu_instance(site.gpu, ONE, 0)) == NOT_SUPPORTED
    assert refusal(lambda: site.ports.nvml.destroy_gpu_instance(site.gpu, 1)) == NOT_SUPPORTED
    assert listed(site, site.vfs[0]) == TIME_SLICED
    assert refused(site, site.vfs[0], "474") == errno.EIO


def test_mig_without_instances_lists_no_types_and_mig_outlives_the_vfs_but_instances_do_not(site: Site) -> None:
    turn_mig_on(site)
    assert (mig(site).enabled, mig(site).pending_enabled) == (True, True)
    assert listed(site, site.vfs[0]) == []
    assert refused(site, site.vfs[0], "468") == errno.EIO
    site.ports.nvml.create_gpu_instance(site.gpu, THREE, 4)
    assert [(i.profile_id, i.placement) for i in mig(site).instances] == [(THREE, PlacementSpan(4, 4))]
    sriov_manage(site, "-d")
    sriov_manage(site, "-e")
    assert (mig(site).enabled, mig(site).instances) == (True, ())


def test_an_instance_holds_one_vgpu_of_its_type(site: Site) -> None:
    turn_mig_on(site)
    site.ports.nvml.create_gpu_instance(site.gpu, THREE, 4)
    site.ports.nvml.create_gpu_instance(site.gpu, ONE, 0)
    first, second, third = site.vfs[:3]
    assert listed(site, first) == ["474", "476"]
    make(site, first, "474")
    assert (listed(site, first), listed(site, second)) == ([], ["476"])
    assert refused(site, second, "474") == errno.EIO
    make(site, second, "476")
    assert listed(site, third) == []
    clear(site, first)
    assert listed(site, third) == ["474"]


def test_an_instance_at_an_invalid_or_occupied_placement_is_refused(site: Site) -> None:
    turn_mig_on(site)
    site.ports.nvml.create_gpu_instance(site.gpu, TWO, 2)

    def code(profile_id: int, start: int) -> object:
        return refusal(lambda: site.ports.nvml.create_gpu_instance(site.gpu, profile_id, start))

    assert (code(99, 0), code(TWO, 1), code(THREE, 2)) == (INVALID_ARGUMENT,) * 3
    assert (code(TWO, 2), code(ONE, 3), code(FOUR, 0), code(SEVEN, 0)) == (INSUFFICIENT_RESOURCES,) * 4
    site.ports.nvml.create_gpu_instance(site.gpu, THREE, 4)
    assert len(mig(site).instances) == 2


def test_destroying_an_instance_with_a_vgpu_or_a_missing_one_is_refused(site: Site) -> None:
    turn_mig_on(site)
    number = site.ports.nvml.create_gpu_instance(site.gpu, ONE, 0)
    make(site, site.vfs[0], "474")
    assert refusal(lambda: site.ports.nvml.destroy_gpu_instance(site.gpu, number)) == IN_USE
    assert refusal(lambda: site.ports.nvml.destroy_gpu_instance(site.gpu, number + 1)) == NOT_FOUND
    clear(site, site.vfs[0])
    site.ports.nvml.destroy_gpu_instance(site.gpu, number)
    assert mig(site).instances == ()


def test_mig_allows_neither_another_scheduler_nor_mixed_sizes(site: Site) -> None:
    turn_mig_on(site)
    assert (
        refusal(lambda: site.ports.nvml.set_scheduler(site.gpu, SchedulerSpec(SchedulerPolicy.EQUAL_SHARE)))
        == NOT_SUPPORTED
    )
    assert refusal(lambda: site.ports.nvml.set_mixed_size(site.gpu, enabled=True)) == NOT_SUPPORTED
    number = site.ports.nvml.create_gpu_instance(site.gpu, ONE, 0)
    spec = SchedulerSpec(SchedulerPolicy.EQUAL_SHARE)
    assert refusal(lambda: site.ports.nvml.set_scheduler(site.gpu, spec, number)) == NOT_SUPPORTED
    gpu = site.nvml_gpu()
    assert (gpu.gi_schedulers, gpu.mixed_size) == ({}, None)
    assert gpu.scheduler is not None
    assert gpu.scheduler.state == SchedulerState(SchedulerPolicy.FIXED_SHARE, False, 1_000_000)


@pytest.mark.forms("vendor-vf")
def test_a_vgpu_moves_only_to_a_free_instance_of_the_same_profile(site: Site) -> None:
    turn_mig_on(site)
    numbers = [site.ports.nvml.create_gpu_instance(site.gpu, ONE, start) for start in (0, 1, 2)]
    other = site.ports.nvml.create_gpu_instance(site.gpu, THREE, 4)
    first, second = site.vfs[:2]
    path = site.type_file(first, "gpu_instance_id")
    make(site, first, "474")
    make(site, second, "474")
    own, taken = int(read_vf_file(site, first, "gpu_instance_id")), int(read_vf_file(site, second, "gpu_instance_id"))
    assert [own, taken] == sorted(numbers)[:2], "the driver takes the lowest that has room"
    (free,) = set(numbers) - {own, taken}
    assert [site.refused(path, f"{number}\n") for number in (taken, other, 77)] == [errno.EIO] * 3
    assert site.refused(path, "x\n") == errno.EINVAL
    assert site.refused(path, f"{free}\n") is None
    assert read_vf_file(site, first, "gpu_instance_id") == str(free)
    assert refusal(lambda: site.ports.nvml.destroy_gpu_instance(site.gpu, free)) == IN_USE
    site.ports.nvml.destroy_gpu_instance(site.gpu, own)


@pytest.mark.forms("vendor-vf")
@pytest.mark.parametrize("name", ["gpu_instance_id", "placement_id"])
def test_a_vf_without_a_vgpu_has_no_instance_and_no_placement(site: Site, name: str) -> None:
    path = site.type_file(site.vfs[0], name)
    with pytest.raises(OSError, match=r".") as raised:
        site.ports.sysfs.read(path)
    assert raised.value.errno == errno.ENXIO
    assert site.refused(path, "0\n") == errno.ENXIO


# ------------------------------------------------------------------- mixed sizes


def test_in_mixed_size_mode_types_have_placements(site: Site) -> None:
    assert site.nvml_gpu().types[468].placement_ids is None
    before = site.ports.nvml.placements(site.gpu)
    site.ports.nvml.set_mixed_size(site.gpu, enabled=True)
    assert site.ports.nvml.placements(site.gpu) == before, "who asks is told before, too"
    assert [str(span) for span in before[470]] == ["0:8", "12:8", "20:8", "32:8"]
    types = site.nvml_gpu().types
    assert {n: (types[n].placement_ids, types[n].placement_size) for n in (468, 469, 470, 471, 472, 473)} == {
        468: ((0, 6, 10, 16, 20, 26, 30, 36), 4),
        469: ((0, 5, 10, 15, 20, 25, 30, 35), 5),
        470: ((0, 12, 20, 32), 8),
        471: ((0, 10, 20, 30), 10),
        472: ((0, 20), 20),
        473: ((0,), 40),
    }


def test_mixed_size_mode_starts_only_without_vgpus_and_ends_with_the_vfs(site: Site) -> None:
    assert site.nvml_gpu().mixed_size is False
    make(site, site.vfs[0], "468")
    assert refusal(lambda: site.ports.nvml.set_mixed_size(site.gpu, enabled=True)) == IN_USE
    clear(site, site.vfs[0])
    site.ports.nvml.set_mixed_size(site.gpu, enabled=True)
    assert site.nvml_gpu().mixed_size is True
    sriov_manage(site, "-d")
    assert refusal(lambda: site.ports.nvml.set_mixed_size(site.gpu, enabled=True)) == NOT_SUPPORTED
    sriov_manage(site, "-e")
    assert site.nvml_gpu().mixed_size is False


def test_mixed_size_mode_refuses_only_the_fixed_share_scheduler(site: Site) -> None:
    site.ports.nvml.set_mixed_size(site.gpu, enabled=True)
    assert (
        refusal(lambda: site.ports.nvml.set_scheduler(site.gpu, SchedulerSpec(SchedulerPolicy.FIXED_SHARE)))
        == NOT_SUPPORTED
    )
    site.ports.nvml.set_scheduler(site.gpu, SchedulerSpec(SchedulerPolicy.EQUAL_SHARE))


def test_a_vf_lists_only_types_with_a_free_placement(site: Site) -> None:
    site.ports.nvml.set_mixed_size(site.gpu, enabled=True)
    assert listed(site, site.vfs[0]) == TIME_SLICED
    make(site, site.vfs[0], "472")
    assert listed(site, site.vfs[1]) == ["468", "469", "470", "471", "472"]
    make(site, site.vfs[1], "470")
    make(site, site.vfs[2], "470")
    assert listed(site, site.vfs[3]) == []
    assert refused(site, site.vfs[3], "468") == errno.EIO
    clear(site, site.vfs[2])
    assert listed(site, site.vfs[3]) == ["468", "469", "470", "471"]


def test_a_vgpu_gets_the_first_free_placement_and_moves_to_another_of_its_type(site: Site) -> None:
    site.ports.nvml.set_mixed_size(site.gpu, enabled=True)
    first, second = site.vfs[:2]
    make(site, first, "470")
    make(site, second, "468")
    assert (placement_of(site, first), placement_of(site, second)) == ("0", "10")
    path = placement_file(site, first)
    assert [site.refused(path, f"{number}\n") for number in (8, 12, 40)] == [errno.EIO] * 3
    assert site.refused(path, "x\n") == errno.EINVAL
    assert placement_of(site, first) == "0"
    assert [site.refused(path, "32\n") for _ in ("there", "where it is")] == [None, None]
    assert placement_of(site, first) == "32"
    assert listed(site, site.vfs[2]) == ["468", "469", "470", "471"]


def test_a_vgpu_outside_mixed_size_mode_cannot_move(site: Site) -> None:
    make(site, site.vfs[0], "470")
    assert placement_of(site, site.vfs[0]) == {"vendor-vf": "65535", "mdev-vf": "Not Applicable"}[site.form]
    assert site.refused(placement_file(site, site.vfs[0]), "0\n") == errno.EIO
