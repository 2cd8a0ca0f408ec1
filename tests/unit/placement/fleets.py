"""Small fleets with vGPUs on them, and what trying everything says of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

from hypothesis import strategies as st

from tests.unit.placement.test_kinds import GVT, H100_MIG
from vgpuctl.placement.fleet import Fleet, Group
from vgpuctl.placement.instances import InGi, Instances
from vgpuctl.placement.one_size import OneSize
from vgpuctl.placement.shifts import Placed, Room, Round, copied, moved
from vgpuctl.placement.slots import Slots, Takes

SMALL = OneSize("small", 4096, {"1B": 1024, "2B": 2048, "2Q": 2048}, {"1B": 3, "2B": 2, "2Q": 2})
MIXED = Slots(
    "mixed",
    8192,
    {"1Q": 1024, "2Q": 2048, "4Q": 4096},
    {"1Q": Takes(tuple(range(8)), 1), "2Q": Takes((0, 2, 4, 6), 2), "4Q": Takes((0, 4), 4)},
    slices=8,
)
TINY = Slots("tiny", 3072, {"1T": 1024, "2T": 2048}, {"1T": Takes((0, 1, 2), 1), "2T": Takes((0, 1), 2)}, slices=3)
"""So small that most moves need another one first."""
SHARED = Instances(
    "shared",
    4096,
    {"1S": 1024, "2S": 2048},
    {"1S": InGi(1, 2), "2S": InGi(1, 1)},
    instances=(1, 1),
    carriers=3,
)
"""Two instances that are alike, each for two small vGPUs or a large one."""


@st.composite
def filled(draw: st.DrawFn, most_gpus: int = 4, most_vgpus: int = 5) -> tuple[Fleet, tuple[Placed, ...]]:
    """Return a fleet of one or two kinds, and every vGPU on it, wherever it was put."""
    kinds = draw(st.lists(st.sampled_from([SMALL, TINY, MIXED, H100_MIG, GVT, SHARED]), min_size=1, max_size=2))
    numbers = draw(st.lists(st.integers(0, len(kinds) - 1), min_size=1, max_size=most_gpus))
    fleet = Fleet(kinds, [Group(n, kinds[n].empty) for n in numbers])
    placed = []
    profiles = sorted({p for kind in kinds for p in kind.sizes})
    for profile in draw(st.lists(st.sampled_from(profiles), max_size=most_vgpus)):
        places = list(every_place(fleet, profile))
        if places:
            placed.append(draw(st.sampled_from(places)))
            fleet = with_one(fleet, placed[-1])
    return fleet, tuple(placed)


def every_place(fleet: Fleet, profile: str) -> Iterator[Placed]:
    """Yield every place on every GPU that one more vGPU of the profile could have."""
    for gpu in range(len(fleet)):
        group = fleet.group_of(gpu)
        for move in fleet.kind(group).everywhere(group.state, profile):
            yield Placed(gpu, profile, move.place)


def with_one(fleet: Fleet, vgpu: Placed) -> Fleet:
    """Return a fleet with one more vGPU at a place that is free."""
    after = copied(fleet)
    group = after.group_of(vgpu.gpu)
    moves = after.kind(group).everywhere(group.state, vgpu.profile)
    after.put(vgpu.gpu, next(m for m in moves if m.place == vgpu.place))
    return after


def fit(fleet: Fleet, wanted: Counter[str]) -> bool:
    """Say whether all fit together, by trying every place of everything."""
    if not wanted:
        return True
    profile = min(wanted)
    return any(fit(with_one(fleet, place), wanted - Counter([profile])) for place in every_place(fleet, profile))


def fewest_moves(fleet: Fleet, placed: Sequence[Placed], wanted: Counter[str], most: int) -> int | None:
    """Return how few vGPUs can be taken away so that they and all that is wanted fit, by trying all of them."""
    for number in range(min(most, len(placed)) + 1):
        for gone in combinations(placed, number):
            bare = copied(fleet)
            for vgpu in gone:
                bare.take(*_taken(vgpu))
            if fit(bare, wanted + Counter(vgpu.profile for vgpu in gone)):
                return number
    return None


def _taken(vgpu: Placed) -> tuple[int, str, int]:
    return vgpu.gpu, vgpu.profile, vgpu.place


def after(fleet: Fleet, placed: Sequence[Placed], rounds: Sequence[Round]) -> Fleet:
    """Return the fleet after these rounds, one after the other; a place that is not free raises."""
    now, there = copied(fleet), list(placed)
    for one in rounds:
        moved(now, there, one)
    return now


def assert_room(fleet: Fleet, placed: Sequence[Placed], found: Room, wanted: Sequence[str]) -> None:
    """See that a plan moves each vGPU once, can be done in its order, and has a place for all that is wanted."""
    assert len({s.which for s in found.shifts}) == len(found.shifts)
    now = after(fleet, placed, found.rounds)
    assert [p.profile for p in found.places] == list(wanted)
    for place in found.places:
        now = with_one(now, place)
