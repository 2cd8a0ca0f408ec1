# SPDX-License-Identifier: Apache-2.0
"""Every count, yes and no on 500 random small hosts of every way to divide a GPU, against trying everything.

A run of every change takes 200 of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from operator import ge
from random import Random
from typing import NamedTuple

import pytest

from tests import EVERYTHING
from tests.unit.gpu.brute_force import count_range, driver_chooses_instances, fitting, most_on_host
from tests.unit.gpu.small_hosts import WAYS, make_host, paste
from vgpuctl.errors import NotFound
from vgpuctl.gpu.division import Room
from vgpuctl.gpu.room import PLAIN_VF, compute_room, divide
from vgpuctl.model.gpu import Backend, Gpu, GpuMode, Vgpu, VgpuType
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.placement.constraints import why_profile_forbidden
from vgpuctl.placement.fit import FitResult, check_fit
from vgpuctl.placement.fleet import build_fleet_state

BLOCKS = 5 if EVERYTHING else 2
HOSTS_IN_A_BLOCK = 10
EVERY = pytest.mark.parametrize(
    ("way", "seed"), [(way, n * HOSTS_IN_A_BLOCK) for way in WAYS for n in range(BLOCKS)], ids=str
)


class Numbers(NamedTuple):
    """What vgpuctl says of a GPU in numbers: how many more of each profile fit, and whether several fit together."""

    free: Mapping[str, int]
    fits: object


def room_of(gpu: Gpu, taken: Sequence[Vgpu], vgpu_type: VgpuType) -> Room:
    return compute_room(gpu, taken, vgpu_type)


def numbers_of(gpu: Gpu, taken: Sequence[Vgpu]) -> Numbers | None:
    types = [t for t in gpu.types if why_profile_forbidden(gpu, t) is None]
    state = divide(gpu, taken).numbers(types)
    if state is None:
        return None
    free = {p: state.kind.count_remaining(state.state, p) for p in state.kind.sizes}
    return Numbers(free, lambda wanted: state.kind.fits(state.state, wanted))


def numbers_of_host(host: Snapshot) -> dict[str, Mapping[str, int]]:
    state = build_fleet_state(host, host.gpus)
    kinds = [(state.fleet.group_of(n), gpu) for n, gpu in enumerate(state.gpus)]
    return {
        gpu.address: {p: state.fleet.kind_of(g).count_remaining(g.state, p) for p in state.fleet.kind_of(g).sizes}
        for g, gpu in kinds
    }


def answer_of(host: Snapshot, wanted: Sequence[tuple[str, int]]) -> FitResult:
    return check_fit(host, host.gpus, wanted)


@EVERY
def test_as_many_fit_of_each_profile(way: str, seed: int) -> None:
    for number in range(seed, seed + HOSTS_IN_A_BLOCK):
        host = make_host(way, number)
        for gpu in host.gpus:
            for vgpu_type in gpu.types:
                check_count(gpu, host.vgpus_on(gpu.address), vgpu_type)


def check_count(gpu: Gpu, taken: Sequence[Vgpu], vgpu_type: VgpuType) -> None:
    certain, most = count_range(gpu, taken, vgpu_type)
    room = room_of(gpu, taken, vgpu_type)
    case = f"{vgpu_type.profile}: {certain} to {most}, not {room}\n{paste((gpu, tuple(taken), vgpu_type))}"
    if room.free is None:
        assert has_unknown(gpu, taken), case
        assert (room.at_least or 0) <= certain, case
        return
    if room.free == 0 and has_unknown_type(taken) and not all(v.present for v in taken):
        return  # what is unknown may cover everything, and the driver does not know of recorded vGPUs
    assert room.free == certain, case
    assert room.free == most or room.free == 0 or is_pool(gpu), case
    assert bool(room.functions) == bool(room.free), case


@EVERY
def test_the_numbers_of_a_gpu_are_the_same_and_say_what_fits_together(way: str, seed: int) -> None:
    for number in range(seed, seed + HOSTS_IN_A_BLOCK):
        host = make_host(way, number)
        random = Random(f"{way} {number}")
        on_host = numbers_of_host(host)
        for gpu in host.gpus:
            taken = host.vgpus_on(gpu.address)
            numbers = numbers_of(gpu, taken)
            if gpu.address in on_host:
                assert on_host[gpu.address] == numbers.free
            assert not (is_closed(gpu) and gpu.address in on_host)
            check_numbers(gpu, taken, numbers, random)


def check_numbers(gpu: Gpu, taken: Sequence[Vgpu], numbers: Numbers | None, random: Random) -> None:
    case = paste((gpu, tuple(taken)))
    if gpu.backend is Backend.SRIOV_VF and numbers is not None:
        busy = {v.function for v in taken}
        assert numbers.free == {PLAIN_VF: sum(not f.problem and f.address not in busy for f in gpu.functions)}, case
        return
    allowed = [t for t in gpu.types if gpu.allowed_profiles is None or t.profile in gpu.allowed_profiles]
    ranges = {t.profile: count_range(gpu, taken, t) for t in allowed}
    if numbers is None:
        whole = any(v.carrier == gpu.address and v.backend is Backend.PASSTHROUGH for v in taken)
        assert whole or gpu.backend is Backend.PASSTHROUGH or has_unknown(gpu, taken), case
        return
    for profile, (certain, most) in ranges.items():
        no_maximum = gpu.backend is not Backend.MDEV_PF and any(
            t.profile == profile and t.max_per_gpu is None for t in gpu.types
        )
        known = (certain == most or is_pool(gpu)) and not no_maximum
        if profile in numbers.free:
            assert known or not numbers.free[profile], f"{profile}: {certain} to {most}, not {numbers.free}\n{case}"
            assert numbers.free[profile] == certain, f"{profile}: {certain}, not {numbers.free}\n{case}"
        else:
            own = next(t for t in allowed if t.profile == profile)
            offered = certain or (own.max_per_gpu is not None and count_range(gpu, (), own)[0])
            assert not known or not offered or is_irregular(gpu), f"{profile}: {certain}, not {numbers.free}\n{case}"
    assert set(numbers.free) <= set(ranges), case
    for profiles in (random.sample(sorted(numbers.free), min(n, len(numbers.free))) for n in (2, 2, 3)):
        wanted = [(p, ranges[p][1]) for p in profiles]
        certain_parts, _ = fitting(gpu, taken, wanted)
        for counts in some_counts(wanted, random):
            question = dict(zip(profiles, counts, strict=True))
            assert numbers.fits(question) == (counts in certain_parts), f"{question}\n{case}"


def some_counts(wanted: Sequence[tuple[str, int]], random: Random) -> list[tuple[int, ...]]:
    every = list(product(*(range(most + 2) for _, most in wanted)))
    return random.sample(every, min(len(every), 12))


@EVERY
def test_what_fits_on_the_host_together(way: str, seed: int) -> None:
    for number in range(seed, seed + HOSTS_IN_A_BLOCK):
        host = make_host(way, number)
        random = Random(f"{way} {number} together")
        for _ in range(3):
            check_host(host, random)


def check_host(host: Snapshot, random: Random) -> None:
    profiles = sorted({t.profile for gpu in host.gpus for t in gpu.types})
    profiles = random.sample(profiles, min(len(profiles), random.randint(1, 3)))
    wanted = [(p, random.randint(1, 4)) for p in profiles]
    if not wanted:
        with pytest.raises(NotFound):
            answer_of(host, [("X-1Q", 1)])
        return
    if random.random() < 0.6:
        wanted = about_what_fits(host, wanted, random)
    result = answer_of(host, wanted)
    parts = [parts_on(gpu, host.vgpus_on(gpu.address), wanted) for gpu in host.gpus]
    certain = most_on_host([one for one, _ in parts], wanted)
    possible = most_on_host([other for _, other in parts], wanted)
    all_of_it = tuple(n for _, n in wanted)
    case = f"{wanted}: {result.fits}, {result.excess}, {result.reason}\n{paste((host.gpus, host.vgpus))}"
    if result.fits is None:
        unknown = any(has_unknown(gpu, host.vgpus_on(gpu.address)) or is_irregular(gpu) for gpu in host.gpus)
        assert unknown or (all_of_it in possible and all_of_it not in certain), case
        return
    if result.fits:
        assert all_of_it in certain, case
        check_plan(host, result, wanted, case)
        return
    assert all_of_it not in certain, case
    fewest = sum(all_of_it) - max(sum(counts) for counts in possible)
    excess = dict(result.excess)
    rest = tuple(n - excess.get(p, 0) for p, n in wanted)
    assert rest in possible, case
    if any(has_unknown(gpu, host.vgpus_on(gpu.address)) for gpu in host.gpus):
        assert all_of_it not in possible, case
        assert sum(excess.values()) >= fewest, f"fewest {fewest}\n{case}"
        return
    assert sum(excess.values()) == fewest, f"fewest {fewest}\n{case}"
    mib = {t.profile: t.framebuffer_mib or 0 for gpu in host.gpus for t in gpu.types}
    largest = max(sum(mib[p] * n for (p, _), n in zip(wanted, c, strict=True)) for c in possible if sum(c) == sum(rest))
    assert sum(mib[p] * n for (p, _), n in zip(wanted, rest, strict=True)) == largest, case


def about_what_fits(host: Snapshot, wanted: Sequence[tuple[str, int]], random: Random) -> list[tuple[str, int]]:
    """Return a request that just fits, or one more."""
    parts = [parts_on(gpu, host.vgpus_on(gpu.address), wanted)[0] for gpu in host.gpus]
    fits = most_on_host(parts, wanted)
    largest = sorted(
        counts for counts in fits if not any(other != counts and all(map(ge, other, counts)) for other in fits)
    )
    counts = list(random.choice(largest))
    counts[random.randrange(len(counts))] += random.choice((0, 1))
    return [(p, n) for (p, _), n in zip(wanted, counts, strict=True) if n] or [(wanted[0][0], 1)]


def parts_on(
    gpu: Gpu, taken: Sequence[Vgpu], wanted: Sequence[tuple[str, int]]
) -> tuple[set[tuple[int, ...]], set[tuple[int, ...]]]:
    """Return which parts of what is wanted may be placed on a GPU: certainly, and in some layout."""
    allowed = [
        (p, n if not is_closed(gpu) and (gpu.allowed_profiles is None or p in gpu.allowed_profiles) else 0)
        for p, n in wanted
    ]
    return fitting(gpu, taken, allowed)


def check_plan(host: Snapshot, result: FitResult, wanted: Sequence[tuple[str, int]], case: str) -> None:
    assert Counter(p.profile for p in result.planned) == Counter(dict(wanted)), case
    for gpu in host.gpus:
        taken = host.vgpus_on(gpu.address)
        here = [p for p in result.planned if p.gpu.address == gpu.address]
        counts = Counter(p.profile for p in here)
        certain, _ = parts_on(gpu, taken, wanted)
        assert tuple(counts[p] for p, _ in wanted) in certain, case
        sizes = {t.profile: t.placement_size or 0 for t in gpu.types} | {"": 1}
        at = [(p.placement_id, sizes[p.profile]) for p in here if p.placement_id is not None]
        at += [(v.placement_id, sizes[v.profile or ""]) for v in taken if v.placement_id is not None]
        slices = [n for start, size in at for n in range(start, start + size)]
        assert len(slices) == len(set(slices)), case
        assert all(p.placement_id is not None for p in here) or not gpu.mixed_size or not gpu.accepts_placements, case


def is_closed(gpu: Gpu) -> bool:
    return gpu.cordoned or gpu.desired_mode not in (None, GpuMode.VGPU)


def is_pool(gpu: Gpu) -> bool:
    """Return whether each vGPU counts as the largest part of a pool that its number allows, as documented."""
    return gpu.types != () and gpu.types[0].profile.startswith("vir")


def is_irregular(gpu: Gpu) -> bool:
    """Return whether a free VF offers less than another: then a profile may have no number."""
    return len({tuple(f.available_instances) for f in gpu.functions if f.available_instances is not None}) > 1


def has_unknown(gpu: Gpu, taken: Sequence[Vgpu]) -> bool:
    """Return whether a vGPU's type or place is unknown, or how many of a type fit."""
    no_place = gpu.mixed_size and (
        any(v.placement_id is None for v in taken) or any(t.placement_ids is None for t in gpu.types)
    )
    no_maximum = gpu.backend is not Backend.MDEV_PF and any(t.max_per_gpu is None for t in gpu.types)
    return no_place or no_maximum or has_unknown_type(taken) or driver_chooses_instances(gpu, taken)


def has_unknown_type(taken: Sequence[Vgpu]) -> bool:
    return any(v.profile is None for v in taken)
