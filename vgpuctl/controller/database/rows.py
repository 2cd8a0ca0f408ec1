# SPDX-License-Identifier: Apache-2.0
"""Rows as values, and values as rows; what all tables share: transactions, the journal, and who waits for a change."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, Table, func, insert, select, update

from vgpuctl.config.rules import suggest_word
from vgpuctl.controller.clock import ControllerClock
from vgpuctl.controller.database import schema
from vgpuctl.controller.database.engine import Database
from vgpuctl.controller.model import (
    Desktop,
    DesktopReport,
    FieldChange,
    FleetCaller,
    FleetEvent,
    FleetHost,
    FleetHostState,
    HostImage,
    Image,
    Pool,
    PoolSpec,
    PoolState,
)
from vgpuctl.controller.planning.phase import CRASHES_CODE
from vgpuctl.controller.policy import no_pool
from vgpuctl.errors import InvalidInput, NotFound, Stale
from vgpuctl.model.documents import to_json_value
from vgpuctl.model.image_copy import CopyState
from vgpuctl.model.result_reader import read_value
from vgpuctl.value import Value, field_names, replace

CONTROLLER = "controller"
"""The actor of what no person asked for."""


class About(Value):
    """What an entry of the journal is about, by name."""

    pool: str | None = None
    desktop: str | None = None
    host: str | None = None
    user: str | None = None


class Changes:
    """Tells the threads of this process what was changed in the database: something, and on which hosts.

    A thread collects the hosts that its transaction is about, and tells of them when it is committed; other controllers
    hear of the hosts from PostgreSQL.
    """

    def __init__(self, clock: ControllerClock) -> None:
        self._clock = clock
        self._condition = threading.Condition()
        self._number = 0
        self._hosts: set[str] = set()
        self._own = threading.local()

    @contextmanager
    def dry_run(self) -> Iterator[None]:
        """Have the transactions of this thread checked and not committed."""
        self._own.is_dry_run = True
        try:
            yield
        finally:
            self._own.is_dry_run = False

    @contextmanager
    def made_by(self, caller: FleetCaller) -> Iterator[None]:
        """Have the entries that this thread adds to the journal say who asked, and from where."""
        before, self._own.caller = self.caller, caller
        try:
            yield
        finally:
            self._own.caller = before

    @property
    def caller(self) -> FleetCaller | None:
        """Who asked for what this thread does; None: nobody, the controller does it by itself."""
        caller: FleetCaller | None = getattr(self._own, "caller", None)
        return caller

    @property
    def is_dry_run(self) -> bool:
        """Whether this thread's transactions are not committed."""
        return getattr(self._own, "is_dry_run", False)

    @property
    def hosts(self) -> frozenset[str]:
        """The hosts that the present transaction is about."""
        return frozenset(self._pending())

    def touch(self, host_id: str | None) -> None:
        """Note that the present transaction is about a host."""
        if host_id is not None:
            self._pending().add(host_id)

    def forget(self) -> None:
        """Begin a transaction."""
        self._pending().clear()

    def note(self) -> None:
        """Tell of a transaction that is committed."""
        with self._condition:
            self._number += 1
            self._hosts |= self._pending()
            self._condition.notify_all()
        self._pending().clear()

    def take_hosts(self) -> set[str]:
        """Return the hosts that changes were about since the last time."""
        with self._condition:
            hosts, self._hosts = self._hosts, set()
            return hosts

    def wait(self, after: int, seconds: float) -> int:
        """Wait until there was a change after this number, or for so long; return the number of the last change."""
        with self._condition:
            self._clock.wait(lambda s: self._condition.wait_for(lambda: self._number != after, s), seconds)
            return self._number

    def _pending(self) -> set[str]:
        pending: set[str] | None = getattr(self._own, "hosts", None)
        if pending is None:
            pending = self._own.hosts = set()
        return pending


