# SPDX-License-Identifier: Apache-2.0
"""The other policies, each from its published behaviour, on the same GPUs and rules.

A policy knows which GPUs have room. Of several places on a GPU it takes the lowest, as NVIDIA's driver does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.bench.placement.cards import used_mib
from vgpuctl.gpu.gpu_kind import GpuKind, Placement, State
from vgpuctl.placement.fleet import Fleet, GpuGroup, PlacementChoice


def choices(fleet: Fleet, profile: str) -> Iterator[PlacementChoice]:
    """Yield every distinct way to place one vGPU: on the first GPU of each group."""
    for group, _ in fleet.groups():
        for placement in fleet.kind_of(group).placements(group.state, profile):
            yield PlacementChoice(fleet.first_gpu(group), group, placement)


class FirstFit:
    """The first GPU in the order of addresses (Proxmox, qm.adoc; OpenNebula, HostSharePCI.cc)."""

    def choose(self, fleet: Fleet, profile: str) -> PlacementChoice | None:
        """Return where the next vGPU goes."""
        return min(choices(fleet, profile), key=lambda c: (self.key(fleet, c), c.gpu, c.placement.place), default=None)

    def key(self, fleet: Fleet, choice: PlacementChoice) -> int:
        """Return the value to minimize before the address."""
        return 0


class BestFit(FirstFit):
    """The GPU with the least free framebuffer (a baseline in FGD's paper)."""

    def key(self, fleet: Fleet, choice: PlacementChoice) -> int:
        """Return the free framebuffer in MiB."""
        kind = fleet.kind_of(choice.group)
        return kind.framebuffer_mib - used_mib(kind, choice.group.state)


class Fgd:
    """Fragmentation gradient descent: Weng et al., "Beware of Fragmentation", USENIX ATC'23, section 4.

    The policy knows the demand in advance. A GPU's fragmentation is the free framebuffer that a request drawn from the
    demand cannot use: all of it if the profile does not fit, else none. A request goes where the sum grows least.
    `best_fit`: ties go to the GPU with the least free framebuffer. The paper's figures are for a trace that is not in
    this repository, so this follows the definition and is not compared with them.
    """

    def __init__(self, demand: Mapping[str, float], *, best_fit: bool = False) -> None:
        total = sum(demand.values())
        self._demand = {profile: weight / total for profile, weight in demand.items()}
        self._best_fit = best_fit
        self._fragmentation: dict[tuple[str, State], float] = {}
        self._least: dict[tuple[str, State, str], tuple[float, Placement] | None] = {}

    def choose(self, fleet: Fleet, profile: str) -> PlacementChoice | None:
        """Return where the next vGPU goes."""
        best: tuple[tuple[float, int, int], GpuGroup, Placement] | None = None
        for group, _ in fleet.groups():
            kind = fleet.kind_of(group)
            least = self._least_growth(kind, group.state, profile)
            if least is not None:
                free = kind.framebuffer_mib - used_mib(kind, group.state) if self._best_fit else 0
                key = (least[0], free, fleet.first_gpu(group))
                if best is None or key < best[0]:
                    best = key, group, least[1]
        return None if best is None else PlacementChoice(best[0][2], best[1], best[2])

    def _least_growth(self, kind: GpuKind, state: State, profile: str) -> tuple[float, Placement] | None:
        """Return the smallest growth of fragmentation on such a GPU and its placement; None without room."""
        key = (kind.name, state, profile)
        if key not in self._least:
            before = self.fragmentation(kind, state)
            growths = [
                (round(self.fragmentation(kind, p.state_after) - before, 6), p) for p in kind.placements(state, profile)
            ]
            self._least[key] = min(growths, key=lambda g: (g[0], g[1].place), default=None)
        return self._least[key]

    def fragmentation(self, kind: GpuKind, state: State) -> float:
        """Return the free framebuffer in MiB on a GPU that the demand cannot use, on average."""
        wasted = self._fragmentation.get((kind.name, state))
        if wasted is None:
            free = kind.framebuffer_mib - used_mib(kind, state)
            profiles = tuple(p for p in self._demand if p in kind.sizes)
            left = zip(profiles, kind.count_each(state, profiles), strict=True)
            wasted = free * (1 - sum(self._demand[p] for p, number in left if number))
            self._fragmentation[kind.name, state] = wasted
        return wasted
