# SPDX-License-Identifier: Apache-2.0
"""The GPUs for `simulate`: those of an observed host, empty or with their current vGPUs, for one or many hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vgpuctl.capacity.gpu_states import build_fleet_state
from vgpuctl.capacity.mig_on_demand import OnDemandGpu, make_on_demand_gpu
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.placement.fleet import Fleet, GpuGroup
from vgpuctl.placement.gpu_kind import GpuKind
from vgpuctl.placement.profile_resolution import ModelMatcher
from vgpuctl.value import EMPTY_MAPPING, Value, replace


class InitialGpu(Value):
    """The state of one GPU at the beginning."""

    group: GpuGroup
    vgpus: int = 0
    used_mib: int = 0


class SimulatedGpus(Value):
    """Kinds of GPUs, a model matcher for each kind, and every GPU.

    `excluded_gpus`: why a GPU of the host is not included.
    """

    kinds: tuple[GpuKind, ...]
    model_matchers: tuple[ModelMatcher, ...]
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


def list_simulated_gpus(
    snapshot: Snapshot, *, keep_vgpus: bool = False, instances_on_demand: bool = False, host_count: int = 1
) -> SimulatedGpus:
    """Return the GPUs of `host_count` hosts like this one. `keep_vgpus`: with their current vGPUs, which stay.

    `instances_on_demand`: GPUs with MIG create a GPU instance for each vGPU, see `mig_on_demand`.
    """
    state = build_fleet_state(snapshot, [g for g in snapshot.gpus if not (instances_on_demand and _has_mig(g))])
    kinds = list(state.fleet.kinds)
    matchers: list[ModelMatcher] = [gpu.has_model_name for gpu in _first_of_each_kind(kinds, state.fleet, state.gpus)]
    gpus = []
    for number, slots in enumerate(state.allocated):
        group = state.fleet.group_of(number)
        used_mib = sum(slot.vgpu.framebuffer_mib or 0 for slot in slots)
        current = InitialGpu(group, state.fleet.vgpu_count(number), used_mib)
        gpus.append(current if keep_vgpus else InitialGpu(GpuGroup(group.kind_index, kinds[group.kind_index].empty)))
    excluded = dict(state.excluded_gpus)
    kind_numbers: dict[OnDemandGpu, int] = {}
    for gpu in snapshot.gpus if instances_on_demand else ():
        on_demand = make_on_demand_gpu(gpu) if _has_mig(gpu) else None
        if on_demand is None and _has_mig(gpu):
            excluded[gpu.address] = "where its GPU instances may be is not known"
        elif on_demand is not None:
            if on_demand not in kind_numbers:
                kind_numbers[on_demand] = len(kinds)
                kinds.append(on_demand.make_kind())
                matchers.append(gpu.has_model_name)
            gpus.append(InitialGpu(GpuGroup(kind_numbers[on_demand], kinds[kind_numbers[on_demand]].empty)))
    return SimulatedGpus(tuple(kinds), tuple(matchers), tuple(gpus) * host_count, excluded)


def _has_mig(gpu: Gpu) -> bool:
    return gpu.mig is not None and gpu.mig.enabled


def _first_of_each_kind(kinds: Sequence[GpuKind], fleet: Fleet, gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return a GPU of each kind."""
    gpu_by_kind: dict[int, Gpu] = {}
    for number, gpu in enumerate(gpus):
        gpu_by_kind.setdefault(fleet.group_of(number).kind_index, gpu)
    return [gpu_by_kind[number] for number in range(len(kinds))]
