# SPDX-License-Identifier: Apache-2.0
"""The call that says what people had of the fleet; `FleetService` has it with all other calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from vgpuctl.config import rules
from vgpuctl.controller.model import CallerKind, DesktopUse, FleetCaller, Right
from vgpuctl.controller.policy import has_right
from vgpuctl.controller.times import day_start
from vgpuctl.errors import InvalidInput, NoCapacity, NotAllowed, Refused, VgpuctlError
from vgpuctl.model.outcome import QueryResult
from vgpuctl.model.results.people import UseResult

if TYPE_CHECKING:
    from vgpuctl.controller.database.store import Store
    from vgpuctl.controller.policy import FleetTarget

KINDS = ("person", "group", "pool")
DEFAULT_DAYS, MOST_DAYS, DAY_SECONDS, HOUR_SECONDS = 30, 400, 86400.0, 3600.0
_COUNTED = frozenset({"assign", "take-desktop", "start-desktop"})
"""Calls whose refusals are counted."""


class UseCalls:
    """The call, and what counts refusals. `FleetService` says which store they are about."""

    _store: Store
    find_target: Callable[[str], FleetTarget]

    def show_use(
        self,
        caller: FleetCaller,
        by: str = "pool",
        since: str | None = None,
        until: str | None = None,
        pool: str | None = None,
        after: str | None = None,
        limit: int = 1000,
    ) -> QueryResult[tuple[UseResult, ...]]:
        """Return what people had, by `person`, `group` or `pool`; of the last 30 days, or from `since` to `until`.

        These are days in UTC, `until` not included, like 2026-11-01. `limit`: so many at most, those `after` a name.
        """
        try:
            rules.one_of(KINDS)(by)
        except ValueError as error:
            raise InvalidInput(f"by: {error}") from error
        if not 1 <= limit <= 1000:
            raise InvalidInput(f"limit: {limit} is not a number from 1 to 1000")
        end = self._store.now() if until is None else day_start("until", until)
        begin = end - DEFAULT_DAYS * DAY_SECONDS if since is None else day_start("since", since)
        if not begin < end <= begin + MOST_DAYS * DAY_SECONDS:
            raise InvalidInput(
                f"since, until: {since} to {until or 'now'} are not 1 to {MOST_DAYS} days; the day until does not count"
            )
        pools = None
        if caller.role is None:
            pools = [name for name in caller.rights if has_right(caller, Right.MANAGE, name)]
        rows = self._store.use.sums(by, begin, end, pool=pool, pools=pools)
        shown = [one for one in rows if after is None or one.name > after]
        return QueryResult(tuple(_result(one) for one in shown[:limit]))

    def count_refusal(self, call: str, caller: FleetCaller, arguments: Mapping[str, Any], error: VgpuctlError) -> None:
        """Count that somebody got no desktop; what he may not do at all is not counted."""
        is_counted = isinstance(error, Refused | NoCapacity) and not isinstance(error, NotAllowed)
        if call not in _COUNTED or not is_counted or self._store.changes.is_dry_run:
            return
        pool, person = arguments.get("pool"), arguments.get("user")
        with suppress(VgpuctlError):  # the answer is the refusal, counted or not
            if call == "start-desktop":
                target = self.find_target(str(arguments.get("name")))
                pool, person = target.pool, target.owner
            elif call == "take-desktop" and caller.kind is CallerKind.PERSON:
                person = caller.name
            if pool is not None and person is not None:
                self._store.use.refuse(str(pool), str(person), error.code)


def _result(use: DesktopUse) -> UseResult:
    one = use.measured
    return UseResult(
        name=use.name or None,
        assigned_hours=_hours(use.assigned_seconds),
        on_hours=_hours(use.on_seconds),
        logged_on_hours=_hours(use.logged_on_seconds) if use.known_seconds else None,
        gpu_gib_hours=_hours(use.gpu_mib_seconds / 1024),
        gpu_used_gib_hours=_hours(one.memory_mib_seconds / 1024) if one.memory_known_seconds else None,
        gpu_known_hours=_hours(one.memory_known_seconds),
        gpu_used_percent=round(100 * one.busy_seconds / one.busy_known_seconds, 1) if one.busy_known_seconds else None,
        gpu_peak_mib=one.memory_peak_mib,
        idle=use.idle,
        refused=dict(sorted(use.refused.items())),
    )


def _hours(seconds: float) -> float:
    return round(seconds / HOUR_SECONDS, 2)
