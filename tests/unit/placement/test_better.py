# SPDX-License-Identifier: Apache-2.0
"""Moves that leave larger pieces: each makes the fleet better, and nothing is moved in vain."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.placement.fleets import after, filled
from tests.unit.placement.test_kinds import A40
from vgpuctl.placement.better import by_size, improvement
from vgpuctl.placement.fleet import Fleet, GpuGroup
from vgpuctl.placement.joint import total_left
from vgpuctl.placement.migrations import Migration, PlacedVgpu


def value(fleet: Fleet) -> tuple[int, ...]:
    """Return how many of each profile fit alone, the largest first."""
    return tuple(total_left(fleet, profile) for profile in by_size(fleet))


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_the_fleet_is_better_after_them_or_there_are_none(data: st.DataObject) -> None:
    fleet, placed = data.draw(filled())
    order = improvement(fleet, placed)
    moved = [entry.vgpu_index for entry in order if isinstance(entry, Migration)]
    assert len(set(moved)) == len(moved)
    if order:
        assert value(after(fleet, placed, order)) > value(fleet)


def test_scattered_vgpus_leave_gpus_empty() -> None:
    fleet = Fleet([A40], [GpuGroup(0, (8192, 2)), GpuGroup(0, (8192, 2)), GpuGroup(0, (8192, 2))])
    placed = [PlacedVgpu(gpu, "8Q", 0) for gpu in (0, 0, 1, 1, 2, 2)]
    order = improvement(fleet, placed)
    assert [type(entry) for entry in order] == [Migration] * 4
    sizes = sorted(after(fleet, placed, order).group_of(gpu).state for gpu in range(3))
    assert sizes == [(0, 0), (0, 0), (8192, 6)]
    assert len(improvement(fleet, placed, 3)) == 2


def test_the_largest_profile_counts_first() -> None:
    assert by_size(Fleet([A40], []))[0] == "8Q"
    assert value(Fleet([A40], [GpuGroup(0, (0, 0))])) == (6, 24, 24, 32)