class Rows:
    """What each part of the store has: the database, and who is told of a change."""

    def __init__(self, database: Database, changes: Changes) -> None:
        self._database = database
        self._changes = changes

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        """Yield a connection in a transaction; afterwards who waits for changes is woken.

        In a dry run it is rolled back at its end, with all that it refused or answered before.
        """
        self._changes.forget()
        with self._database.write() as connection:
            yield connection
            if self._changes.is_dry_run:
                connection.rollback()
                self._changes.forget()
                return
            self._database.notify(connection, sorted(self._changes.hosts))
        self._changes.note()

    def _note(
        self,
        connection: Connection,
        kind: str,
        text: str,
        actor: str,
        about: About,
        changed: tuple[FieldChange, ...] = (),
        number: int | None = None,
    ) -> None:
        """Add an entry to the journal. `changed`: what the change changed; `number`: its id, else the next one.

        One about a desktop is about its pool, too: the desktop's row must still be there.
        """
        caller = self._changes.caller
        is_asked = caller is not None and caller.name == actor
        text += f" (by token {caller.token} of {actor})" if is_asked and caller and caller.token else ""
        row: dict[str, Any] = {"at": self._database.now(connection), "kind": kind, "text": text, "actor": actor}
        row["actor_kind"] = str(caller.kind) if is_asked and caller else CONTROLLER if actor == CONTROLLER else None
        row["address"] = None if caller is None else caller.address
        row["changed"] = text_of(changed) if changed else None
        row |= columns_of(about) | ({} if number is None else {"id": number})
        if about.desktop is not None and about.pool is None:
            joined = schema.pool.join(schema.desktop, schema.desktop.c.pool_id == schema.pool.c.id)
            pool = select(schema.pool.c.name).select_from(joined).where(schema.desktop.c.name == about.desktop)
            row["pool"] = pool.scalar_subquery()
        connection.execute(insert(schema.event).values(**row))


def first_generation(connection: Connection) -> int:
    """Return the generation of what is made now: higher than that of a former one of the same name.

    The journal's ids only grow, and each change of a generation is an entry there.
    """
    return int(connection.execute(select(func.max(schema.event.c.id))).scalar() or 0) + 1


def check_generation(what: str, generation: int, expected: int | None) -> None:
    """Refuse a change of what was changed since its caller read it.

    Raises:
        Stale: the generation is another one.
    """
    if expected is not None and generation != expected:
        raise Stale(
            f"{what} was changed since: its generation is {generation}, not {expected}",
            hint="read it again, and decide again",
            generation=generation,
        )


def text_of(value: object) -> str:
    """Return a value as JSON text."""
    return json.dumps(to_json_value(value), ensure_ascii=False, separators=(",", ":"), sort_keys=True)


@functools.lru_cache(maxsize=32768)
def read_text(kind: Any, text: str) -> Any:
    """Return the value of a kind from JSON text. A field that an older version did not write has its default.

    Most rows have the text that they had before, so that it is known.

    Raises:
        InvalidInput: the text has another form: a newer controller wrote it, or it is damaged.
    """
    defaults = {name: to_json_value(getattr(kind, name)) for name in field_names(kind) if hasattr(kind, name)}
    try:
        return read_value(kind, {**defaults, **json.loads(text)})
    except ValueError as error:
        raise InvalidInput(f"the database has a value of another form: {error}") from error


def pool_ids(connection: Connection, names: Iterable[str]) -> tuple[str, ...]:
    """Return the ids of pools.

    Raises:
        NotFound: there is none of a name.
    """
    wanted = tuple(names)
    rows = connection.execute(select(schema.pool.c.name, schema.pool.c.id).where(schema.pool.c.name.in_(wanted)))
    ids = {row.name: row.id for row in rows}
    for name in wanted:
        if name not in ids:
            raise no_pool(name)
    return tuple(ids[name] for name in wanted)


