# SPDX-License-Identifier: Apache-2.0
"""The journal, and answers that are kept for requests that come twice."""

from __future__ import annotations

from itertools import takewhile

from sqlalchemy import Connection, delete, func, select, text

from vgpuctl.controller.database import schema
from vgpuctl.controller.database.migrations.versions.v0006 import SQLITE_TRIGGERS
from vgpuctl.controller.database.rows import About, Rows, columns_of, event_of
from vgpuctl.controller.model import LEAST_EVENT_DAYS, FleetEvent, JournalLimits
from vgpuctl.errors import Refused
from vgpuctl.value import Value

ANSWER_SECONDS = 86400.0
MAX_EVENTS = 1000
DAY_SECONDS = 86400.0
PRUNE_ENTRIES = 1000


class KnownAnswer(Value):
    """The answer to an earlier request with the same key. `digest`: of that request."""

    digest: str
    status: int
    body: str


JOURNAL_ROLE, TRIGGERS = "vgpuctl_journal", ("event_no_change", "event_no_truncate")
"""On PostgreSQL: the role that the documentation gives the table to, and what refuses changes."""
_GUARD = text("""
    SELECT current_user AS user, pg_get_userbyid(c.relowner) AS owner,
        pg_has_role(c.relowner, 'MEMBER') OR has_table_privilege(c.oid, 'UPDATE, TRUNCATE, TRIGGER') AS may_change,
        EXISTS (SELECT FROM pg_roles WHERE rolname = :role) AS has_role,
        (SELECT count(*) FROM pg_trigger t WHERE t.tgrelid = c.oid AND t.tgname = ANY(:triggers)
            AND t.tgenabled IN ('O', 'A')) AS triggers
    FROM pg_class c WHERE c.oid = 'event'::regclass
""")


class JournalGuard(Value):
    """Who could change the journal's entries on PostgreSQL. `user`: the controller's role; `owner`: the table's.

    `may_change`: the controller's role could, as it owns the table or may act as its owner. `has_role`: there is a role
    for the journal. `triggers`: so many are in force.
    """

    user: str
    owner: str
    may_change: bool
    has_role: bool
    triggers: int


