# SPDX-License-Identifier: Apache-2.0
"""What the hosts of a fleet have room for: their GPUs as one fleet of the library's, less what is on its way to them.

    room = room_of_fleet(reported, on_their_way, pools)
    room.free(host.id, demand, "2B")   # how many more
    room.take(host.id, demand, "2B")   # the next one

Every GPU with room for a profile has a cost, which is that of the placement policy `least-waste`: a host places alike.
The host has the last word all the same: it chooses the GPU, and says no where this is wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from vgpuctl.config.vm_request import FIELDS
from vgpuctl.controller.model import OnItsWay, Pool, PoolSpec, StoredRoom
from vgpuctl.gpu.gpu_kind import GpuKind, Placement
from vgpuctl.gpu.kind_rules import kind_of, state_of
from vgpuctl.gpu.room import PLAIN_VF
from vgpuctl.gpu.slice_kind import SliceKind
from vgpuctl.model.gpu import is_model_name
from vgpuctl.model.host_room import DivisionRule, GpuRoom, HostRoom
from vgpuctl.model.names import strip_board
from vgpuctl.model.numbers import parse_memory_size
from vgpuctl.placement.constraints import may_have
from vgpuctl.placement.fleet import Fleet, GpuGroup
from vgpuctl.placement.policy import LeastWaste, SortKey
from vgpuctl.value import EMPTY_MAPPING, Value

WHOLE_GPU = "passthrough"
"""The profile of a desktop that has whole GPUs."""
MAX_GPUS = 64
"""So many GPUs of a host count."""
DISK_MIB = 1024
"""So much storage each desktop takes at once; its disk grows later."""
_UNDIVIDED = SliceKind("not divided", 0, {}, {})


class Demand(Value):
    """What each desktop of a pool takes. `profiles`: one of these, best first. `count`: how many of it.

    `models`, `other_models`: GPUs that it may have, empty for any, and that it may not have.
    """

    name: str
    profiles: tuple[str, ...]
    count: int
    memory_mib: int
    vcpus: int
    storage_pool: str
    models: tuple[str, ...]
    other_models: tuple[str, ...]


def demand_of(spec: PoolSpec, name: str = "", profile: str | None = None) -> Demand:
    """Return what a desktop of this name takes. `profile`: the one that it was placed with; None: any of the pool's."""
    vm = spec.vm
    return Demand(
        name=name,
        profiles=wanted_profiles(spec) if profile is None else (profile,),
        count=1 if spec.profiles else int(vm.get("gpus", 1)),
        memory_mib=parse_memory_size(str(vm.get("memory", FIELDS["memory"].default))),
        vcpus=int(vm.get("vcpus", FIELDS["vcpus"].default)),
        storage_pool=str(vm.get("storage_pool", FIELDS["storage_pool"].default)),
        models=_texts(vm.get("gpu")),
        other_models=_texts(vm.get("not_gpu")),
    )


def wanted_profiles(spec: PoolSpec) -> tuple[str, ...]:
    """Return the profiles that a desktop can have, best first; those of plain VFs and whole GPUs have one name each."""
    return spec.profiles or ({"sriov": PLAIN_VF}.get(str(spec.vm.get("mode")), WHOLE_GPU),)


def _texts(value: object) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else ()


@functools.lru_cache(maxsize=4096)
def matches_profile(offered: str, wanted: str) -> bool:
    """Return whether a profile is the wanted one; one without a board, `2B`, is of any GPU model."""
    return wanted.lower() in (offered.lower(), strip_board(offered).lower())


class Free(NamedTuple):
    """How many more of a profile fit on a host, and how many would if its GPUs were empty."""

    now: int
    total: int


def room_of_fleet(
    reported: Mapping[str, StoredRoom], on_their_way: Iterable[OnItsWay], pools: Mapping[str, Pool]
) -> FleetRoom:
    """Return the room of all hosts, by their ids, without what the desktops take that are on their way."""
    room = FleetRoom({host_id: one.room for host_id, one in reported.items()})
    for desktop in on_their_way:
        pool = pools.get(desktop.pool_id)
        if pool is not None:
            room.take(desktop.host_id, demand_of(pool.spec, desktop.name, desktop.profile))
    room.refuse({host_id: one.refused for host_id, one in reported.items()})
    return room


