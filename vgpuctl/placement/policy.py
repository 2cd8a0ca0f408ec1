# SPDX-License-Identifier: Apache-2.0
"""The policies that choose the place of the next vGPU. Ties go to the lowest GPU number, then to the lowest place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from vgpuctl.placement.fleet import Fleet, PlacementChoice


class PlacementPolicy(Protocol):
    """A way to choose. It admits whatever fits: `choose` returns None only when nothing does."""

    def choose(self, fleet: Fleet, profile: str) -> PlacementChoice | None:
        """Return where the next vGPU of the profile goes; the same fleet always gives the same answer."""


class FirstFit:
    """The GPU with the lowest address that has room."""

    def choose(self, fleet: Fleet, profile: str) -> PlacementChoice | None:
        """See `PlacementPolicy.choose`."""
        return min(fleet.choices(profile), key=lambda c: (c.gpu, c.placement.place), default=None)


class Depth:
    """The GPU with the most vGPUs that has room: one is filled before the next is used."""

    def choose(self, fleet: Fleet, profile: str) -> PlacementChoice | None:
        """See `PlacementPolicy.choose`."""
        return _choose_by_vgpu_count(fleet, profile, -1)


class Breadth:
    """The GPU with the fewest vGPUs that has room: each vGPU shares its GPU with as few others as possible."""

    def choose(self, fleet: Fleet, profile: str) -> PlacementChoice | None:
        """See `PlacementPolicy.choose`."""
        return _choose_by_vgpu_count(fleet, profile, 1)


def _choose_by_vgpu_count(fleet: Fleet, profile: str, sign: int) -> PlacementChoice | None:
    """Check every GPU, because the number of its vGPUs is not part of its state."""
    choice_by_group = {choice.group: choice for choice in reversed(list(fleet.choices(profile)))}
    gpus = (gpu for gpu in range(len(fleet)) if fleet.group_of(gpu) in choice_by_group)
    best = min(gpus, key=lambda gpu: (sign * fleet.vgpu_count(gpu), gpu), default=None)
    return None if best is None else choice_by_group[fleet.group_of(best)]._replace(gpu=best)


GPU_POLICIES: Mapping[str, type[Depth | Breadth | FirstFit]] = {
    "depth": Depth,
    "breadth": Breadth,
    "first-fit": FirstFit,
}
"""By name, the policies that only compare GPUs, not the places on one."""
