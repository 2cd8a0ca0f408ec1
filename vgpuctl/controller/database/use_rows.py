# SPDX-License-Identifier: Apache-2.0
"""What people use: spans of time in which nothing of a desktop's use changed, and requests that were refused.

A span begins in the transaction in which the row of a desktop gets a user or another report, and ends with the next
one. So nothing is counted twice, whoever has the host, and a start of the controller changes nothing: what a host last
reported holds until it reports something else.

What a desktop really used of GPUs is added up by who looks at its host (`hosts.use_meter`), and comes later: it belongs
to the last span of the desktop and its user then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Float,
    and_,
    bindparam,
    case,
    cast,
    delete,
    false,
    func,
    insert,
    literal,
    or_,
    select,
    true,
    update,
)  # fmt: skip

from vgpuctl.controller.database import schema
from vgpuctl.controller.database.engine import Database
from vgpuctl.controller.database.room_rows import room_of
from vgpuctl.controller.database.rows import Rows, columns_of, desktop_of, lock_desktops
from vgpuctl.controller.model import Desktop, DesktopUse, DesktopVgpu, MeasuredUse
from vgpuctl.controller.planning.phase import is_running
from vgpuctl.controller.planning.quotas import held_gpu_mib
from vgpuctl.value import field_names, replace

DAY_SECONDS = 86400.0
USE_DAYS, MOST_SPANS = 400, 10_000_000
"""So long spans are kept, and so many of them."""
_PRUNED = 5000


class _Use(NamedTuple):
    """What a span is about. `logged_on` None: not known, or off. `vgpus`: what it has of GPUs."""

    person: str
    is_on: bool
    logged_on: bool | None
    vgpus: tuple[DesktopVgpu, ...]


_MEASURED = tuple(field_names(MeasuredUse))
"""Columns of a span."""
_PEAK = "memory_peak_mib"


class UseRows(Rows):
    """The spans, and what was refused."""

    def add_measured(self, sums: Mapping[tuple[str, str], MeasuredUse]) -> None:
        """Add what desktops used of GPUs, by desktop and user, to the last span of each."""
        if not sums:
            return
        span = schema.use_span
        own = (span.c.desktop_id == bindparam("of_desktop")) & (span.c.person == bindparam("of_user"))
        last = select(func.max(span.c.id)).where(own).scalar_subquery()
        peak = bindparam(f"more_{_PEAK}", type_=BigInteger)
        values = {name: span.c[name] + bindparam(f"more_{name}", type_=Float) for name in _MEASURED if name != _PEAK}
        highest = case((peak > func.coalesce(span.c[_PEAK], -1), peak), else_=span.c[_PEAK])
        rows = [
            {"of_desktop": desktop, "of_user": user, **{f"more_{key}": value for key, value in columns_of(one).items()}}
            for (desktop, user), one in sorted(sums.items(), key=lambda item: item[0])
        ]
        with self._database.write() as connection:
            lock_desktops(connection, [row["of_desktop"] for row in rows])
            connection.execute(update(span).where(span.c.id == last).values({**values, _PEAK: highest}), rows)

    def refuse(self, pool: str, person: str, reason: str) -> None:
        """Count a request that was refused."""
        table = schema.refusal
        with self._database.write() as connection:
            day = int(self._database.now(connection) // DAY_SECONDS)
            own = (
                (table.c.day == day) & (table.c.pool == pool) & (table.c.person == person) & (table.c.reason == reason)
            )
            first = {"day": day, "pool": pool, "person": person, "reason": reason, "count": 0}
            keys = ("day", "pool", "person", "reason")
            if connection.execute(update(table).where(own).values(count=table.c.count + 1)).rowcount == 0:
                self._database.insert_or_update(connection, table, keys, first)
                connection.execute(update(table).where(own).values(count=table.c.count + 1))

    def sums(
        self, by: str, since: float, until: float, *, pool: str | None = None, pools: Collection[str] | None = None
    ) -> tuple[DesktopUse, ...]:
        """Return what was used, by `person`, `group` or `pool`. `pool`: of this one; `pools`: of these."""
        span, refusal = schema.use_span, schema.refusal
        with self._database.read() as connection:
            now = self._database.now(connection)
            end = min(until, now)
            uses: dict[str, dict[str, Any]] = {}
            rows = connection.execute(_of_pools(_sums(by, since, end, now), span.c.pool, pool, pools))
            for row in rows.mappings():
                name = row["name"] or ""
                measured = MeasuredUse(**{key: row[key] for key in _MEASURED})
                rest = {key: value for key, value in row.items() if key not in ("name", *_MEASURED)}
                uses[name] = {**rest, "measured": measured}
            key, tables = _key(by, refusal)
            counts = select(key.label("name"), refusal.c.reason, func.sum(refusal.c.count)).select_from(tables)
            days = (refusal.c.day >= since // DAY_SECONDS) & (refusal.c.day < -(-until // DAY_SECONDS))
            counted = _of_pools(counts.where(days).group_by(key, refusal.c.reason), refusal.c.pool, pool, pools)
            refused: dict[str, dict[str, int]] = {}
            for name, reason, count in connection.execute(counted):
                refused.setdefault(name or "", {})[reason] = int(count)
        return tuple(
            DesktopUse(name=name, **uses.get(name, {}), refused=refused.get(name, {}))
            for name in sorted({*uses, *refused})
        )

    def repair(self) -> None:
        """Begin spans of desktops that have a user and none, and end those of desktops that have another, or are gone.

        A database of an older program has such ones, and one that was restored.
        """
        span, table = schema.use_span, schema.desktop
        is_open = span.c.until_at.is_(None)
        of_now = select(span.c.id).join(table, (table.c.id == span.c.desktop_id) & (table.c.user == span.c.person))
        has_none = table.c.id.not_in(select(span.c.desktop_id).where(is_open))
        with self._database.write() as connection:
            now = self._database.now(connection)
            gone = is_open & span.c.id.not_in(of_now.where(is_open))
            connection.execute(update(span).where(gone).values(until_at=now))
            waiting = select(table).where(table.c.user.is_not(None) & has_none).order_by(table.c.id)
            locked = connection.execute(waiting.with_for_update(key_share=True)).mappings().all()
            for desktop in map(desktop_of, locked):
                own = select(span.c.id).where(is_open & (span.c.desktop_id == desktop.id))
                if connection.execute(own).first() is None:  # else it got one while its row was waited for
                    _begin(connection, desktop, now)

    def prune(self) -> bool:
        """Delete old spans and counts, not many at a time; return whether there may be more of them."""
        span, refusal = schema.use_span, schema.refusal
        with self._database.write() as connection:
            before = self._database.now(connection) - USE_DAYS * DAY_SECONDS
            last = connection.execute(select(func.max(span.c.id))).scalar_one() or 0
            old = or_(span.c.until_at < before, span.c.id <= last - MOST_SPANS)
            ids = select(span.c.id).where(old).limit(_PRUNED)
            gone = connection.execute(delete(span).where(span.c.id.in_(ids))).rowcount
            connection.execute(delete(refusal).where(refusal.c.day < before // DAY_SECONDS))
            return gone == _PRUNED


def follow_use(database: Database, connection: Connection, before: Desktop | None, after: Desktop | None) -> None:
    """Note how a desktop is used from now on, if that is new. None: there is none."""
    old, new = (None if one is None else _use_of(one) for one in (before, after))
    if old == new:
        return
    span, now = schema.use_span, database.now(connection)
    if before is not None:
        is_open = (span.c.desktop_id == before.id) & span.c.until_at.is_(None)
        connection.execute(update(span).where(is_open).values(until_at=now))
    if after is not None and new is not None:
        _begin(connection, after, now)


def end_spans(connection: Connection, at: float) -> None:
    """End all spans at a time: what is known ends there."""
    span = schema.use_span
    connection.execute(update(span).where(span.c.until_at.is_(None)).values(until_at=at))


def _use_of(desktop: Desktop) -> _Use | None:
    report = desktop.report
    if desktop.user is None:
        return None
    is_on = report is not None and report.exists and is_running(report.state)
    users = None if report is None or not is_on else report.guest_users
    vgpus = () if report is None or not report.exists else report.vgpus
    return _Use(desktop.user, is_on, None if users is None else bool(users), vgpus)


def _begin(connection: Connection, desktop: Desktop, now: float) -> None:
    use = _use_of(desktop)
    assert use is not None
    pool, room = schema.pool, schema.host_room
    text = None
    if any(one.framebuffer_mib is None for one in use.vgpus):
        text = connection.execute(select(room.c.room).where(room.c.host_id == desktop.host_id)).scalar()
    held = desktop if use.vgpus else replace(desktop, report=None)
    row = {
        "desktop_id": desktop.id,
        "desktop": desktop.name,
        "pool": connection.execute(select(pool.c.name).where(pool.c.id == desktop.pool_id)).scalar() or "",
        "person": use.person,
        "began_at": now,
        "is_on": use.is_on,
        "logged_on": use.logged_on,
        "gpu_mib": held_gpu_mib(held, None if text is None else room_of(text)),
    }
    connection.execute(insert(schema.use_span).values(**row))


def _key(by: str, table: Any) -> tuple[ColumnElement[Any], Any]:
    """Return the column by which rows are summed, and the tables that have it."""
    if by != "group":
        return table.c[by], table
    member = schema.membership
    return member.c.group_name, table.outerjoin(member, member.c.person == table.c.person)


def _of_pools(statement: Any, column: ColumnElement[Any], pool: str | None, pools: Collection[str] | None) -> Any:
    statement = statement if pool is None else statement.where(column == pool)
    return statement if pools is None else statement.where(column.in_(pools))


def _sums(by: str, since: float, end: float, now: float) -> Any:
    """Return the query for what was used from `since` to `end`; up to `now`, what is idle counts as idle now, too.

    Of a span that is longer than that, what was measured counts for the part of its time.
    """
    span = schema.use_span
    until = func.coalesce(span.c.until_at, end)
    begin = case((span.c.began_at > since, span.c.began_at), else_=literal(since, Float))
    seconds = cast(case((until < end, until), else_=literal(end, Float)) - begin, Float)
    known = span.c.is_on.is_(True) & span.c.logged_on.is_not(None)
    idle = and_(
        span.c.until_at.is_(None),
        span.c.is_on.is_(True),
        span.c.logged_on.is_(False),
        true() if end >= now else false(),
    )
    part = seconds / func.nullif(func.coalesce(span.c.until_at, now) - span.c.began_at, 0.0)
    key, tables = _key(by, span)

    def total(condition: ColumnElement[bool], value: Any) -> Any:
        return func.sum(case((condition, value), else_=0))

    return (
        select(
            key.label("name"),
            func.sum(seconds).label("assigned_seconds"),
            total(span.c.is_on.is_(True), seconds).label("on_seconds"),
            total(span.c.logged_on.is_(True), seconds).label("logged_on_seconds"),
            total(known, seconds).label("known_seconds"),
            func.sum(span.c.gpu_mib * seconds).label("gpu_mib_seconds"),
            total(idle, 1).label("idle"),
            *(func.coalesce(func.sum(span.c[name] * part), 0.0).label(name) for name in _MEASURED if name != _PEAK),
            func.max(span.c[_PEAK]).label(_PEAK),
        )
        .select_from(tables)
        .where(or_(span.c.began_at < end, idle) & or_(span.c.until_at.is_(None), span.c.until_at > since))
        .group_by(key)
    )
