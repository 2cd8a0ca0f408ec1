"""Orders of moves: each when its place is free; where none is, one gives up its place, functions counted."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tests import examples
from tests.unit.placement.fleets import TINY, count_free_after_order, every_place, filled, with_one
from vgpuctl.placement.fleet import (
    Fleet,
    FreeFunctions,
    GpuGroup,
    Leave,
    Migration,
    PlacedVgpu,
    add_placed_vgpu,
    apply_order,
    copy_fleet,
)
from vgpuctl.placement.move_order import Mover, order_moves
from vgpuctl.value import EMPTY_MAPPING

Entries = tuple[Migration | Leave, ...]


def fleet_of(*placed: PlacedVgpu, gpus: int = 2) -> Fleet:
    fleet = Fleet([TINY], [GpuGroup(0, TINY.empty)] * gpus)
    for vgpu in placed:
        add_placed_vgpu(fleet, vgpu)
    return fleet


def entries(
    fleet: Fleet,
    here: Sequence[PlacedVgpu],
    targets: Sequence[PlacedVgpu],
    free: FreeFunctions = EMPTY_MAPPING,
    running: frozenset[int] = frozenset(),
    fixed: frozenset[int] = frozenset(),
) -> Entries | None:
    movers = [Mover(number, vgpu, vgpu.profile, number in running) for number, vgpu in enumerate(here)]
    order = order_moves(fleet, movers, targets, free, fixed)
    return None if order is None else order.entries


SMALL, LARGE = PlacedVgpu(0, "1T", 0b010), PlacedVgpu(1, "2T", 0b011)
SWAP = (PlacedVgpu(1, "1T", 0b001), PlacedVgpu(0, "2T", 0b110))


def test_what_has_to_leave_first_goes_first() -> None:
    leaving = PlacedVgpu(1, "2T", 0b011)
    fleet = fleet_of(SMALL, leaving, gpus=3)
    targets = [PlacedVgpu(1, "1T", 0b001), PlacedVgpu(2, "2T", 0b011)]
    assert entries(fleet, [SMALL, leaving], targets) == ((1, 2, 0b011), (0, 1, 0b001))


def test_of_two_that_wait_for_each_other_one_gives_up_its_place() -> None:
    assert entries(fleet_of(SMALL, LARGE), [SMALL, LARGE], SWAP) == (Leave(0), (1, 0, 0b110), (0, 1, 0b001))


def test_a_vm_that_is_off_waits_rather_than_one_that_runs() -> None:
    fleet = fleet_of(SMALL, LARGE)
    for runs, waits in (({0}, 1), ({1}, 0), ({0, 1}, 0)):
        order = entries(fleet, [SMALL, LARGE], SWAP, running=frozenset(runs))
        assert order[0] == Leave(waits)


def test_the_one_waits_for_which_most_others_wait() -> None:
    """Two small ones go where the large one is, and it goes where they are."""
    here = [PlacedVgpu(0, "1T", 0b001), PlacedVgpu(0, "1T", 0b010), LARGE]
    targets = [PlacedVgpu(1, "1T", 0b001), PlacedVgpu(1, "1T", 0b010), PlacedVgpu(0, "2T", 0b011)]
    order = entries(fleet_of(*here), here, targets)
    assert order == (Leave(2), (0, 1, 0b001), (1, 1, 0b010), (2, 0, 0b011))


def test_what_leaves_gives_up_its_function_too() -> None:
    fleet = fleet_of(SMALL, LARGE)
    for free in ({0: 1, 1: 1}, {0: 0, 1: 0}):
        assert entries(fleet, [SMALL, LARGE], SWAP, free) == (Leave(0), (1, 0, 0b110), (0, 1, 0b001))


def test_a_function_is_left_to_who_frees_another() -> None:
    """Both small ones go to the second GPU, which has one function more; its large one goes where the second is."""
    here = [PlacedVgpu(0, "1T", 0b001), PlacedVgpu(0, "1T", 0b010), PlacedVgpu(1, "2T", 0b011)]
    targets = [PlacedVgpu(1, "1T", 0b100), PlacedVgpu(1, "1T", 0b001), PlacedVgpu(0, "2T", 0b110)]
    order = entries(fleet_of(*here), here, targets, {0: 1, 1: 1})
    assert order[0] == Migration(1, 1, 0b100)
    assert not any(isinstance(entry, Leave) for entry in order)


def test_without_a_function_or_a_place_in_the_end_there_is_no_order() -> None:
    other = PlacedVgpu(1, "1T", 0b100)
    assert entries(fleet_of(SMALL, other), [SMALL], [other]) is None
    assert entries(fleet_of(SMALL, other), [SMALL], [PlacedVgpu(1, "1T", 0b010)], {1: 0}) is None


def test_where_the_driver_chooses_the_place_a_vgpu_goes_to_another_gpu() -> None:
    """The first could take the place on the third GPU, but then the second had only one on its own left."""
    here = [PlacedVgpu(0, "1T", 0b001), PlacedVgpu(1, "1T", 0b001)]
    targets = [PlacedVgpu(2, "1T", 0b001), PlacedVgpu(1, "1T", 0b010)]
    order = entries(fleet_of(*here, gpus=3), here, targets, fixed=frozenset({0, 1, 2}))
    assert order == (Migration(0, 1, 0b010), Migration(1, 2, 0b001))


def test_forty_pairs_that_change_places_are_ordered() -> None:
    fleet = Fleet([TINY], [GpuGroup(0, 0b111)] * 40)
    here = [vgpu for gpu in range(40) for vgpu in (PlacedVgpu(gpu, "2T", 0b011), PlacedVgpu(gpu, "1T", 0b100))]
    targets = [vgpu for gpu in range(40) for vgpu in (PlacedVgpu(gpu, "2T", 0b110), PlacedVgpu(gpu, "1T", 0b001))]
    order = entries(fleet, here, targets)
    assert sum(isinstance(entry, Leave) for entry in order) == 40
    assert len(order) == 120


@settings(deadline=None, max_examples=examples(200))
@given(data=st.data())
def test_each_finds_its_place_and_a_function(data: st.DataObject) -> None:
    fleet, placed = data.draw(filled(most_gpus=3, most_vgpus=4))
    moving = placed[:3]
    bare = copy_fleet(fleet)
    for vgpu in moving:
        bare.remove_vgpu(vgpu.gpu, vgpu.profile, vgpu.place)
    targets = []
    for vgpu in moving:
        places = list(every_place(bare, vgpu.profile))
        if not places:
            return
        targets.append(data.draw(st.sampled_from(places)))
        bare = with_one(bare, targets[-1])
    free = data.draw(st.dictionaries(st.integers(0, len(fleet) - 1), st.integers(0, 2)))
    order = entries(fleet, moving, targets, free)
    if order is None:
        left = {
            gpu: n + sum((v.gpu == gpu) - (t.gpu == gpu) for v, t in zip(moving, targets, strict=True))
            for gpu, n in free.items()
        }
        assert any(number < 0 for number in left.values())
        return
    apply_order(copy_fleet(fleet), list(moving), order)
    assert count_free_after_order(free, moving, order) is not None
    assert sorted((m.gpu, m.place) for m in order if isinstance(m, Migration)) == sorted(
        (t.gpu, t.place) for t in targets
    )
