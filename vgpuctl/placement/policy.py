# SPDX-License-Identifier: Apache-2.0
"""The policies by which the next vGPU's place is chosen. Ties go to the lowest number, then to the lowest place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from vgpuctl.placement.fleet import Choice, Fleet


class Policy(Protocol):
    """A way to choose. It admits whatever fits: `choose` returns None only when nothing does."""

    def choose(self, fleet: Fleet, profile: str) -> Choice | None:
        """Return where the next vGPU of the profile goes; the same fleet always gives the same answer."""


class FirstFit:
    """The GPU with the lowest address that has room."""

    def choose(self, fleet: Fleet, profile: str) -> Choice | None:
        """See `Policy.choose`."""
        return min(fleet.choices(profile), key=lambda c: (c.gpu, c.move.place), default=None)


class Depth:
    """The GPU with the most vGPUs that has room: one is filled before the next is begun."""

    def choose(self, fleet: Fleet, profile: str) -> Choice | None:
        """See `Policy.choose`."""
        return _by_number(fleet, profile, -1)


class Breadth:
    """The GPU with the fewest vGPUs that has room: each has as few neighbours as can be."""

    def choose(self, fleet: Fleet, profile: str) -> Choice | None:
        """See `Policy.choose`."""
        return _by_number(fleet, profile, 1)


def _by_number(fleet: Fleet, profile: str, sign: int) -> Choice | None:
    """Look at every GPU: how many vGPUs it has is not part of its state."""
    open_ones = {choice.group: choice for choice in reversed(list(fleet.choices(profile)))}
    gpus = (gpu for gpu in range(len(fleet)) if fleet.group_of(gpu) in open_ones)
    best = min(gpus, key=lambda gpu: (sign * fleet.vgpus(gpu), gpu), default=None)
    return None if best is None else open_ones[fleet.group_of(best)]._replace(gpu=best)


BY_GPU: Mapping[str, type[Depth | Breadth | FirstFit]] = {"depth": Depth, "breadth": Breadth, "first-fit": FirstFit}
"""By name, the policies that look at GPUs alone, not at the places on one."""
