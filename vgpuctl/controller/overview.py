# SPDX-License-Identifier: Apache-2.0
"""The calls that the web page needs besides the others; `FleetService` has them with all other calls.

They cost the same number of queries however large the fleet is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from vgpuctl.controller.database.rows import CONTROLLER
from vgpuctl.controller.model import CallerKind, Desktop, FleetCaller, FleetEvent, FleetHost, Pool
from vgpuctl.controller.planning.gpu_use import GpuContents, gpus_of
from vgpuctl.controller.planning.image_plan import image_wait, rows_by_key, state_text
from vgpuctl.controller.planning.phase import SILENT_SECONDS, PhaseWord, phase_of
from vgpuctl.controller.planning.schedules import wanted_spare
from vgpuctl.controller.policy import sees_pool
from vgpuctl.controller.times import day_start, time_text
from vgpuctl.errors import InvalidInput
from vgpuctl.model.image_copy import CopyState
from vgpuctl.model.outcome import QueryResult
from vgpuctl.model.results.fleet import (
    DesktopResult,
    FieldChangeResult,
    FleetEventResult,
    FleetGpuResult,
    FleetOverviewResult,
    GpuSliceResult,
    OverviewHostResult,
    OverviewPoolResult,
)
from vgpuctl.model.results.fleet_room import (
    FleetProgressResult,
    ImageCopyResult,
)

if TYPE_CHECKING:
    from vgpuctl.controller.database.store import Store

MOST_DESKTOPS = 1_000_000
MOST_HOSTS = 1000
MOST_SHOWN = 200
ACTOR_KINDS = (*map(str, CallerKind), CONTROLLER)
MOVING_PHASES = frozenset(map(str, (
    PhaseWord.UNPLACED, PhaseWord.WAITING, PhaseWord.MAKING, PhaseWord.PREPARING, PhaseWord.STARTING, PhaseWord.DIRTY,
    PhaseWord.REFRESHING, PhaseWord.RESTARTING, PhaseWord.STOPPING, PhaseWord.RETIRING,
)))  # fmt: skip
FAILED_PHASES = frozenset(map(str, (PhaseWord.FAILED, PhaseWord.LOST, PhaseWord.UNKNOWN)))


class OverviewCalls:
    """The calls. `FleetService` says which store they are about."""

    _store: Store
    _desktop_results: Callable[[tuple[Desktop, ...]], tuple[DesktopResult, ...]]

    def show_overview(
        self, caller: FleetCaller, after: str | None = None, host: str | None = None, limit: int = 100
    ) -> QueryResult[FleetOverviewResult]:
        """Return pools, hosts and each GPU of at most `limit` hosts: those `after` a name, or one `host`."""
        if not 1 <= limit <= MOST_HOSTS:
            raise InvalidInput(f"limit: {limit} is not a number from 1 to {MOST_HOSTS}")
        store = self._store
        pools, hosts = store.pools.list(), sorted(store.hosts.list(), key=lambda one: one.name)
        desktops, rooms = store.desktops.list(limit=MOST_DESKTOPS), store.rooms.list()[0]
        now = store.now()
        phases = _phases(desktops, pools, hosts, store, now)
        on_host: dict[str | None, list[Desktop]] = defaultdict(list)
        of_pool: dict[str, Counter[str]] = defaultdict(Counter)
        for one in desktops:
            on_host[one.host_id].append(one)
            of_pool[one.pool_id][phases.get(one.id, "unknown")] += 1
        gpus = {h.id: gpus_of(rooms[h.id].room if h.id in rooms else None, on_host[h.id]) for h in hosts}
        flat = [gpu for each in gpus.values() for gpu in each if gpu.framebuffer_mib is not None]
        names = {one.id: one.name for one in pools}
        shown = [one for one in hosts if (after is None or one.name > after) and host in (None, one.name)]
        return QueryResult(
            FleetOverviewResult(
                len(hosts), sum(map(len, gpus.values())), sum(one.framebuffer_mib or 0 for one in flat),
                sum(one.taken_mib for one in flat), dict(sorted(Counter(phases.values()).items())),
                tuple(_pool_result(one, of_pool[one.id], now) for one in pools),
                tuple(
                    OverviewHostResult(
                        one.name, str(one.state), one.held, one.problem,
                        one.seen_at is None or now - one.seen_at >= SILENT_SECONDS, len(on_host[one.id]),
                        tuple(_gpu_result(gpu, names, phases) for gpu in gpus[one.id]),
                    )
                    for one in shown[:limit]
                ),
                shown[limit - 1].name if len(shown) > limit else None,
            )
        )  # fmt: skip

    def show_progress(self, caller: FleetCaller) -> QueryResult[FleetProgressResult]:
        """Return what is being done: desktops that are on their way to be ready, copies of images, and what failed."""
        store = self._store
        pools, hosts, now = store.pools.list(), store.hosts.list(), store.now()
        seen = None if caller.role is not None else [one.name for one in pools if sees_pool(caller, one.name)]
        desktops = store.desktops.list(limit=MOST_DESKTOPS, pools=seen)
        phases = _phases(desktops, pools, hosts, store, now)
        moving = [one for one in desktops if phases.get(one.id) in MOVING_PHASES]
        failed = [one for one in desktops if phases.get(one.id) in FAILED_PHASES]
        copies: tuple[ImageCopyResult, ...] = ()
        if caller.role is not None:
            names, on = {one.id: one.name for one in store.images.list()}, {one.id: one.name for one in hosts}
            rows = [row for row in store.host_images.list() if row.state is not CopyState.READY and row.host_id in on]
            copies = tuple(
                ImageCopyResult(names.get(row.image_id, row.path), on[row.host_id], state_text(row)) for row in rows
            )
        shown = self._desktop_results((*failed[:MOST_SHOWN], *moving[:MOST_SHOWN]))
        count = len(failed[:MOST_SHOWN])
        return QueryResult(
            FleetProgressResult(len(moving), len(failed), shown[count:], shown[:count], copies[:MOST_SHOWN])
        )

    def find_events(
        self,
        caller: FleetCaller,
        kind: str | None = None,
        actor_kind: str | None = None,
        person: str | None = None,
        pool: str | None = None,
        host: str | None = None,
        desktop: str | None = None,
        since: str | None = None,
        until: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> QueryResult[tuple[FleetEventResult, ...]]:
        """Return the last entries of the journal, the newest first: of a kind, by or about a person, and so on.

        `actor_kind`: who asked for it is `local`, `token`, `person` or `controller`. `since`, `until`: days in UTC,
        `until` not included, like 2026-11-01. `before`: only those that are older than the entry with this id.
        """
        if actor_kind is not None and actor_kind not in ACTOR_KINDS:
            raise InvalidInput(f"actor_kind: one of {', '.join(ACTOR_KINDS)}")
        if not 1 <= limit <= 1000:
            raise InvalidInput(f"limit: {limit} is not a number from 1 to 1000")
        rows = self._store.journal.find(
            kind=kind,
            actor_kind=actor_kind,
            person=person,
            pool=pool,
            host=host,
            desktop=desktop,
            since=None if since is None else day_start("since", since),
            until=None if until is None else day_start("until", until),
            before=before,
            limit=limit,
        )
        return QueryResult(tuple(map(event_result, rows)))


def event_result(one: FleetEvent) -> FleetEventResult:
    """Return an entry of the journal as calls answer with it."""
    changed = tuple(FieldChangeResult(each.field, each.before, each.after) for each in one.changed)
    return FleetEventResult(
        one.id, time_text(one.at) or "", one.kind, one.text, one.actor, one.pool, one.desktop, one.host, one.user,
        one.actor_kind, one.address, changed,
    )  # fmt: skip


def _phases(
    desktops: tuple[Desktop, ...], pools: tuple[Pool, ...], hosts: Iterable[FleetHost], store: Store, now: float
) -> dict[str, str]:
    """Return the phase of each desktop by its id."""
    by_pool, by_host = {one.id: one for one in pools}, {one.id: one for one in hosts}
    rows = rows_by_key(store.host_images.list())
    phases: dict[str, str] = {}
    for one in desktops:
        host = None if one.host_id is None else by_host.get(one.host_id)
        if one.pool_id in by_pool:
            wait = "" if host is None else image_wait(one, rows, host.name)
            phases[one.id] = str(phase_of(one, by_pool[one.pool_id], host, now, wait).word)
    return phases


def _pool_result(pool: Pool, counts: Mapping[str, int], now: float) -> OverviewPoolResult:
    spec = pool.spec
    return OverviewPoolResult(
        pool.name, str(spec.kind), str(pool.state), pool.reason, spec.image, spec.profiles, spec.maximum,
        wanted_spare(spec, now), dict(sorted(counts.items())),
    )  # fmt: skip


def _gpu_result(gpu: GpuContents, pools: Mapping[str, str], phases: Mapping[str, str]) -> FleetGpuResult:
    slices = []
    for one in gpu.slices:
        own, vgpu = one.desktop, one.vgpu
        slices.append(
            GpuSliceResult(
                None if own is None else own.name, None if own is None else pools.get(own.pool_id),
                None if own is None else phases.get(own.id), None if own is None else own.user,
                vgpu.profile, vgpu.framebuffer_mib, vgpu.placement,
            )
        )  # fmt: skip
    return FleetGpuResult(gpu.address, gpu.model, gpu.framebuffer_mib, gpu.taken_mib, tuple(slices))
