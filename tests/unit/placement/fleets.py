"""Small fleets with vGPUs, and exhaustive searches over them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

from hypothesis import strategies as st

from tests.unit.gpu.test_kinds import GVT, H100_MIG
from vgpuctl.gpu.equal_size import EqualSizeKind
from vgpuctl.gpu.gpu_instances import InstanceNeed, SharedInstanceKind
from vgpuctl.gpu.slice_kind import Footprint, SliceKind
from vgpuctl.placement.fleet import (
    Fleet,
    FreeFunctions,
    GpuGroup,
    Leave,
    Migration,
    MigrationPlan,
    PlacedVgpu,
    apply_order,
    copy_fleet,
)

SMALL = EqualSizeKind("small", 4096, {"1B": 1024, "2B": 2048, "2Q": 2048}, {"1B": 3, "2B": 2, "2Q": 2})
MIXED = SliceKind(
    "mixed",
    8192,
    {"1Q": 1024, "2Q": 2048, "4Q": 4096},
    {"1Q": Footprint(tuple(range(8)), 1), "2Q": Footprint((0, 2, 4, 6), 2), "4Q": Footprint((0, 4), 4)},
    slices=8,
)
TINY = SliceKind(
    "tiny", 3072, {"1T": 1024, "2T": 2048}, {"1T": Footprint((0, 1, 2), 1), "2T": Footprint((0, 1), 2)}, slices=3
)
"""So small that most moves need another one first."""
SHARED = SharedInstanceKind(
    "shared",
    4096,
    {"1S": 1024, "2S": 2048},
    {"1S": InstanceNeed(1, 2), "2S": InstanceNeed(1, 1)},
    instances=(1, 1),
    carriers=3,
)
"""Two instances that are alike, each for two small vGPUs or a large one."""
FEW_VFS = SliceKind(
    "few",
    4096,
    {"1S": 1024, "4S": 4096},
    {"1S": Footprint(tuple(range(4)), 1, ((0, 1),)), "4S": Footprint((0,), 4, ((0, 1),))},
    slices=4,
    pools=(2,),
)
"""With fewer VFs than small vGPUs fit."""


@st.composite
def filled(draw: st.DrawFn, most_gpus: int = 4, most_vgpus: int = 5) -> tuple[Fleet, tuple[PlacedVgpu, ...]]:
    """Return a fleet of one or two kinds, and every vGPU on it, wherever it was put."""
    kinds = draw(st.lists(st.sampled_from([SMALL, TINY, MIXED, H100_MIG, GVT, SHARED]), min_size=1, max_size=2))
    numbers = draw(st.lists(st.integers(0, len(kinds) - 1), min_size=1, max_size=most_gpus))
    fleet = Fleet(kinds, [GpuGroup(n, kinds[n].empty) for n in numbers])
    placed = []
    profiles = sorted({p for kind in kinds for p in kind.sizes})
    for profile in draw(st.lists(st.sampled_from(profiles), max_size=most_vgpus)):
        places = list(every_place(fleet, profile))
        if places:
            placed.append(draw(st.sampled_from(places)))
            fleet = with_one(fleet, placed[-1])
    return fleet, tuple(placed)


def every_place(fleet: Fleet, profile: str) -> Iterator[PlacedVgpu]:
    """Yield every place on every GPU that one more vGPU of the profile could have."""
    for gpu in range(len(fleet)):
        group = fleet.group_of(gpu)
        for move in fleet.kind_of(group).all_placements(group.state, profile):
            yield PlacedVgpu(gpu, profile, move.place)


def with_one(fleet: Fleet, vgpu: PlacedVgpu) -> Fleet:
    """Return a fleet with one more vGPU at a place that is free."""
    after = copy_fleet(fleet)
    group = after.group_of(vgpu.gpu)
    moves = after.kind_of(group).all_placements(group.state, vgpu.profile)
    after.add_vgpu(vgpu.gpu, next(m for m in moves if m.place == vgpu.place))
    return after


def fit(fleet: Fleet, wanted: Counter[str]) -> bool:
    """Return whether all fit together, by trying every placement."""
    if not wanted:
        return True
    profile = min(wanted)
    return any(fit(with_one(fleet, place), wanted - Counter([profile])) for place in every_place(fleet, profile))


def fewest_moves(fleet: Fleet, placed: Sequence[PlacedVgpu], wanted: Counter[str], most: int) -> int | None:
    """Return the minimum number of vGPUs to move so that they and the requested ones fit, by exhaustive search."""
    for number in range(min(most, len(placed)) + 1):
        for gone in combinations(placed, number):
            bare = copy_fleet(fleet)
            for vgpu in gone:
                bare.remove_vgpu(*_taken(vgpu))
            if fit(bare, wanted + Counter(vgpu.profile for vgpu in gone)):
                return number
    return None


def _taken(vgpu: PlacedVgpu) -> tuple[int, str, int]:
    return vgpu.gpu, vgpu.profile, vgpu.place


def after(fleet: Fleet, placed: Sequence[PlacedVgpu], order: Sequence[Migration | Leave]) -> Fleet:
    """Return the fleet after these moves, one after the other; a place that is not free raises."""
    now = copy_fleet(fleet)
    apply_order(now, list(placed), order)
    return now


def count_free_after_order(
    free_functions: FreeFunctions, placed: Sequence[PlacedVgpu], order: Sequence[Migration | Leave]
) -> FreeFunctions | None:
    """Return the free functions after an order; None: one finds too few.

    A vGPU that migrates gives up its function only when it is at its new place, on another function. One that leaves
    gives it up before.
    """
    free, left = dict(free_functions), set[int]()
    for entry in order:
        old = placed[entry.vgpu_index].gpu
        if isinstance(entry, Migration):
            if free.get(entry.gpu, 1) < 1:
                return None
            free |= {entry.gpu: free[entry.gpu] - 1} if entry.gpu in free else {}
        if entry.vgpu_index not in left:
            free |= {old: free[old] + 1} if old in free else {}
        left.add(entry.vgpu_index)
    return free


def assert_room(fleet: Fleet, placed: Sequence[PlacedVgpu], result: MigrationPlan, wanted: Sequence[str]) -> None:
    """Check that a plan moves each vGPU once, works in its order, and places everything requested."""
    assert len({s.vgpu_index for s in result.migrations}) == len(result.migrations)
    left = [entry.vgpu_index for entry in result.order if isinstance(entry, Leave)]
    assert len(set(left)) == len(left)
    now = after(fleet, placed, result.order)
    assert [p.profile for p in result.places] == list(wanted)
    for place in result.places:
        now = with_one(now, place)
