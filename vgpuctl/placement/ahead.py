# SPDX-License-Identifier: Apache-2.0
"""What a few GPUs are expected to give out to the next requests, each placed as well as can be.

Prices of a linear program are those of a fleet in which vGPUs may be parts of one. On one to three GPUs a single vGPU
is too much for that; but there all that the next requests can be, and all their places, are few enough to try.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from vgpuctl.gpu.gpu_kind import GpuKind
from vgpuctl.placement.fleet import Fleet, GpuGroup, PlacementChoice


class _TooManyError(Exception):
    """There is more to try than was allowed."""


class Ahead:
    """Tries the next requests of the demand.

    `chances`: of each profile, together 1. `worth`: of what is left of a GPU, in MiB, where requests are still to come
    that cannot be tried. After the last of all requests nothing that is left is worth anything.
    """

    def __init__(
        self, kinds: Sequence[GpuKind], chances: Mapping[str, float], worth: Callable[[GpuGroup], float]
    ) -> None:
        self._kinds = kinds
        self._chances = chances
        self._worth = worth
        self._known: dict[tuple[frozenset[tuple[GpuGroup, int]], int], float] = {}
        self._tries = 0
        self._more_to_come = True

    def best(self, fleet: Fleet, choices: Sequence[PlacementChoice], requests: int, tries: int) -> PlacementChoice:
        """Return the choice after which the next requests are expected to get the most.

        `requests`: how many are still to come; as many of them are tried as `tries` allow. Ties go to the first choice.
        """
        gpus = tuple(fleet.group_of(gpu) for gpu in range(len(fleet)))
        self._tries = tries
        best = choices[0]
        for depth in range(requests + 1):
            self._known, self._more_to_come = ({}, False) if depth == requests else (self._known, True)
            try:
                values = [
                    round(self._expected(_after(gpus, c.group, c.placement.state_after), depth), 3) for c in choices
                ]
            except _TooManyError:
                break
            best = choices[values.index(max(values))]
        return best

    def _expected(self, gpus: tuple[GpuGroup, ...], requests: int) -> float:
        if not requests:
            return sum(map(self._worth, gpus)) if self._more_to_come else 0.0
        key = (frozenset(Counter(gpus).items()), requests)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = sum(
                chance * self._most(gpus, profile, requests - 1) for profile, chance in self._chances.items()
            )
        return known

    def _most(self, gpus: tuple[GpuGroup, ...], profile: str, requests: int) -> float:
        """Return the most of one request and of those after it.

        Leaving it out counts as a way, too: else a GPU would be taken for one size just to have no room for another.
        """
        most = self._expected(gpus, requests)
        for group in dict.fromkeys(gpus):
            kind = self._kinds[group.kind_index]
            for move in kind.placements(group.state, profile):
                self._tries -= 1
                if self._tries < 0:
                    raise _TooManyError
                most = max(most, kind.sizes[profile] + self._expected(_after(gpus, group, move.state_after), requests))
        return most


def _after(gpus: tuple[GpuGroup, ...], group: GpuGroup, state: object) -> tuple[GpuGroup, ...]:
    """Return the GPUs with one of a group in another state."""
    at = gpus.index(group)
    return (*gpus[:at], GpuGroup(group.kind_index, state), *gpus[at + 1 :])
