# SPDX-License-Identifier: Apache-2.0
"""From where accounts signed in lately: there, what others try is in nobody's way.

It is in the database, so that who tries many passwords locks nobody out after a controller's start, or at another
controller.
"""

from __future__ import annotations

import hashlib

from sqlalchemy import Connection, delete, select

from vgpuctl.controller.database import schema
from vgpuctl.controller.database.engine import Database
from vgpuctl.controller.database.rows import Rows

PLACE_DAYS, MOST_PLACES = 90, 20
"""A person's places are remembered so long after the last sign-in there, and so many of them."""
DAY_SECONDS = 86400.0


class PlaceRows(Rows):
    """The places."""

    def has(self, account: str, network: str) -> bool:
        """Return whether an account signed in from there lately."""
        table = schema.known_place
        with self._database.read() as connection:
            since = self._database.now(connection) - PLACE_DAYS * DAY_SECONDS
            own = (table.c.digest == _digest(account, network)) & (table.c.seen_at >= since)
            return connection.execute(select(table.c.digest).where(own)).first() is not None

    def prune(self) -> None:
        """Forget old places."""
        table = schema.known_place
        with self._database.write() as connection:
            before = self._database.now(connection) - PLACE_DAYS * DAY_SECONDS
            connection.execute(delete(table).where(table.c.seen_at < before))


def note_place(database: Database, connection: Connection, person: str, account: str, network: str) -> bool:
    """Remember from where somebody signed in; return whether the journal has no entry of that in the last day."""
    table, digest, now = schema.known_place, _digest(account, network), database.now(connection)
    noted_at = connection.execute(select(table.c.noted_at).where(table.c.digest == digest)).scalar()
    is_new = noted_at is None or not 0 <= now - noted_at < DAY_SECONDS
    row = {"digest": digest, "person": person, "seen_at": now, "noted_at": now if is_new else noted_at}
    database.insert_or_update(connection, table, ("digest",), row)
    if noted_at is None:
        own = table.c.person == person
        latest = select(table.c.digest).where(own).order_by(table.c.seen_at.desc(), table.c.digest).limit(MOST_PLACES)
        kept = connection.execute(latest).scalars().all()
        connection.execute(delete(table).where(own & table.c.digest.not_in(kept)))
    return is_new


def _digest(account: str, network: str) -> str:
    return hashlib.sha256(f"{account}\n{network}".encode()).hexdigest()