def nothing_called(connection: Connection, table: Table, what: str, name: str) -> NotFound:
    """Return the error for a pool, host or image that does not exist, with the one of the most similar name."""
    meant = suggest_word(name, connection.execute(select(table.c.name)).scalars())
    return NotFound(f"there is no {what} {name}{meant}", hint=f"vgpuctl controller list-{what}s", **{what: name})


def pool_of(row: RowMapping) -> Pool:
    """Return a pool."""
    return Pool(
        id=row["id"],
        name=row["name"],
        spec=read_text(PoolSpec, row["spec"]),
        image_id=row["image_id"],
        state=PoolState(row["state"]),
        generation=row["generation"],
        reason=row["reason"],
        paused_by_errors=row["paused_by_errors"],
    )


def image_of(row: RowMapping) -> Image:
    """Return an image."""
    return Image(**{name: row[name] for name in field_names(Image)})


def event_of(row: RowMapping) -> FleetEvent:
    """Return an entry of the journal."""
    changed = () if row["changed"] is None else tuple(FieldChange(**one) for one in json.loads(row["changed"]))
    return FleetEvent(**{**row, "changed": changed})


def host_of(row: RowMapping) -> FleetHost:
    """Return a host."""
    values: dict[str, Any] = {name: row[name] for name in field_names(FleetHost)}
    return FleetHost(**{**values, "labels": json.loads(row["labels"]), "state": FleetHostState(row["state"])})


def desktop_of(row: RowMapping) -> Desktop:
    """Return a desktop."""
    values: dict[str, Any] = {name: row[name] for name in field_names(Desktop)}
    report = None if row["report"] is None else read_text(DesktopReport, row["report"])
    return Desktop(**{**values, "report": report})


def host_image_of(row: RowMapping) -> HostImage:
    """Return an image of a host."""
    values: dict[str, Any] = {name: row[name] for name in field_names(HostImage)}
    return HostImage(**{**values, "state": CopyState(row["state"])})


def stop_key(host_id: str) -> str:
    """Return the key in the table `meta` of when the desktops of a host in maintenance stop."""
    return f"stop-at {host_id}"


def columns_of(value: Value) -> dict[str, Any]:
    """Return the fields of a value by name, as columns."""
    return {name: getattr(value, name) for name in field_names(value)}


def row_of_desktop(desktop: Desktop) -> dict[str, Any]:
    """Return a desktop's row."""
    return {**columns_of(desktop), **report_columns(desktop.report)}


def lock_desktops(connection: Connection, ids: Sequence[str]) -> None:
    """Lock desktops in the order that every transaction has, so that none of two waits for the other."""
    table = schema.desktop
    if ids:
        connection.execute(
            select(table.c.id).where(table.c.id.in_(ids)).order_by(table.c.id).with_for_update(key_share=True)
        ).all()


def forget_crashes(connection: Connection, which: ColumnElement[bool]) -> None:
    """Let these desktops be started again that stopped by themselves too often."""
    table = schema.desktop
    for row in (
        connection.execute(select(table).where(which).order_by(table.c.id).with_for_update(key_share=True))
        .mappings()
        .all()
    ):
        report = desktop_of(row).report
        if report is not None and report.crashes:
            free = replace(report, code=None, error=None, hint=None, crashes=())
            values = report_columns(free if report.code == CRASHES_CODE else replace(report, crashes=()))
            connection.execute(update(table).where(table.c.id == row["id"]).values(**values))


def on_its_way() -> ColumnElement[bool]:
    """Return the condition of desktops that a host is to get, and that it never had."""
    table = schema.desktop
    return table.c.host_id.is_not(None) & table.c.absent.is_(False) & (table.c.reported_generation == 0)


def report_columns(report: DesktopReport | None) -> dict[str, Any]:
    """Return the columns that say what a host reported."""
    if report is None:
        return {"report": None, "can_take": False, "reported_generation": 0}
    return {
        "report": text_of(report),
        "can_take": report.exists and report.ready and not report.dirty and report.user is None and not report.code,
        "reported_generation": report.generation,
    }
