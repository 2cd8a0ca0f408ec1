# SPDX-License-Identifier: Apache-2.0
"""The policies of other programs, each from its published behaviour, over the same fleet and rules.

What they cannot know they are given: here they are asked only for GPUs that have room, although some of them fail and
try another. On a GPU where the place is free to choose they take the lowest, as the driver does without being told.
First in mapping order (Proxmox, pve-docs qm.adoc; OpenNebula, HostSharePCI.cc) is `FirstFit`; most vGPUs first (vdsm's
`compact`, vSphere's "group VMs on GPU until full") and fewest first (vdsm's `separate`, vSphere's "spread") are `Depth`
and `Breadth`, all three in vgpuctl.placement.policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from tests.bench.placement.fleets import used_mib
from vgpuctl.placement.fleet import Fleet, GpuGroup, PlacementChoice
from vgpuctl.placement.gpu_kind import GpuKind

NODE_GPUS = 4
"""GPUs of a node, for policies that choose a node first."""


def open_choices(fleet: Fleet, profile: str) -> dict[GpuGroup, PlacementChoice]:
    """Return the lowest place in each group that has room."""
    found: dict[GpuGroup, PlacementChoice] = {}
    for group, _ in fleet.groups():
        moves = fleet.kind_of(group).placements(group.state, profile)
        if moves:
            found[group] = PlacementChoice(fleet.first_gpu(group), group, moves[0])
    return found


def open_gpus(fleet: Fleet, among: dict[GpuGroup, PlacementChoice]) -> Iterator[int]:
    """Return the numbers of the GPUs with room."""
    return (gpu for gpu in range(len(fleet)) if fleet.group_of(gpu) in among)


class RandomGpu:
    """Any GPU that has room (Nova with `randomize_allocation_candidates`; virtual-gpu.rst)."""

    def __init__(self, seed: int) -> None:
        self._random = Random(f"policy {seed}")

    def choose(self, fleet: Fleet, profile: str) -> PlacementChoice | None:
        """See `Policy.choose`; the same calls in the same order give the same answers."""
        among = open_choices(fleet, profile)
        gpus = list(open_gpus(fleet, among))
        if not gpus:
            return None
        gpu = gpus[int(self._random.random() * len(gpus))]
        return among[fleet.group_of(gpu)]._replace(gpu=gpu)


class _ByGroup:
    """The lowest GPU of the group with the least key."""

    def key(self, kind: GpuKind, choice: PlacementChoice, profile: str) -> float:
        """Return what is to be small."""
        raise NotImplementedError

    def choose(self, fleet: Fleet, profile: str) -> PlacementChoice | None:
        """See `Policy.choose`."""
        among = open_choices(fleet, profile).values()
        return min(among, key=lambda c: (self.key(fleet.kind_of(c.group), c, profile), c.gpu), default=None)


class XenDepth(_ByGroup):
    """The GPU with the least capacity left for this type (XenServer `depth_first`; xapi vgpuops.ml)."""

    def key(self, kind: GpuKind, choice: PlacementChoice, profile: str) -> float:
        """The capacity that is left."""
        return kind.count_remaining(choice.group.state, profile)


class XenBreadth(_ByGroup):
    """The GPU with the most capacity left for this type (XenServer `breadth_first`; xapi vgpuops.ml)."""

    def key(self, kind: GpuKind, choice: PlacementChoice, profile: str) -> float:
        """The capacity that is left, negative."""
        return -kind.count_remaining(choice.group.state, profile)


class BestFit(_ByGroup):
    """The GPU with the least framebuffer free (best fit; FGD's paper has it as a baseline)."""

    def key(self, kind: GpuKind, choice: PlacementChoice, profile: str) -> float:
        """The framebuffer that is free."""
        return kind.framebuffer_mib - used_mib(kind, choice.group.state)


class LeastVram(_ByGroup):
    """The GPU with the least framebuffer in use (hypeman, change 66)."""

    def key(self, kind: GpuKind, choice: PlacementChoice, profile: str) -> float:
        """The framebuffer in use."""
        return used_mib(kind, choice.group.state)


class LeastLoaded:
    """The card with the greatest share of its VFs free (Incus; gpu_sriov.go, getVF).

    A card has as many VFs as it takes vGPUs of its smallest type.
    """

    def __init__(self) -> None:
        self._vfs: dict[str, int] = {}

    def choose(self, fleet: Fleet, profile: str) -> PlacementChoice | None:
        """See `Policy.choose`."""
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
    """A node by its share of framebuffer in use, then a GPU in it by the same (HAMi, scheduler-policy.md; Volcano).

    `binpack` takes the greatest share, `spread` the least. HAMi's default is binpack for nodes and spread for GPUs.
    """

    def __init__(self, node: str, gpu: str) -> None:
        self._node_sign = -1 if node == "binpack" else 1
        self._gpu_sign = -1 if gpu == "binpack" else 1

    def choose(self, fleet: Fleet, profile: str) -> PlacementChoice | None:
        """See `Policy.choose`."""
        among = open_choices(fleet, profile)
        used = {group: used_mib(fleet.kind_of(group), group.state) for group, _ in fleet.groups()}
        size = [kind.framebuffer_mib for kind in fleet.kinds]

        def share(gpus: Sequence[int]) -> float:
            groups = [fleet.group_of(gpu) for gpu in gpus]
            return sum(used[g] for g in groups) / sum(size[g.kind] for g in groups)

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
    """Each card is given one type, in turn, and filled with it (KubeVirt; `configureDesiredMDEVTypes`).

    It refuses what would fit on another's card.
    """

    def choose(self, fleet: Fleet, profile: str) -> PlacementChoice | None:
        """See `Policy.choose`, but for what it refuses."""
        among = open_choices(fleet, profile)
        for gpu in open_gpus(fleet, among):
            kind = fleet.kind_of(fleet.group_of(gpu))
            types = sorted(kind.sizes)
            if types[gpu % len(types)] == profile:
                return among[fleet.group_of(gpu)]._replace(gpu=gpu)
        return None