_Key = tuple[str, tuple[str, ...], tuple[str, ...], str]
_Best = tuple[SortKey, int, str, Placement | None]
"""The cost, the number of the GPU, the profile's name there, and the place; None: the whole GPU."""


class _Host:
    """What is left of one host. `gpus`: their numbers in the fleet."""

    def __init__(self, reported: HostRoom, gpus: range) -> None:
        self.gpus = gpus
        self.memory_mib = reported.memory_mib
        self.cpus = reported.cpus
        self.storage_mib = dict(reported.storage_mib)


class FleetRoom:
    """The room of hosts, by their ids. It changes with each `take`."""

    def __init__(self, reported: Mapping[str, HostRoom]) -> None:
        kinds: dict[GpuKind, int] = {_UNDIVIDED: 0}
        groups: list[GpuGroup] = []
        self._gpus: list[GpuRoom] = []
        self._hosts: dict[str, _Host] = {}
        for host_id, room in reported.items():
            first = len(groups)
            numbers = [kinds.setdefault(kind, len(kinds)) if kind else None for kind in map(_kind_of, room.rules)]
            for gpu in room.gpus[:MAX_GPUS]:
                group = _group_of(gpu, room, numbers)
                if group is not None:
                    self._gpus.append(gpu)
                    groups.append(group)
            self._hosts[host_id] = _Host(room, range(first, len(groups)))
        self._fleet = Fleet(list(kinds), groups, [gpu.vgpus for gpu in self._gpus])
        self._whole = {number for number, gpu in enumerate(self._gpus) if gpu.whole and gpu.free}
        self._given: set[int] = set()
        self._refused: Mapping[str, Mapping[str, str]] = EMPTY_MAPPING
        self._reserving = {host_id for host_id, room in reported.items() if any(gpu.reserved_for for gpu in room.gpus)}
        self._free: dict[str, dict[_Key, Free]] = {}
        self._bests: dict[str, dict[_Key, _Best]] = {}
        self._policy = LeastWaste()
        self._costs: dict[tuple[GpuGroup, bool, str], tuple[SortKey, Placement | None] | None] = {}
        self._names: dict[tuple[int, str], str | None] = {}
        self._when_empty: dict[tuple[int, str], int] = {}

    def refuse(self, refused: Mapping[str, Mapping[str, str]]) -> None:
        """From now on nothing of these profiles is free on a host, whatever it said. `refused`: why, by host."""
        self._refused = refused
        self._free.clear()
        self._bests.clear()

    def why_refused(self, host_id: str, wanted: str) -> str | None:
        """Return why a host gets nothing of a profile for a while; None: it did not refuse one."""
        reasons = self._refused.get(host_id, EMPTY_MAPPING)
        return next((reasons[own] for own in sorted(reasons) if matches_profile(own, wanted)), None)

    @property
    def depends_on_names(self) -> bool:
        """Whether a GPU is reserved for the names of some VMs."""
        return bool(self._reserving)

    def profiles(self, host_id: str) -> dict[str, int]:
        """Return how many more of each profile a host can have, if all are of this profile and for any VM."""
        host = self._hosts.get(host_id)
        counts: dict[str, int] = {}
        for number in () if host is None else host.gpus:
            group = self._fleet.group_of(number)
            kind = self._fleet.kind_of(group)
            for profile in kind.sizes:
                left = 0 if number in self._given else kind.count_remaining(group.state, profile)
                counts[profile] = counts.get(profile, 0) + left
            if self._gpus[number].whole:
                counts[WHOLE_GPU] = counts.get(WHOLE_GPU, 0) + self._is_whole(number)
        refused = self._refused.get(host_id, EMPTY_MAPPING)
        return {profile: 0 if profile in refused else counts[profile] for profile in sorted(counts)}

    def totals(self, host_id: str) -> dict[str, int]:
        """Return how many of each profile a host could have if its GPUs were empty."""
        host = self._hosts.get(host_id)
        counts: dict[str, int] = {}
        for number in () if host is None else host.gpus:
            index = self._fleet.group_of(number).kind_index
            for profile in self._fleet.kinds[index].sizes:
                counts[profile] = counts.get(profile, 0) + self._count_when_empty(index, profile)
            if self._gpus[number].whole:
                counts[WHOLE_GPU] = counts.get(WHOLE_GPU, 0) + 1
        return counts

    def memory_mib(self, host_id: str) -> int | None:
        """Return how much memory is left on a host; None: not known."""
        return self._hosts[host_id].memory_mib if host_id in self._hosts else None

    def cpus(self, host_id: str) -> int | None:
        """Return how many CPUs a host has; None: not known."""
        return self._hosts[host_id].cpus if host_id in self._hosts else None

    def storage_mib(self, host_id: str, pool: str) -> int | None:
        """Return how much is left in a storage pool of a host; None: not known, as of one that is yet to be made."""
        return self._hosts[host_id].storage_mib.get(pool) if host_id in self._hosts else None

    def free(self, host_id: str, demand: Demand, wanted: str) -> Free:
        """Return how many more of a profile fit on a host, for a VM of the demand's name."""
        counts, key = self._free.setdefault(host_id, {}), self._key(host_id, demand, wanted)
        if key not in counts:
            counts[key] = self._count_free(host_id, demand, wanted)
        return counts[key]

    def _key(self, host_id: str, demand: Demand, wanted: str) -> _Key:
        """Return what an answer about a host depends on besides what is on it."""
        return wanted, demand.models, demand.other_models, demand.name if host_id in self._reserving else ""

    def _count_free(self, host_id: str, demand: Demand, wanted: str) -> Free:
        now = total = 0
        refused = self._refused.get(host_id, EMPTY_MAPPING)
        for number, own in self._fitting(host_id, demand, wanted):
            group = self._fleet.group_of(number)
            if own == WHOLE_GPU:
                total += 1
                now += own not in refused and self._is_whole(number)
                continue
            total += self._count_when_empty(group.kind_index, own)
            if own not in refused and number not in self._given:
                now += self._fleet.kind_of(group).count_remaining(group.state, own)
        return Free(now, total)

    def cost(self, host_id: str, demand: Demand, wanted: str) -> SortKey:
        """Return what the best place for one more costs; only where there is one."""
        return self._best(host_id, demand, wanted)[0]

    def profile(self, host_id: str, demand: Demand, wanted: str) -> str:
        """Return the name of the profile that the next one gets; only where there is one."""
        return self._best(host_id, demand, wanted)[2]

    def take(self, host_id: str, demand: Demand, wanted: str | None = None) -> str | None:
        """Take what a desktop gets on a host, and return its profile; None: there is no room for it any more.

        `wanted`: the profile; None: whichever of the demand's the host has, and memory and storage in any case.
        """
        host = self._hosts.get(host_id)
        if host is None:
            return None
        if host.memory_mib is not None:
            host.memory_mib = max(0, host.memory_mib - demand.memory_mib)
        if demand.storage_pool in host.storage_mib:
            host.storage_mib[demand.storage_pool] = max(0, host.storage_mib[demand.storage_pool] - DISK_MIB)
        for profile in demand.profiles if wanted is None else (wanted,):
            if self.free(host_id, demand, profile).now >= demand.count:
                for _ in range(demand.count):
                    own = self._take_one(host_id, demand, profile)
                return own
        return None

    def _take_one(self, host_id: str, demand: Demand, wanted: str) -> str:
        _, number, own, placement = self._best(host_id, demand, wanted)
        if placement is None:
            self._given.add(number)
        else:
            self._fleet.add_vgpu(number, placement)
        self._free.pop(host_id, None)
        self._bests.pop(host_id, None)
        return own

    def _best(self, host_id: str, demand: Demand, wanted: str) -> _Best:
        bests, key = self._bests.setdefault(host_id, {}), self._key(host_id, demand, wanted)
        if key not in bests:
            bests[key] = self._find_best(host_id, demand, wanted)
        return bests[key]

    def _find_best(self, host_id: str, demand: Demand, wanted: str) -> _Best:
        best: _Best | None = None
        refused = self._refused.get(host_id, EMPTY_MAPPING)
        for number, own in self._fitting(host_id, demand, wanted):
            if own in refused:
                continue
            entry = self._cost_on(number, own)
            if entry is not None and (best is None or entry[0] < best[0]):
                best = (entry[0], number, own, entry[1])
        assert best is not None, "there is a place"
        return best

    def _cost_on(self, number: int, profile: str) -> tuple[SortKey, Placement | None] | None:
        """Return the cost of the best place on a GPU. GPUs of one group are alike, but for having any vGPU."""
        if number in self._given or (profile == WHOLE_GPU and not self._is_whole(number)):
            return None
        if profile == WHOLE_GPU:
            return (), None
        group = self._fleet.group_of(number)
        key = (group, bool(self._fleet.vgpu_count(number)), profile)
        if key not in self._costs:
            best = self._policy.best_place(self._fleet, profile, number)
            self._costs[key] = None if best is None else (best[0][:-1], best[1])  # without the number of the GPU
        return self._costs[key]

    def _fitting(self, host_id: str, demand: Demand, wanted: str) -> Iterable[tuple[int, str]]:
        """Yield the GPUs of a host that a VM may have, with the name that the profile has there."""
        host = self._hosts.get(host_id)
        for number in () if host is None else host.gpus:
            gpu = self._gpus[number]
            own = self._own_name(number, wanted)
            if own is not None and _allows(gpu, demand):
                yield number, own

    def _own_name(self, number: int, wanted: str) -> str | None:
        if wanted == WHOLE_GPU:
            return WHOLE_GPU if self._gpus[number].whole else None
        key = (self._fleet.group_of(number).kind_index, wanted)
        if key not in self._names:
            profiles = sorted(self._fleet.kinds[key[0]].sizes, reverse=True)
            self._names[key] = next((one for one in profiles if matches_profile(one, wanted)), None)
        return self._names[key]

    def _is_whole(self, number: int) -> bool:
        """Return whether nothing was put on a GPU that can be given as a whole."""
        is_untouched = self._fleet.vgpu_count(number) == self._gpus[number].vgpus
        return number in self._whole and number not in self._given and is_untouched

    def _count_when_empty(self, kind_index: int, profile: str) -> int:
        key = (kind_index, profile)
        if key not in self._when_empty:
            kind = self._fleet.kinds[kind_index]
            self._when_empty[key] = kind.count_remaining(kind.empty, profile)
        return self._when_empty[key]


