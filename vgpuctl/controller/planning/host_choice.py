# SPDX-License-Identifier: Apache-2.0
"""On which host a new desktop goes. The host chooses the GPU, and has the last word whether it has room."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from vgpuctl.controller.model import (
    Desktop,
    FleetHost,
    FleetHostState,
    HostChoice,
    HostImage,
    Pool,
    PoolSpec,
)
from vgpuctl.controller.planning.fleet_room import DISK_MIB, Demand, FleetRoom, Free, demand_of
from vgpuctl.controller.planning.phase import is_silent
from vgpuctl.model.image_copy import CopyState
from vgpuctl.model.numbers import count_text, format_mib
from vgpuctl.placement.policy import SortKey
from vgpuctl.value import Value

MAX_REASONS = 20


class ChosenHost(Value):
    """Where a desktop goes, and why; `host` None: nowhere, and `reason` says for each host why not.

    `profile`: the one that it gets there, by its full name; None without a host.
    """

    host: FleetHost | None
    profile: str | None
    reason: str


class _Candidate(NamedTuple):
    host: FleetHost
    free: Free
    has_image: bool
    placed: int


def choose_host(
    desktop: Desktop,
    pool: Pool,
    hosts: Sequence[FleetHost],
    room: FleetRoom,
    images_on: Mapping[str, HostImage],
    placed: Mapping[str, int],
    now: float,
    *,
    number: float = 0.0,
    moves: bool = False,
) -> ChosenHost:
    """Choose a host for a desktop without one, or (`moves`) for one that moves as it is. `hosts`: by their names.

    `images_on`: the desktop's image on each host; a host without an entry can get it, and takes no disk that was made
    from it before. `placed`: how many desktops of this pool are on each host. `number`: at random from 0 up to, but not
    at, 1.
    """
    demand = demand_of(pool.spec, desktop.name, desktop.profile)
    reasons: dict[str, str] = {}
    able: list[FleetHost] = []
    for host in hosts:
        reason = why_no_desktops(host, pool.spec, images_on, room, demand, now)
        if reason is None and moves and not _has_image(host, images_on):
            reason = "its image is not there"
        if reason is None:
            able.append(host)
        else:
            reasons[host.name] = reason
    for wanted in demand.profiles:
        candidates = []
        for host in able:
            free = room.free(host.id, demand, wanted)
            if free.now >= demand.count:
                candidates.append(_Candidate(host, free, _has_image(host, images_on), placed.get(host.id, 0)))
                continue
            text = room.why_refused(host.id, wanted) or none_text(free, demand, wanted)
            reasons[host.name] = f"{reasons[host.name]}, {text}" if host.name in reasons else text
        if candidates:
            best = _best(candidates, pool.spec, number, functools.partial(room.cost, demand=demand, wanted=wanted))
            own = room.profile(best.host.id, demand, wanted)
            text = f"{best.host.name}: {best.free.now} of {best.free.total} {own} free"
            return ChosenHost(best.host, own, text)
    return ChosenHost(None, None, _sentence(reasons))


def none_text(free: Free, demand: Demand, wanted: str) -> str:
    """Return why a host has no room for a profile."""
    if not free.total:
        return f"offers no {wanted}"
    if demand.count > 1:
        return f"{free.now} {wanted} free (of {free.total}), {demand.count} needed"
    return f"no free {wanted} (of {free.total})"


def why_no_desktops(
    host: FleetHost,
    spec: PoolSpec,
    images_on: Mapping[str, HostImage],
    room: FleetRoom,
    demand: Demand,
    now: float,
) -> str | None:
    """Return why a host gets no desktops of a pool, whatever GPUs it has; None: it can get some."""
    differing = [f"{key}={value}" for key, value in spec.hosts.items() if host.labels.get(key) != value]
    if differing:
        return f"lacks the label {', '.join(differing)}"
    if host.state is not FleetHostState.ACTIVE:
        return str(host.state)
    if host.held is not None:
        return f"held ({host.held})"
    if is_silent(host, now):
        return "silent"
    image = images_on.get(host.id)
    if image is not None and image.state is CopyState.FAILED:
        return f"its image failed ({image.error})"
    memory, cpus = room.memory_mib(host.id), room.cpus(host.id)
    if memory is not None and memory < demand.memory_mib:
        return f"{format_mib(memory)} of memory left, {format_mib(demand.memory_mib)} needed"
    if cpus is not None and cpus < demand.vcpus:
        return f"{count_text(cpus, 'CPU')}, {demand.vcpus} needed"
    storage = room.storage_mib(host.id, demand.storage_pool)
    if storage is not None and storage < DISK_MIB:
        return f"{format_mib(storage)} left in the storage pool {demand.storage_pool}, {format_mib(DISK_MIB)} needed"
    return None


def _has_image(host: FleetHost, images_on: Mapping[str, HostImage]) -> bool:
    return host.id in images_on and images_on[host.id].state is CopyState.READY


def _best(candidates: list[_Candidate], spec: PoolSpec, number: float, cost: Callable[[str], SortKey]) -> _Candidate:
    """Return the best candidate; `candidates` are in the order of the hosts' names, which decides last.

    `cost`: of the best place on a host, by its id.
    """
    kept = _least(candidates, lambda c: c.placed) if spec.apart else candidates
    kept = _least(kept, lambda c: not c.has_image)
    if spec.choice is HostChoice.RANDOM:
        return kept[min(int(number * len(kept)), len(kept) - 1)]
    if spec.choice is HostChoice.SPREAD:
        return min(kept, key=lambda c: (-c.free.now / max(c.free.total, 1), c.placed, -c.free.now))
    return min(kept, key=lambda c: (cost(c.host.id), c.free.now))


def _least(candidates: list[_Candidate], key: Callable[[_Candidate], int]) -> list[_Candidate]:
    least = min(map(key, candidates))
    return [candidate for candidate in candidates if key(candidate) == least]


def _sentence(reasons: Mapping[str, str]) -> str:
    if not reasons:
        return "no host can take it: the fleet has none"
    shown = [f"{name}: {reason}" for name, reason in list(reasons.items())[:MAX_REASONS]]
    more = f"; and {count_text(len(reasons) - MAX_REASONS, 'more host')}" if len(reasons) > MAX_REASONS else ""
    return f"no host can take it: {'; '.join(shown)}{more}"
