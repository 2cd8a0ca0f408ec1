# SPDX-License-Identifier: Apache-2.0
"""Fragmentation gradient descent: Weng et al., "Beware of Fragmentation", USENIX ATC'23, section 4.

The fragmentation of a GPU is the free framebuffer that a request drawn from the demand cannot use: all that is free
when the profile does not fit, none when it does (their frag.go counts a GPU's rest when it is less than the request). A
request goes where the sum grows least. Their published figures for the Alibaba trace need that trace; it is not here,
so this is held to the definition, not to their numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.bench.placement.fleets import used_mib
from vgpuctl.placement.fleet import Fleet, GpuGroup, PlacementChoice
from vgpuctl.placement.gpu_kind import GpuKind, Placement, State


class Fgd:
    """`best_fit`: equal moves go to the GPU with the least framebuffer free, else to the lowest number.

    `finer`: a profile that fits leaves as fragment what it cannot fill, by `Kind.left`. This is not in the paper; it is
    here because a reader would try it next.
    """

    def __init__(self, demand: Mapping[str, float], *, best_fit: bool = False, finer: bool = False) -> None:
        total = sum(demand.values())
        self._demand = {profile: weight / total for profile, weight in demand.items()}
        self._best_fit = best_fit
        self._finer = finer
        self._fragmentation: dict[tuple[str, State], float] = {}
        self._least: dict[tuple[str, State, str], tuple[float, Placement] | None] = {}

    def choose(self, fleet: Fleet, profile: str) -> PlacementChoice | None:
        """See `Policy.choose`."""
        best: tuple[float, int, int, GpuGroup, Placement] | None = None
        for group, _ in fleet.groups():
            kind = fleet.kind_of(group)
            least = self._least_growth(kind, group.state, profile)
            if least is not None:
                free = kind.framebuffer_mib - used_mib(kind, group.state) if self._best_fit else 0
                found = (least[0], free, fleet.first_gpu(group), group, least[1])
                best = found if best is None else min(best, found, key=lambda f: f[:3])
        return None if best is None else PlacementChoice(best[2], best[3], best[4])

    def _least_growth(self, kind: GpuKind, state: State, profile: str) -> tuple[float, Placement] | None:
        """Return the move by which fragmentation grows least on such a GPU, and by how much; None without room."""
        key = (kind.name, state, profile)
        if key not in self._least:
            before = self.fragmentation(kind, state)
            grown = [
                (round(self.fragmentation(kind, m.state_after) - before, 6), m) for m in kind.placements(state, profile)
            ]
            self._least[key] = min(grown, key=lambda g: (g[0], g[1].place), default=None)
        return self._least[key]

    def fragmentation(self, kind: GpuKind, state: State) -> float:
        """Return the framebuffer in MiB of a GPU that the demand is expected not to be able to use."""
        known = self._fragmentation.get((kind.name, state))
        if known is None:
            free = kind.framebuffer_mib - used_mib(kind, state)
            known = 0.0
            for profile, weight in self._demand.items():
                if self._finer:
                    known += weight * max(0, free - kind.count_remaining(state, profile) * kind.sizes.get(profile, 0))
                elif not kind.placements(state, profile):
                    known += weight * free
            self._fragmentation[kind.name, state] = known
        return known
