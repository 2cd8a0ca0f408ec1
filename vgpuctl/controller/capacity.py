# SPDX-License-Identifier: Apache-2.0
"""The calls that count how many more desktops fit; `FleetService` has them with all other calls."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from vgpuctl.controller.model import FleetCaller, FleetHost, FleetHostState, HostImage, PoolSpec
from vgpuctl.controller.planning.fleet_fits import HostFits, count_fits
from vgpuctl.controller.planning.fleet_room import FleetRoom, matches_profile, room_of_fleet
from vgpuctl.controller.planning.image_plan import state_text
from vgpuctl.controller.planning.pool_spec import MAX_SPEC_BYTES, parse_pool
from vgpuctl.errors import InvalidInput
from vgpuctl.gpu.profiles import similar_profiles
from vgpuctl.model.outcome import QueryResult
from vgpuctl.model.results.fleet import (
    FleetFitsHostResult,
    FleetFitsResult,
)
from vgpuctl.model.results.fleet_room import (
    FleetCapacityResult,
    PoolRoomResult,
    ProfileRoomResult,
)

if TYPE_CHECKING:
    from vgpuctl.controller.database.store import Store

MAX_COUNT = 1_000_000


class CapacityCalls:
    """The calls. `FleetService` says which store they are about."""

    _store: Store

    def fits(
        self,
        caller: FleetCaller,
        pool: str | None = None,
        text: str | None = None,
        file: str = "spec",
        count: int | None = None,
    ) -> QueryResult[FleetFitsResult]:
        """Return how many more desktops fit: of a pool, or of the `text` of a spec file, `file` by name.

        `count`: whether so many do. Nothing is reserved.
        """
        if (pool is None) is (text is None):
            raise InvalidInput("fits: give either pool or text")
        if count is not None and not 1 <= count <= MAX_COUNT:
            raise InvalidInput(f"count: {count} is not a number from 1 to {MAX_COUNT}")
        spec, left = self._spec_of(pool, text, file)
        image = self._store.images.find(spec.image)
        rows = {row.host_id: row for row in self._store.host_images.list() if row.image_id == image.id}
        pools = {one.id: one for one in self._store.pools.list()}
        room = room_of_fleet(*self._store.rooms.list(), pools)
        fits = count_fits(spec, self._store.hosts.list(), room, rows, self._store.now())
        free = sum(one.free for one in fits)
        most = free if left is None else min(free, left)
        states = {host_id: state_text(row) for host_id, row in rows.items()}
        return QueryResult(
            FleetFitsResult(
                pool, spec.profiles, spec.image, count, None if count is None else most >= count, free, left,
                len(self._store.desktops.unplaced()),
                tuple(_host_result(one, states.get(one.host.id)) for one in fits),
            )
        )  # fmt: skip

    def show_capacity(self, caller: FleetCaller) -> QueryResult[FleetCapacityResult]:
        """Return how many more desktops of each pool, and how many more of each profile, the hosts have room for."""
        hosts, pools = self._store.hosts.list(), {one.id: one for one in self._store.pools.list()}
        stored, now = self._store.rooms.list(), self._store.now()
        desktops = [one for one in self._store.desktops.list(limit=MAX_COUNT) if not one.absent]
        counts = Counter(one.pool_id for one in desktops)
        images: dict[str, dict[str, HostImage]] = defaultdict(dict)
        for row in self._store.host_images.list():
            images[row.image_id][row.host_id] = row
        rooms = []
        for pool in pools.values():
            left = max(0, pool.spec.maximum - counts[pool.id])
            fits = count_fits(pool.spec, hosts, room_of_fleet(*stored, pools), images[pool.image_id], now, left)
            free = sum(one.free for one in fits)
            why = next((f"{one.host.name}: {one.why}" for one in fits if one.why), None) if free < left else None
            rooms.append(PoolRoomResult(pool.name, pool.spec.profiles, free, left, why))
        profiles = _profiles_of(hosts, room_of_fleet(*stored, pools))
        unplaced = sum(one.host_id is None for one in desktops)
        return QueryResult(FleetCapacityResult(tuple(rooms), profiles, unplaced))

    def profile_warnings(self, spec: PoolSpec) -> tuple[str, ...]:
        """Return a warning for each profile of a spec that no host has; none before a host said what it has."""
        room = room_of_fleet(self._store.rooms.list()[0], (), {})
        offered = {profile for host in self._store.hosts.list() for profile in room.totals(host.id)}
        return tuple(_unknown_profile(one, offered) for one in spec.profiles if offered and not _has(offered, one))

    def _spec_of(self, pool: str | None, text: str | None, file: str) -> tuple[PoolSpec, int | None]:
        """Return the spec, and how many desktops its pool may still get; None: it is not stored."""
        if pool is not None:
            stored = self._store.pools.find(pool)
            desktops = sum(not one.absent for one in self._store.desktops.of_pool(stored.id))
            return stored.spec, max(0, stored.spec.maximum - desktops)
        if len(text or "") > MAX_SPEC_BYTES:
            raise InvalidInput(f"{file}: a pool spec has at most {MAX_SPEC_BYTES} bytes")
        return parse_pool(text or "", file), None


def _has(offered: Iterable[str], wanted: str) -> bool:
    return any(matches_profile(profile, wanted) for profile in offered)


def _unknown_profile(wanted: str, offered: Iterable[str]) -> str:
    similar = ", ".join(similar_profiles(wanted, sorted(offered)))
    return f"no host offers the profile {wanted}, so none makes desktops with it" + (
        f": did you mean {similar}?" if similar else "; vgpuctl controller show-host HOST shows what a host offers"
    )


def _host_result(one: HostFits, image: str | None) -> FleetFitsHostResult:
    return FleetFitsHostResult(one.host.name, one.free, one.profiles, image, one.why or None)


def _profiles_of(hosts: Iterable[FleetHost], room: FleetRoom) -> tuple[ProfileRoomResult, ...]:
    """Return how many more of each profile fit; a host that takes nothing new just now counts only when it is empty."""
    totals: Counter[str] = Counter()
    free: dict[str, dict[str, int]] = defaultdict(dict)
    for host in hosts:
        totals.update(room.totals(host.id))
        takes = host.state is FleetHostState.ACTIVE and host.held is None
        for profile, count in room.profiles(host.id).items():
            free[profile][host.name] = count if takes else 0
    return tuple(
        ProfileRoomResult(profile, sum(free[profile].values()), totals[profile], free[profile])
        for profile in sorted(totals)
    )
