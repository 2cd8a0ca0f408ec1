# SPDX-License-Identifier: Apache-2.0
"""The policies of other programs, each written from its published behaviour, on the same fleet and rules.

The benchmark tells each policy which GPUs have room, although some of the programs try a GPU, fail and try another.
If a GPU has several possible placements, the policy takes the lowest, as the driver does by default. Three policies are
in vgpuctl.placement.policy:

- `FirstFit`: first in mapping order (Proxmox, pve-docs qm.adoc; OpenNebula, HostSharePCI.cc).
- `Depth`: most vGPUs first (vdsm's `compact`, vSphere's "group VMs on GPU until full").
- `Breadth`: fewest vGPUs first (vdsm's `separate`, vSphere's "spread").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from tests.bench.placement.fleets import used_mib
from vgpuctl.gpu.gpu_kind import GpuKind
from vgpuctl.placement.fleet import Fleet, GpuGroup, PlacementChoice

NODE_GPUS = 4
"""The number of GPUs in a node, for policies that choose a node first."""


def open_choices(fleet: Fleet, profile: str) -> dict[GpuGroup, PlacementChoice]:
    """Return the lowest placement in each group that has room."""
    result: dict[GpuGroup, PlacementChoice] = {}
    for group, _ in fleet.groups():
        placements = fleet.kind_of(group).placements(group.state, profile)
        if placements:
            result[group] = PlacementChoice(fleet.first_gpu(group), group, placements[0])
    return result


def open_gpus(fleet: Fleet, among: dict[GpuGroup, PlacementChoice]) -> Iterator[int]:
    """Yield the numbers of the GPUs that have room."""
    return (gpu for gpu in range(len(fleet)) if fleet.group_of(gpu) in among)


class RandomGpu:
    """Chooses any GPU that has room (Nova with `randomize_allocation_candidates`; virtual-gpu.rst)."""

    def __init__(self, seed: int) -> None:
        self._random = Random(f"policy {seed}")

    def choose(self, fleet: Fleet, profile: str) -> PlacementChoice | None:
        """See `PlacementPolicy.choose`. The same calls in the same order give the same choices."""
        among = open_choices(fleet, profile)
        gpus = list(open_gpus(fleet, among))
        if not gpus:
            return None
        gpu = gpus[int(self._random.random() * len(gpus))]
        return among[fleet.group_of(gpu)]._replace(gpu=gpu)


class _ByGroup:
    """Chooses the lowest GPU in the group with the smallest key."""

    def key(self, kind: GpuKind, choice: PlacementChoice, profile: str) -> float:
        """Return the value to minimise."""
        raise NotImplementedError

    def choose(self, fleet: Fleet, profile: str) -> PlacementChoice | None:
        """See `PlacementPolicy.choose`."""
        among = open_choices(fleet, profile).values()
        return min(among, key=lambda c: (self.key(fleet.kind_of(c.group), c, profile), c.gpu), default=None)


class XenDepth(_ByGroup):
    """Chooses the GPU with the least capacity left for this type (XenServer `depth_first`; xapi vgpuops.ml)."""

    def key(self, kind: GpuKind, choice: PlacementChoice, profile: str) -> float:
        """Return the capacity left."""
        return kind.count_remaining(choice.group.state, profile)


class XenBreadth(_ByGroup):
    """Chooses the GPU with the most capacity left for this type (XenServer `breadth_first`; xapi vgpuops.ml)."""

    def key(self, kind: GpuKind, choice: PlacementChoice, profile: str) -> float:
        """Return the capacity left, negated."""
        return -kind.count_remaining(choice.group.state, profile)


class BestFit(_ByGroup):
    """Chooses the GPU with the least free framebuffer (best fit; a baseline in FGD's paper)."""

    def key(self, kind: GpuKind, choice: PlacementChoice, profile: str) -> float:
        """Return the free framebuffer."""
        return kind.framebuffer_mib - used_mib(kind, choice.group.state)


class LeastVram(_ByGroup):
    """Chooses the GPU with the least framebuffer in use (hypeman, change 66)."""

    def key(self, kind: GpuKind, choice: PlacementChoice, profile: str) -> float:
        """Return the framebuffer in use."""
        return used_mib(kind, choice.group.state)


class LeastLoaded:
    """Chooses the card with the greatest share of its VFs free (Incus; gpu_sriov.go, getVF).

    A card has as many VFs as vGPUs of its smallest type fit on it.
    """

    def __init__(self) -> None:
        self._vfs: dict[str, int] = {}

    def choose(self, fleet: Fleet, profile: str) -> PlacementChoice | None:
        """See `PlacementPolicy.choose`."""
        for kind in fleet.kinds:
            if kind.name not in self._vfs:
                self._vfs[kind.name] = max(kind.count_remaining(kind.empty, p) for p in kind.sizes)
        among = open_choices(fleet, profile)
        best = min(
            open_gpus(fleet, among),
            key=lambda gpu: (fleet.vgpu_count(gpu) / self._vfs[fleet.kind_of(fleet.group_of(gpu)).name], gpu),
            default=None,
        )
        return None if best is None else among[fleet.group_of(best)]._replace(gpu=best)


class NodeThenGpu:
    """Chooses a node by its share of framebuffer in use, then a GPU likewise (HAMi, scheduler-policy.md; Volcano).

    `binpack` takes the greatest share, `spread` the least. HAMi's default is binpack for nodes and spread for GPUs.
    """

    def __init__(self, node: str, gpu: str) -> None:
        self._node_sign = -1 if node == "binpack" else 1
        self._gpu_sign = -1 if gpu == "binpack" else 1

    def choose(self, fleet: Fleet, profile: str) -> PlacementChoice | None:
        """See `PlacementPolicy.choose`."""
        among = open_choices(fleet, profile)
        used = {group: used_mib(fleet.kind_of(group), group.state) for group, _ in fleet.groups()}
        size = [kind.framebuffer_mib for kind in fleet.kinds]

        def share(gpus: Sequence[int]) -> float:
            groups = [fleet.group_of(gpu) for gpu in gpus]
            return sum(used[g] for g in groups) / sum(size[g.kind_index] for g in groups)

        best: tuple[float, float, int] | None = None
        for start in range(0, len(fleet), NODE_GPUS):
            gpus = range(start, min(start + NODE_GPUS, len(fleet)))
            fitting = [gpu for gpu in gpus if fleet.group_of(gpu) in among]
            if not fitting:
                continue
            node = self._node_sign * share(gpus)
            if best is None or node < best[0]:
                best = min((node, self._gpu_sign * share([gpu]), gpu) for gpu in fitting)
        return None if best is None else among[fleet.group_of(best[2])]._replace(gpu=best[2])


class OneTypePerCard:
    """Assigns one type to each card in turn, and fills the card with it (KubeVirt; `configureDesiredMDEVTypes`).

    It refuses requests that would only fit on a card of another type.
    """

    def choose(self, fleet: Fleet, profile: str) -> PlacementChoice | None:
        """See `PlacementPolicy.choose`, except for the requests that it refuses."""
        among = open_choices(fleet, profile)
        for gpu in open_gpus(fleet, among):
            kind = fleet.kind_of(fleet.group_of(gpu))
            types = sorted(kind.sizes)
            if types[gpu % len(types)] == profile:
                return among[fleet.group_of(gpu)]._replace(gpu=gpu)
        return None
