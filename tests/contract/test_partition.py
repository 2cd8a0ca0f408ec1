# SPDX-License-Identifier: Apache-2.0
"""MIG and mixed sizes: what NVIDIA's library refuses, what a VF lists then, and where a vGPU is.

Sources of the numbers: nvml.h's errors of each call, NVIDIA's MIG and vGPU guides, the open kernel modules
(kernel_vgpu_mgr.c) and the vGPU driver's VFIO interface.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

import pytest

from tests.contract.site import MDEV, Site, new_uuid
from vgpuctl.errors import NvmlFailed
from vgpuctl.model.mig import MigState, PlacementSpan
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec, SchedulerState

pytestmark = pytest.mark.forms("mdev-vf", "vendor-vf")
INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, IN_USE, INSUFFICIENT_RESOURCES = 2, 3, 6, 19, 23
BEST_EFFORT = SchedulerState(SchedulerPolicy.BEST_EFFORT)
TIME_SLICED = ["468", "469", "470", "471", "472", "473"]
ONE, ONE_BIG, TWO, THREE, FOUR, SEVEN = 19, 15, 14, 9, 5, 0
"""GPU instance profiles of the A100 40GB: 1g.5gb, 1g.10gb, 2g.10gb, 3g.20gb, 4g.20gb, 7g.40gb."""


@pytest.fixture(autouse=True)
def back(site: Site) -> Iterator[None]:
    """No vGPU, MIG off, one size and the VFs on, afterwards."""
    yield
    for vf in site.vfs:
        clear(site, vf)
    seen = site.told()
    scheduled = seen.scheduler is not None and seen.scheduler.state != BEST_EFFORT
    if seen.mig is not None and (seen.mig.enabled or seen.mig.pending_enabled or scheduled):
        cycle(site, "-d")
        site.ports.nvml.set_mig(site.gpu, enabled=False)
    elif seen.mixed_size:
        site.ports.nvml.set_mixed_size(site.gpu, enabled=False)
    cycle(site, "-e")  # which is quick where they are on


def mig(site: Site) -> MigState:
    found = site.told().mig
    assert found is not None
    return found


def cycle(site: Site, flag: str) -> None:
    done = site.ports.vendor_commands.sriov_manage(flag, site.gpu, deadline_seconds=60)
    assert done.status == 0, done.text


def turn_mig_on(site: Site) -> None:
    cycle(site, "-d")
    site.ports.nvml.set_mig(site.gpu, enabled=True)
    cycle(site, "-e")


def refusal(do: Callable[[], object]) -> object:
    """NVML's number for not doing it."""
    with pytest.raises(NvmlFailed) as raised:
        do()
    return raised.value.facts["nvml_code"]


def listed(site: Site, vf: str) -> list[str]:
    """The numbers of the types that can be made on a VF now."""
    if site.form == "vendor-vf":
        text = site.ports.sysfs.read(site.type_file(vf, "creatable_vgpu_types"))
        found = [line.split(":")[0].strip() for line in text.splitlines()]
        return sorted(number for number in found if number.isdigit())
    kinds = site.ports.sysfs.listdir(f"/sys/bus/pci/devices/{vf}/mdev_supported_types")
    able = [k for k in kinds if site.ports.sysfs.read(site.mdev_file(vf, k, "available_instances")).strip() == "1"]
    return sorted(kind.removeprefix("nvidia-") for kind in able)


def refused(site: Site, vf: str, number: str) -> int | None:
    """The errno of making a vGPU, None when it was made."""
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
    here = f"/sys/bus/pci/devices/{vf}/mdev_supported_types"
    for kind in site.ports.sysfs.listdir(here):
        for device in site.ports.sysfs.listdir(f"{here}/{kind}/devices"):
            site.remove(device)


def place_of(site: Site, vf: str, name: str) -> str:
    return site.ports.sysfs.read(site.type_file(vf, name)).strip()


def place_file(site: Site, vf: str) -> str:
    """The file that says where the vGPU on a VF is: the VF's own, or its mdev's."""
    if site.form == "vendor-vf":
        return site.type_file(vf, "placement_id")
    return f"{MDEV}/{mdev_on(site, vf)}/nvidia/placement_id"


def mdev_on(site: Site, vf: str) -> str:
    here = f"/sys/bus/pci/devices/{vf}/mdev_supported_types"
    kinds = site.ports.sysfs.listdir(here)
    (device,) = (d for kind in kinds for d in site.ports.sysfs.listdir(f"{here}/{kind}/devices"))
    return device


def begins(site: Site, vf: str) -> str:
    return site.ports.sysfs.read(place_file(site, vf)).strip()


# --------------------------------------------------------------------------- MIG


def test_a_gpu_has_mig_profiles_and_placements(site: Site) -> None:
    found = mig(site)
    assert (found.enabled, found.pending_enabled, found.instances) == (False, False, ())
    assert {p.profile_id: (p.name, p.compute_slices, p.max_instances, p.memory_mib) for p in found.profiles} == {
        19: ("1g.5gb", 1, 7, 4864),
        20: ("1g.5gb+me", 1, 1, 4864),
        15: ("1g.10gb", 1, 4, 9856),
        14: ("2g.10gb", 2, 3, 9856),
        9: ("3g.20gb", 3, 2, 19968),
        5: ("4g.20gb", 4, 1, 19968),
        0: ("7g.40gb", 7, 1, 40192),
    }
    places = {p.profile_id: p.placements for p in found.profiles}
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


