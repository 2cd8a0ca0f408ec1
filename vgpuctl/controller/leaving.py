# SPDX-License-Identifier: Apache-2.0
"""Choose hosts for desktops that leave draining hosts as they are, and have their moves begun."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from vgpuctl.config.name_patterns import natural_key
from vgpuctl.controller.database.store import Store
from vgpuctl.controller.model import Desktop, FleetHost, FleetHostState, HostImage, Pool
from vgpuctl.controller.placing import random_number
from vgpuctl.controller.planning.fleet_room import demand_of, room_of_fleet
from vgpuctl.controller.planning.host_choice import ChosenHost, choose_host
from vgpuctl.controller.planning.moves import MOST_MOVES, may_begin_move
from vgpuctl.controller.planning.phase import is_silent


def begin_moves(store: Store) -> None:
    """Begin as many moves of each host as may go on at a time; note of other desktops why they cannot move."""
    hosts = store.hosts.list()
    if not any(host.moves_live for host in hosts):
        return
    now = store.now()
    leaving = _Leaving(store, hosts, now)
    for host in hosts:
        is_drained = host.moves_live and host.state is FleetHostState.DRAINING
        if is_drained and host.held is None and not is_silent(host, now):
            leaving.begin_some(host)


class _Leaving:
    """The hosts of the fleet, and what they have room for; it changes with each move that begins."""

    def __init__(self, store: Store, hosts: Sequence[FleetHost], now: float) -> None:
        self._store = store
        self._hosts = sorted(hosts, key=lambda host: natural_key(host.name))
        self._now = now
        self._pools = {pool.id: pool for pool in store.pools.list()}
        self._images: dict[str, dict[str, HostImage]] = {}
        for row in store.host_images.list():
            self._images.setdefault(row.image_id, {})[row.host_id] = row
        self._counts: dict[str, Counter[str]] = {}
        """How many desktops of a pool each host has, by the pool's id."""
        reported, on_their_way = store.rooms.list()
        self._room = room_of_fleet(reported, on_their_way, self._pools)
        self._versions = {host_id: one.version for host_id, one in reported.items()}

    def begin_some(self, source: FleetHost) -> None:
        """Begin as many moves away from a host as may go on at a time."""
        desktops = self._store.desktops.of_host(source.id)
        free = MOST_MOVES - sum(one.moving_to is not None for one in desktops)
        unmovable: dict[str, list[Desktop]] = {}
        for desktop in sorted(desktops, key=lambda one: natural_key(one.name)):
            pool = self._pools.get(desktop.pool_id)
            if free <= 0 or pool is None or not may_begin_move(desktop, pool, source, self._now):
                continue
            choice = self._choose(desktop, pool)
            if choice.host is None:
                unmovable.setdefault(choice.reason, []).append(desktop)
                continue
            target_id = choice.host.id
            self._room.take(target_id, demand_of(pool.spec, desktop.name, choice.profile))
            if self._store.live_moves.begin(desktop, target_id, self._versions[target_id]):
                self._versions[target_id] += 1
                self._counts[pool.id][target_id] += 1
                free -= 1  # else the room is another one now: the next tick counts again
        for reason, alike in unmovable.items():
            self._store.live_moves.note_unmovable(alike, reason)

    def _choose(self, desktop: Desktop, pool: Pool) -> ChosenHost:
        """Choose a host for a desktop: one that has not refused it, if there is any."""
        if pool.id not in self._counts:
            of_pool = self._store.desktops.of_pool(pool.id)
            self._counts[pool.id] = Counter(one.host_id for one in of_pool if one.host_id is not None)
        refused = () if desktop.report is None else desktop.report.refused_by
        others = [host for host in self._hosts if host.id not in refused]
        choice = self._choose_of(desktop, pool, others)
        return self._choose_of(desktop, pool, self._hosts) if choice.host is None and refused else choice

    def _choose_of(self, desktop: Desktop, pool: Pool, hosts: Sequence[FleetHost]) -> ChosenHost:
        images: Mapping[str, HostImage] = self._images.get(desktop.image_id, {})
        return choose_host(
            desktop, pool, hosts, self._room, images, self._counts[pool.id], self._now, number=random_number(),
            moves=True,
        )  # fmt: skip
