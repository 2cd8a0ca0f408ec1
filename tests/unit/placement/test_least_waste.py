"""The least-waste policy: it admits what fits, is the same every time, and wastes no more than its best peer."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.gpu.test_kinds import A40, A40_OLD, GVT, H100_MIG, KINDS, grown
from vgpuctl.gpu.equal_size import EqualSizeKind
from vgpuctl.gpu.gpu_kind import GpuKind
from vgpuctl.gpu.slice_kind import Footprint, SliceKind
from vgpuctl.placement.fleet import Fleet, GpuGroup, PlacementChoice
from vgpuctl.placement.least_waste import LeastWaste
from vgpuctl.placement.policy import Depth, PlacementPolicy
from vgpuctl.placement.prices import demand_of, prices

VDI = {"1B": 40.0, "2B": 35.0, "4Q": 20.0, "8Q": 5.0}
VDI_SIZES = {"1B": 1024, "2B": 2048, "4Q": 4096, "8Q": 8192}
VDI_A40 = EqualSizeKind("A40", 49152, VDI_SIZES, {"1B": 32, "2B": 24, "4Q": 12, "8Q": 6})
VDI_A16 = EqualSizeKind("A16", 16384, VDI_SIZES, {"1B": 16, "2B": 8, "4Q": 4, "8Q": 2})
MIG = {"1g": 40.0, "2g": 25.0, "3g": 20.0, "4g": 5.0, "7g": 10.0}
BLACKWELL_MOST = {"2": 32, "4": 24, "8": 12}
BLACKWELL = SliceKind(
    "RTX PRO 6000",
    98304,
    {p: int(p) * 1024 for p in BLACKWELL_MOST},
    {p: Footprint(tuple(96 * j // n for j in range(n)), max(3, int(p))) for p, n in BLACKWELL_MOST.items()},
    slices=96,
)


class FragmentationGradient:
    """Least increase of fragmentation: the framebuffer of GPUs that a profile of the mix does not fit (FGD, ATC'23)."""

    def __init__(self, mix: dict[str, float], kinds: Sequence[GpuKind]) -> None:
        self._mix = mix
        self._free = {GpuGroup(i, kind.empty): kind.framebuffer_mib for i, kind in enumerate(kinds)}

    def choose(self, fleet: Fleet, profile: str) -> PlacementChoice | None:
        choices = list(fleet.choices(profile))
        for c in choices:
            after = GpuGroup(c.group.kind_index, c.placement.state_after)
            self._free.setdefault(after, self._free[c.group] - fleet.kind_of(c.group).sizes[profile])
        return min(choices, key=lambda c: (self._more(fleet, c), c.gpu, c.placement.place), default=None)

    def _more(self, fleet: Fleet, choice: PlacementChoice) -> float:
        kind = fleet.kind_of(choice.group)
        before, after = (
            self._free[g] for g in (choice.group, GpuGroup(choice.group.kind_index, choice.placement.state_after))
        )
        return sum(
            weight
            * (
                after * (not kind.placements(choice.placement.state_after, p))
                - before * (not kind.placements(choice.group.state, p))
            )
            for p, weight in self._mix.items()
        )


def admitted_mib(policy: PlacementPolicy, kinds: Sequence[GpuKind], gpus: int, mix: dict[str, float], seed: int) -> int:
    """Return the framebuffer that is given out of requests for 1.3 times what the fleet has."""
    fleet = Fleet(kinds, [GpuGroup(i, kind.empty) for i, kind in enumerate(kinds) for _ in range(gpus // len(kinds))])
    drawn = random.Random(seed)
    left = 1.3 * sum(fleet.kind_of(fleet.group_of(gpu)).framebuffer_mib for gpu in range(len(fleet)))
    admitted = 0
    while left > 0:
        (profile,) = drawn.choices(list(mix), list(mix.values()))
        left -= kinds[0].sizes[profile]
        choice = policy.choose(fleet, profile)
        if choice is not None:
            fleet.add_vgpu(choice.gpu, choice.placement)
            admitted += kinds[0].sizes[profile]
    return admitted


@pytest.mark.parametrize(
    ("kinds", "mix"),
    [((VDI_A40, VDI_A16), VDI), ((H100_MIG,), MIG), ((BLACKWELL,), dict.fromkeys(BLACKWELL_MOST, 1.0))],
    ids=["two models", "MIG", "mixed size"],
)
def test_least_waste_admits_more_than_the_gradient_of_fragmentation(
    kinds: Sequence[GpuKind], mix: dict[str, float]
) -> None:
    ours, theirs = (
        sum(admitted_mib(policy, kinds, 4, mix, seed) for seed in range(4) for policy in [make()])
        for make in (lambda: LeastWaste(mix), lambda: FragmentationGradient(mix, kinds))
    )
    assert ours > theirs


def test_on_one_model_with_one_size_at_a_time_it_admits_what_depth_first_does() -> None:
    for seed in range(3):
        ours = admitted_mib(LeastWaste(VDI), (VDI_A40,), 4, VDI, seed)
        assert ours == admitted_mib(Depth(), (VDI_A40,), 4, VDI, seed)


@settings(max_examples=25)
@given(data=st.data())
def test_it_refuses_only_when_no_gpu_has_room(data: st.DataObject) -> None:
    groups = [GpuGroup(i, grown(kind, data)) for i, kind in enumerate(KINDS) for _ in range(2)]
    fleet = Fleet(KINDS, groups)
    offered = sorted({p for kind in KINDS for p in kind.sizes})
    mix = {p: float(data.draw(st.integers(0, 3))) for p in data.draw(st.lists(st.sampled_from(offered), unique=True))}
    policy = LeastWaste(mix)
    for profile in data.draw(st.lists(st.sampled_from([*offered, "unknown"]), min_size=1, max_size=5)):
        choice = policy.choose(fleet, profile)
        assert (choice is None) == (not any(fleet.choices(profile)))
        if choice is not None:
            assert choice.placement in fleet.kind_of(choice.group).placements(choice.group.state, profile)
            assert choice.gpu == fleet.first_gpu(choice.group)
            fleet.add_vgpu(choice.gpu, choice.placement)


@settings(max_examples=25)
@given(data=st.data())
def test_the_order_of_the_gpus_changes_no_price_and_the_same_fleet_gets_the_same_answer(data: st.DataObject) -> None:
    kinds = [A40, A40_OLD, H100_MIG, GVT]
    groups = [GpuGroup(i, grown(kind, data)) for i, kind in enumerate(kinds) for _ in range(2)]
    mix = {"1B": 2.0, "8Q": 1.0, "2Q": 1.0, "1g": 2.0, "3g": 1.0, "V5_4": 1.0}
    fleet, turned = Fleet(kinds, groups), Fleet(kinds, data.draw(st.permutations(groups)))
    assert prices(fleet, demand_of(fleet, mix), {}) == prices(turned, demand_of(turned, mix), {})
    profile = data.draw(st.sampled_from(sorted(mix)))
    one, again = (LeastWaste(mix).choose(Fleet(kinds, groups), profile) for _ in range(2))
    assert one == again


def test_desktops_of_one_gib_go_to_the_card_that_takes_16_on_16_gib() -> None:
    """On an A40 32 of them take 48 GiB."""
    fleet = Fleet([VDI_A40, VDI_A16], [GpuGroup(0, (0, 0))] * 8 + [GpuGroup(1, (0, 0))] * 8)
    choice = LeastWaste(VDI).choose(fleet, "1B")
    assert choice is not None
    assert choice.gpu == 8


def test_of_gpus_that_are_alike_the_lowest_takes_it_at_the_lowest_place() -> None:
    fleet = Fleet([H100_MIG], [GpuGroup(0, 0)] * 6)
    choice = LeastWaste(MIG).choose(fleet, "7g")
    assert choice is not None
    assert (choice.gpu, choice.placement.place) == (0, 255)
