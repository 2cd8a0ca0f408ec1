# SPDX-License-Identifier: Apache-2.0
"""Fragmentation gradient descent: Weng et al., "Beware of Fragmentation", USENIX ATC'23, section 4.

A GPU's fragmentation is the free framebuffer that a request drawn from the demand cannot use: all free framebuffer if
the profile does not fit, none if it fits (their frag.go counts a GPU's remainder if it is less than the request). A
request goes to the GPU where the sum grows least. The paper's figures are for the Alibaba trace, which this repository
does not have. So this code follows the definition; nothing compares it with those figures.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.bench.placement.fleets import used_mib
from vgpuctl.gpu.gpu_kind import GpuKind, Placement, State
from vgpuctl.placement.fleet import Fleet, GpuGroup, PlacementChoice


class Fgd:
    """`best_fit`: ties go to the GPU with the least free framebuffer; without it, to the lowest GPU number.

    `finer`: a profile that fits also leaves a fragment, the framebuffer that the vGPUs counted by
    `GpuKind.count_remaining` cannot fill. This is not in the paper. It is here because a reader would try it next.
    """

    def __init__(self, demand: Mapping[str, float], *, best_fit: bool = False, finer: bool = False) -> None:
        total = sum(demand.values())
        self._demand = {profile: weight / total for profile, weight in demand.items()}
        self._best_fit = best_fit
        self._finer = finer
        self._fragmentation: dict[tuple[str, State], float] = {}
        self._least: dict[tuple[str, State, str], tuple[float, Placement] | None] = {}

    def choose(self, fleet: Fleet, profile: str) -> PlacementChoice | None:
        """See `PlacementPolicy.choose`."""
        best: tuple[float, int, int, GpuGroup, Placement] | None = None
        for group, _ in fleet.groups():
            kind = fleet.kind_of(group)
            least = self._least_growth(kind, group.state, profile)
            if least is not None:
                free = kind.framebuffer_mib - used_mib(kind, group.state) if self._best_fit else 0
                result = (least[0], free, fleet.first_gpu(group), group, least[1])
                best = result if best is None else min(best, result, key=lambda f: f[:3])
        return None if best is None else PlacementChoice(best[2], best[3], best[4])

    def _least_growth(self, kind: GpuKind, state: State, profile: str) -> tuple[float, Placement] | None:
        """Return the smallest growth of fragmentation on such a GPU and its placement; None without room."""
        key = (kind.name, state, profile)
        if key not in self._least:
            before = self.fragmentation(kind, state)
            growths = [
                (round(self.fragmentation(kind, m.state_after) - before, 6), m) for m in kind.placements(state, profile)
            ]
            self._least[key] = min(growths, key=lambda g: (g[0], g[1].place), default=None)
        return self._least[key]

    def fragmentation(self, kind: GpuKind, state: State) -> float:
        """Return the free framebuffer in MiB on a GPU that the demand cannot use, on average."""
        wasted = self._fragmentation.get((kind.name, state))
        if wasted is None:
            free = kind.framebuffer_mib - used_mib(kind, state)
            wasted = 0.0
            for profile, weight in self._demand.items():
                if self._finer:
                    wasted += weight * max(0, free - kind.count_remaining(state, profile) * kind.sizes.get(profile, 0))
                elif not kind.placements(state, profile):
                    wasted += weight * free
            self._fragmentation[kind.name, state] = wasted
        return wasted
