# SPDX-License-Identifier: Apache-2.0
"""The GPUs that `simulate` replays on: those of an observed host, empty or with what is on them, once or many times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vgpuctl.capacity.kinds import fleet_of
from vgpuctl.capacity.on_demand import OnDemand, on_demand
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.placement.demand import Called
from vgpuctl.placement.fleet import Fleet, Group
from vgpuctl.placement.kind import Kind
from vgpuctl.value import NOTHING, Value, replace


class Standing(Value):
    """How one GPU stands at the beginning."""

    group: Group
    vgpus: int = 0
    used_mib: int = 0


class Site(Value):
    """Kinds of GPUs, what each is called, and every GPU. `left_out`: why a GPU of the host is not among them."""

    kinds: tuple[Kind, ...]
    called: tuple[Called, ...]
    gpus: tuple[Standing, ...]
    left_out: Mapping[str, str] = NOTHING

    def only(self, useful: Sequence[bool]) -> Site:
        """Return the GPUs of these kinds, one word for each kind."""
        return replace(self, gpus=tuple(gpu for gpu in self.gpus if useful[gpu.group.kind]))

    @property
    def framebuffer_mib(self) -> int:
        """The framebuffer of all GPUs together."""
        return sum(self.kinds[gpu.group.kind].framebuffer_mib for gpu in self.gpus)

    @property
    def used_mib(self) -> tuple[int, ...]:
        """What is allocated on each GPU at the beginning."""
        return tuple(gpu.used_mib for gpu in self.gpus)

    def fleet(self, kinds: Sequence[Kind]) -> Fleet:
        """Return a fleet of these GPUs as they are at the beginning, with other names for the kinds' profiles."""
        return Fleet(kinds, [gpu.group for gpu in self.gpus], [gpu.vgpus for gpu in self.gpus])


def site(snapshot: Snapshot, *, keep: bool = False, instances_on_demand: bool = False, hosts: int = 1) -> Site:
    """Return so many hosts with the GPUs of this one. `keep`: with what is on them now, which stays.

    `instances_on_demand`: GPUs with MIG make a GPU instance for each vGPU, see `on_demand`.
    """
    numbers = fleet_of(snapshot, [g for g in snapshot.gpus if not (instances_on_demand and _has_mig(g))])
    kinds = list(numbers.fleet.kinds)
    called: list[Called] = [gpu.called for gpu in _one_of_each(kinds, numbers.fleet, numbers.gpus)]
    gpus = []
    for number, counted in enumerate(numbers.counted):
        group = numbers.fleet.group_of(number)
        used = sum(c.vgpu.framebuffer_mib or 0 for c in counted)
        now = Standing(group, numbers.fleet.vgpus(number), used)
        gpus.append(now if keep else Standing(Group(group.kind, kinds[group.kind].empty)))
    left_out = dict(numbers.left_out)
    made: dict[OnDemand, int] = {}
    for gpu in snapshot.gpus if instances_on_demand else ():
        found = on_demand(gpu) if _has_mig(gpu) else None
        if found is None and _has_mig(gpu):
            left_out[gpu.address] = "where its GPU instances may be is not known"
        elif found is not None:
            if found not in made:
                made[found] = len(kinds)
                kinds.append(found.kind())
                called.append(gpu.called)
            gpus.append(Standing(Group(made[found], kinds[made[found]].empty)))
    return Site(tuple(kinds), tuple(called), tuple(gpus) * hosts, left_out)


def _has_mig(gpu: Gpu) -> bool:
    return gpu.mig is not None and gpu.mig.enabled


def _one_of_each(kinds: Sequence[Kind], fleet: Fleet, gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return a GPU of each kind."""
    found: dict[int, Gpu] = {}
    for number, gpu in enumerate(gpus):
        found.setdefault(fleet.group_of(number).kind, gpu)
    return [found[number] for number in range(len(kinds))]