def test_types_have_their_instance(site: Site) -> None:
    types = site.told().types
    assert {n: types[n].gi_profile_id for n in (468, 474, 475, 476, 477, 478, 1053)} == {
        468: None, 474: ONE, 475: TWO, 476: THREE, 477: FOUR, 478: SEVEN, 1053: ONE_BIG,
    }  # fmt: skip
    assert (types[474].max_per_gi, types[474].placement_ids) == (1, None)


def test_mig_is_not_changed_while_vfs_are_on(site: Site) -> None:
    assert refusal(lambda: site.ports.nvml.set_mig(site.gpu, enabled=True)) == IN_USE
    assert (mig(site).enabled, mig(site).pending_enabled) == (False, False)
    site.ports.nvml.set_mig(site.gpu, enabled=False)


def test_without_mig_there_are_no_instances_and_no_types_for_them(site: Site) -> None:
    assert refusal(lambda: site.ports.nvml.create_gpu_instance(site.gpu, ONE, 0)) == NOT_SUPPORTED
    assert refusal(lambda: site.ports.nvml.destroy_gpu_instance(site.gpu, 1)) == NOT_SUPPORTED
    assert listed(site, site.vfs[0]) == TIME_SLICED
    assert refused(site, site.vfs[0], "474") == errno.EIO


def test_mig_without_instances_lists_nothing_and_outlives_the_vfs_which_instances_do_not(site: Site) -> None:
    turn_mig_on(site)
    assert (mig(site).enabled, mig(site).pending_enabled) == (True, True)
    assert listed(site, site.vfs[0]) == []
    assert refused(site, site.vfs[0], "468") == errno.EIO
    site.ports.nvml.create_gpu_instance(site.gpu, THREE, 4)
    assert [(i.profile_id, i.placement) for i in mig(site).instances] == [(THREE, PlacementSpan(4, 4))]
    cycle(site, "-d")
    cycle(site, "-e")
    assert (mig(site).enabled, mig(site).instances) == (True, ())


def test_an_instance_takes_one_vgpu_of_its_type(site: Site) -> None:
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


def test_an_instance_is_not_made_where_it_cannot_be(site: Site) -> None:
    turn_mig_on(site)
    site.ports.nvml.create_gpu_instance(site.gpu, TWO, 2)

    def made(profile_id: int, start: int) -> object:
        return refusal(lambda: site.ports.nvml.create_gpu_instance(site.gpu, profile_id, start))

    assert (made(99, 0), made(TWO, 1), made(THREE, 2)) == (INVALID_ARGUMENT,) * 3
    assert (made(TWO, 2), made(ONE, 3), made(FOUR, 0), made(SEVEN, 0)) == (INSUFFICIENT_RESOURCES,) * 4
    site.ports.nvml.create_gpu_instance(site.gpu, THREE, 4)
    assert len(mig(site).instances) == 2


def test_an_instance_with_a_vgpu_is_not_destroyed_and_one_that_is_not_there_neither(site: Site) -> None:
    turn_mig_on(site)
    number = site.ports.nvml.create_gpu_instance(site.gpu, ONE, 0)
    make(site, site.vfs[0], "474")
    assert refusal(lambda: site.ports.nvml.destroy_gpu_instance(site.gpu, number)) == IN_USE
    assert refusal(lambda: site.ports.nvml.destroy_gpu_instance(site.gpu, number + 1)) == NOT_FOUND
    clear(site, site.vfs[0])
    site.ports.nvml.destroy_gpu_instance(site.gpu, number)
    assert mig(site).instances == ()


def test_with_mig_there_is_neither_another_scheduler_nor_a_mixture_of_sizes(site: Site) -> None:
    turn_mig_on(site)
    assert (
        refusal(lambda: site.ports.nvml.set_scheduler(site.gpu, SchedulerSpec(SchedulerPolicy.EQUAL_SHARE)))
        == NOT_SUPPORTED
    )
    assert refusal(lambda: site.ports.nvml.set_mixed_size(site.gpu, enabled=True)) == NOT_SUPPORTED
    number = site.ports.nvml.create_gpu_instance(site.gpu, ONE, 0)
    spec = SchedulerSpec(SchedulerPolicy.EQUAL_SHARE)
    assert refusal(lambda: site.ports.nvml.set_scheduler(site.gpu, spec, number)) == NOT_SUPPORTED
    seen = site.told()
    assert (seen.gi_schedulers, seen.mixed_size) == ({}, None)
    assert seen.scheduler is not None
    assert seen.scheduler.state == SchedulerState(SchedulerPolicy.FIXED_SHARE, False, 1_000_000)