class JournalRows(Rows):
    """The journal of the fleet. Entries are added, and the oldest ones deleted."""

    def list(self, after: int = 0, limit: int = MAX_EVENTS) -> tuple[FleetEvent, ...]:
        """Return the entries after one, the oldest first; without one the last ones."""
        event = schema.event
        statement = select(event).order_by(event.c.id if after else event.c.id.desc()).limit(min(limit, MAX_EVENTS))
        with self._database.read() as connection:
            rows = connection.execute(statement.where(event.c.id > after)).mappings()
            entries = list(map(event_of, rows))
        return tuple(entries if after else reversed(entries))

    def find(
        self,
        *,
        kind: str | None = None,
        actor_kind: str | None = None,
        person: str | None = None,
        pool: str | None = None,
        host: str | None = None,
        desktop: str | None = None,
        since: float | None = None,
        until: float | None = None,
        before: int | None = None,
        limit: int = MAX_EVENTS,
    ) -> tuple[FleetEvent, ...]:
        """Return entries, the newest first, that are older than one; `person`: who did it, or whom it is about.

        `since`, `until`: of that time, `until` not included.
        """
        event = schema.event
        statement = select(event).order_by(event.c.id.desc()).limit(min(limit, MAX_EVENTS))
        equal = (
            (event.c.kind, kind),
            (event.c.actor_kind, actor_kind),
            (event.c.pool, pool),
            (event.c.host, host),
            (event.c.desktop, desktop),
        )
        for column, value in equal:
            statement = statement if value is None else statement.where(column == value)
        if person is not None:
            statement = statement.where((event.c.actor == person) | (event.c.user == person))
        if since is not None:
            statement = statement.where(event.c.at >= since)
        if until is not None:
            statement = statement.where(event.c.at < until)
        if before is not None:
            statement = statement.where(event.c.id < before)
        with self._database.read() as connection:
            return tuple(map(event_of, connection.execute(statement).mappings()))

    def prune(self, limits: JournalLimits) -> bool:
        """Delete the oldest entries beyond the limits, not many at a time; return whether there may be more of them.

        Those of the last `LEAST_EVENT_DAYS` stay, however many they are. So does the last entry: the next one's id must
        be greater.
        """
        event = schema.event
        with self._database.write() as connection:
            last = connection.execute(select(func.max(event.c.id))).scalar_one()
            if last is None:
                return False
            young = (
                self._database.now(connection) - LEAST_EVENT_DAYS * DAY_SECONDS - 1
            )  # the triggers have whole seconds
            before = min(young, self._database.now(connection) - limits.days * DAY_SECONDS)
            oldest = select(event.c.id, event.c.at).where(event.c.id < last).order_by(event.c.id).limit(PRUNE_ENTRIES)
            rows = connection.execute(oldest).all()
            beyond = 0
            if rows and last - rows[0].id >= limits.entries:  # a restore leaves ids out, so entries are counted
                newest = select(event.c.id).order_by(event.c.id.desc())
                beyond = connection.execute(newest.offset(limits.entries).limit(1)).scalar() or 0
            gone = list(takewhile(lambda row: row.at < (young if row.id <= beyond else before), rows))
            if gone:
                connection.execute(delete(event).where(event.c.id <= gone[-1].id))
            return len(gone) == PRUNE_ENTRIES

    def guard(self) -> JournalGuard | None:
        """Return who could change entries; None: SQLite, where everybody can who owns the file."""
        if self._database.is_sqlite:
            return None
        with self._database.read() as connection:
            given = {"role": JOURNAL_ROLE, "triggers": list(TRIGGERS)}
            return JournalGuard(**connection.execute(_GUARD, given).mappings().one())

    def broken_triggers(self) -> tuple[str, ...]:
        """Return the triggers of SQLite that are not there, or are other ones than this program makes."""
        if not self._database.is_sqlite:
            return ()
        wanted = {" ".join(one.split()) for one in SQLITE_TRIGGERS}
        with self._database.read() as connection:
            texts = connection.execute(text("SELECT sql FROM sqlite_master WHERE type = 'trigger'")).scalars()
            broken = wanted - {" ".join(one.split()) for one in texts}
        return tuple(sorted(one.split()[2] for one in broken))

    def add(self, kind: str, text: str, actor: str, about: About) -> None:
        """Add an entry."""
        with self._write() as connection:
            self._note(connection, kind, text, actor, about)


def last_event(connection: Connection) -> int:
    """Return the id of the last entry; 0: there is none."""
    return int(connection.execute(select(func.max(schema.event.c.id))).scalar() or 0)


class AnswerRows(Rows):
    """The answers to requests with an `Idempotency-Key`: who sends one twice gets the first answer."""

    def find(self, token: str, key: str, digest: str) -> KnownAnswer | None:
        """Return the answer to an earlier request with this key; None: there was none.

        Raises:
            Refused: the key came with another request.
        """
        answer = schema.answer
        with self._database.read() as connection:
            statement = select(answer).where((answer.c.token == token) & (answer.c.key == key))
            row = connection.execute(statement).mappings().first()
        if row is None:
            return None
        if row["digest"] != digest:
            raise Refused(
                f"the idempotency key {key} belongs to another request", hint="use a new key for each request"
            )
        return KnownAnswer(row["digest"], row["status"], row["body"])

    def keep(self, token: str, key: str, answer: KnownAnswer) -> None:
        """Keep an answer for a day; older ones go."""
        table = schema.answer
        with self._database.write() as connection:
            now = self._database.now(connection)
            connection.execute(delete(table).where(table.c.at < now - ANSWER_SECONDS))
            row = {"token": token, "key": key, **columns_of(answer), "at": now}
            self._database.insert_or_update(connection, table, ("token", "key"), row)
