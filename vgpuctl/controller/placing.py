# SPDX-License-Identifier: Apache-2.0
"""Give hosts to desktops that have none, in the order in which they get their turn."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence

from vgpuctl.config.name_patterns import natural_key
from vgpuctl.controller.database.store import Store
from vgpuctl.controller.model import Desktop, FleetHost, HostImage, Pool
from vgpuctl.controller.planning.fleet_room import demand_of, room_of_fleet
from vgpuctl.controller.planning.host_choice import choose_host
from vgpuctl.controller.planning.phase import NO_HOST_CODE

PLACED_FROM_ONE_ROOM = 50
"""So many desktops get hosts from what one query says of the hosts' room, which changes meanwhile."""


class Placing:
    """Places desktops on hosts. `counts`: how many of each pool are on each host; grows. `count`: how many it chose."""

    def __init__(
        self,
        store: Store,
        pools: Mapping[str, Pool],
        hosts: Sequence[FleetHost],
        images: Sequence[HostImage],
        counts: Mapping[str, Counter[str]],
    ) -> None:
        self._store = store
        self._pools = pools
        self._hosts = sorted(hosts, key=lambda host: natural_key(host.name))
        self._counts = counts
        self._images: dict[str, dict[str, HostImage]] = {}
        for row in images:
            self._images.setdefault(row.image_id, {})[row.host_id] = row
        self._full: dict[tuple[str, str], str] = {}
        self._unplaced: dict[str, list[Desktop]] = {}
        self.count = 0

    def place_some(self, waiting: Sequence[Desktop]) -> int:
        """Choose hosts for the first of these desktops, and return for how many: their room changes meanwhile.

        One that fits nowhere tells the same of all others of its pool, unless GPUs are reserved for some names.
        """
        reported, on_their_way = self._store.rooms.list()
        room, now = room_of_fleet(reported, on_their_way, self._pools), self._store.now()
        versions = {host_id: one.version for host_id, one in reported.items()}
        end = self.count + PLACED_FROM_ONE_ROOM
        for number, desktop in enumerate(waiting):
            pool, alike = self._pools[desktop.pool_id], (desktop.pool_id, desktop.image_id)
            if alike in self._full:
                if desktop.report is None or desktop.report.code != NO_HOST_CODE:
                    self._unplaced.setdefault(self._full[alike], []).append(desktop)
                continue
            if self.count >= end:
                return number
            images_on, counts = self._images.get(desktop.image_id, {}), self._counts[pool.id]
            choice = choose_host(desktop, pool, self._hosts, room, images_on, counts, now, number=random_number())
            if choice.host is None:
                self._unplaced.setdefault(choice.reason, []).append(desktop)
                if not room.depends_on_names:
                    self._full[alike] = choice.reason
                continue
            host_id = choice.host.id
            room.take(host_id, demand_of(pool.spec, desktop.name, choice.profile))
            self.count += 1
            if self._store.desktops.place(desktop.id, host_id, choice.profile, versions[host_id]):
                versions[host_id] += 1
                counts[host_id] += 1  # else the room is another one now: the next tick counts again
        return len(waiting)

    def note_unplaced(self) -> None:
        """Store why no host takes those that got none: one statement for all that have the same reason."""
        for reason, desktops in self._unplaced.items():
            self._store.desktops.note_unplaced(desktops, reason)
        self._unplaced = {}


def random_number() -> float:
    """Return a random number from 0 up to, but not at, 1."""
    return secrets.randbelow(1 << 30) / (1 << 30)