@pytest.mark.forms("vendor-vf")
def test_a_vgpu_has_an_instance_and_moves_to_a_free_equal_one(site: Site) -> None:
    turn_mig_on(site)
    numbers = [site.ports.nvml.create_gpu_instance(site.gpu, ONE, start) for start in (0, 1, 2)]
    other = site.ports.nvml.create_gpu_instance(site.gpu, THREE, 4)
    first, second = site.vfs[:2]
    path = site.type_file(first, "gpu_instance_id")
    make(site, first, "474")
    make(site, second, "474")
    mine, taken = int(place_of(site, first, "gpu_instance_id")), int(place_of(site, second, "gpu_instance_id"))
    assert [mine, taken] == sorted(numbers)[:2], "the driver takes the lowest that has room"
    (free,) = set(numbers) - {mine, taken}
    assert [site.refused(path, f"{number}\n") for number in (taken, other, 77)] == [errno.EIO] * 3
    assert site.refused(path, "x\n") == errno.EINVAL
    assert site.refused(path, f"{free}\n") is None
    assert place_of(site, first, "gpu_instance_id") == str(free)
    assert refusal(lambda: site.ports.nvml.destroy_gpu_instance(site.gpu, free)) == IN_USE
    site.ports.nvml.destroy_gpu_instance(site.gpu, mine)


@pytest.mark.forms("vendor-vf")
@pytest.mark.parametrize("name", ["gpu_instance_id", "placement_id"])
def test_a_vf_without_vgpu_has_no_place(site: Site, name: str) -> None:
    path = site.type_file(site.vfs[0], name)
    with pytest.raises(OSError, match=r".") as raised:
        site.ports.sysfs.read(path)
    assert raised.value.errno == errno.ENXIO
    assert site.refused(path, "0\n") == errno.ENXIO


# ------------------------------------------------------------------- mixed sizes


def test_in_mixed_mode_types_have_placements(site: Site) -> None:
    assert site.told().types[468].placement_ids is None
    before = site.ports.nvml.placements(site.gpu)
    site.ports.nvml.set_mixed_size(site.gpu, enabled=True)
    assert site.ports.nvml.placements(site.gpu) == before, "who asks is told before, too"
    assert [str(span) for span in before[470]] == ["0:8", "12:8", "20:8", "32:8"]
    types = site.told().types
    assert {n: (types[n].placement_ids, types[n].placement_size) for n in (468, 469, 470, 471, 472, 473)} == {
        468: ((0, 6, 10, 16, 20, 26, 30, 36), 4),
        469: ((0, 5, 10, 15, 20, 25, 30, 35), 5),
        470: ((0, 12, 20, 32), 8),
        471: ((0, 10, 20, 30), 10),
        472: ((0, 20), 20),
        473: ((0,), 40),
    }


def test_sizes_are_mixed_only_before_the_first_vgpu_and_until_the_vfs_go(site: Site) -> None:
    assert site.told().mixed_size is False
    make(site, site.vfs[0], "468")
    assert refusal(lambda: site.ports.nvml.set_mixed_size(site.gpu, enabled=True)) == IN_USE
    clear(site, site.vfs[0])
    site.ports.nvml.set_mixed_size(site.gpu, enabled=True)
    assert site.told().mixed_size is True
    cycle(site, "-d")
    assert refusal(lambda: site.ports.nvml.set_mixed_size(site.gpu, enabled=True)) == NOT_SUPPORTED
    cycle(site, "-e")
    assert site.told().mixed_size is False


def test_mixed_sizes_block_only_a_fixed_share(site: Site) -> None:
    site.ports.nvml.set_mixed_size(site.gpu, enabled=True)
    assert (
        refusal(lambda: site.ports.nvml.set_scheduler(site.gpu, SchedulerSpec(SchedulerPolicy.FIXED_SHARE)))
        == NOT_SUPPORTED
    )
    site.ports.nvml.set_scheduler(site.gpu, SchedulerSpec(SchedulerPolicy.EQUAL_SHARE))


def test_listed_types_still_have_a_place(site: Site) -> None:
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


def test_a_vgpu_begins_at_the_first_free_place_and_moves_to_another_of_its_type(site: Site) -> None:
    site.ports.nvml.set_mixed_size(site.gpu, enabled=True)
    first, second = site.vfs[:2]
    make(site, first, "470")
    make(site, second, "468")
    assert (begins(site, first), begins(site, second)) == ("0", "10")
    path = place_file(site, first)
    assert [site.refused(path, f"{number}\n") for number in (8, 12, 40)] == [errno.EIO] * 3
    assert site.refused(path, "x\n") == errno.EINVAL
    assert begins(site, first) == "0"
    assert [site.refused(path, "32\n") for _ in ("there", "where it is")] == [None, None]
    assert begins(site, first) == "32"
    assert listed(site, site.vfs[2]) == ["468", "469", "470", "471"]


def test_a_vgpu_of_one_size_is_not_moved(site: Site) -> None:
    make(site, site.vfs[0], "470")
    assert begins(site, site.vfs[0]) == {"vendor-vf": "65535", "mdev-vf": "Not Applicable"}[site.form]
    assert site.refused(place_file(site, site.vfs[0]), "0\n") == errno.EIO
