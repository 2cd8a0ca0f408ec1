# SPDX-License-Identifier: Apache-2.0
"""The GPUs for `simulate`: those of an observed host, empty or with their current vGPUs, for one or many hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from vgpuctl.gpu.gpu_kind import GpuKind
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.results.simulation import SimulatedGpusResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.placement.fleet import Fleet, GpuGroup
from vgpuctl.placement.fleet_state import build_fleet_state
from vgpuctl.value import EMPTY_MAPPING, Value, replace


class InitialGpu(Value):
    """The state of one GPU at the beginning."""

    group: GpuGroup
    vgpus: int = 0
    used_mib: int = 0


class SimulatedGpus(Value):
    """Kinds of GPUs, and every GPU. `excluded_gpus`: by address, why a GPU of the host is not included."""

    kinds: tuple[GpuKind, ...]
    gpus: tuple[InitialGpu, ...]
    excluded_gpus: Mapping[str, str] = EMPTY_MAPPING

    def keep_kinds(self, useful: Sequence[bool]) -> SimulatedGpus:
        """Return only the GPUs of the useful kinds; `useful` has one value for each kind."""
        return replace(self, gpus=tuple(gpu for gpu in self.gpus if useful[gpu.group.kind_index]))

    @property
    def framebuffer_mib(self) -> int:
        """The framebuffer of all GPUs together."""
        return sum(self.kinds[gpu.group.kind_index].framebuffer_mib for gpu in self.gpus)

    @property
    def used_mib(self) -> tuple[int, ...]:
        """The allocated framebuffer of each GPU at the beginning."""
        return tuple(gpu.used_mib for gpu in self.gpus)

    def make_fleet(self, kinds: Sequence[GpuKind]) -> Fleet:
        """Return a fleet of these GPUs in their initial state; `kinds` may rename the profiles."""
        return Fleet(kinds, [gpu.group for gpu in self.gpus], [gpu.vgpus for gpu in self.gpus])

    def count_by_kind(self) -> tuple[SimulatedGpusResult, ...]:
        """Return the number of GPUs of each kind that has any."""
        counts = Counter(self.kinds[gpu.group.kind_index] for gpu in self.gpus)
        return tuple(SimulatedGpusResult(k.name, counts[k], k.framebuffer_mib) for k in self.kinds if counts[k])


def list_simulated_gpus(snapshot: Snapshot, *, keep_vgpus: bool = False, host_count: int = 1) -> SimulatedGpus:
    """Return the GPUs of `host_count` hosts like this one. `keep_vgpus`: with their current vGPUs, which stay."""
    unknown = {gpu.address: "its framebuffer is not known" for gpu in snapshot.gpus if not _has_known_framebuffer(gpu)}
    state = build_fleet_state(snapshot, [gpu for gpu in snapshot.gpus if gpu.address not in unknown])
    gpus = []
    for number, slots in enumerate(state.allocated):
        if not keep_vgpus and len(slots) < state.fleet.vgpu_count(number):
            unknown[state.gpus[number].address] = "what fits without its vGPUs is not known"
            continue
        group = state.fleet.group_of(number)
        used_mib = sum(slot.vgpu.framebuffer_mib or 0 for slot in slots)
        current = InitialGpu(group, state.fleet.vgpu_count(number), used_mib)
        empty = InitialGpu(GpuGroup(group.kind_index, state.fleet.kind_of(group).empty))
        gpus.append(current if keep_vgpus else empty)
    return SimulatedGpus(state.fleet.kinds, tuple(gpus) * host_count, {**unknown, **state.excluded_gpus})


def _has_known_framebuffer(gpu: Gpu) -> bool:
    return bool(gpu.framebuffer_mib) or any(vgpu_type.framebuffer_mib for vgpu_type in gpu.types)