def profiles_of(reported: HostRoom | None) -> frozenset[str]:
    """Return all profiles that the GPUs of a host can have; None: it said nothing yet."""
    if reported is None:
        return frozenset()
    names = {profile.profile for rule in reported.rules for profile in rule.profiles}
    return frozenset(names | ({WHOLE_GPU} if any(gpu.whole for gpu in reported.gpus) else set()))


def _allows(gpu: GpuRoom, demand: Demand) -> bool:
    """Return whether a desktop may have a GPU of this model, and one that is reserved so."""
    if gpu.reserved_for and not may_have(gpu.reserved_for, demand.name):
        return False
    if demand.models and not any(is_model_name(name, gpu.model, gpu.pci_id) for name in demand.models):
        return False
    return not any(is_model_name(name, gpu.model, gpu.pci_id) for name in demand.other_models)


def _group_of(gpu: GpuRoom, reported: HostRoom, kind_numbers: Sequence[int | None]) -> GpuGroup | None:
    """Return the kind, by its number in the fleet, and the state of a GPU; None: its host describes it wrongly."""
    if gpu.rule is None:
        return GpuGroup(0, _UNDIVIDED.empty)
    if not 0 <= gpu.rule < len(kind_numbers) or (number := kind_numbers[gpu.rule]) is None:
        return None
    with suppress(ValueError):
        return GpuGroup(number, state_of(reported.rules[gpu.rule], gpu.state))
    return None


@functools.lru_cache(maxsize=4096)
def _kind_of(rule: DivisionRule) -> GpuKind | None:
    """Return the kind that a rule describes; None: it describes none."""
    with suppress(ValueError):
        return kind_of(rule)
    return None
