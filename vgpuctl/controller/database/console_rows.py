# SPDX-License-Identifier: Apache-2.0
"""Consoles of desktops: who opened one is in the journal, and the user of the desktop sees who saw his screen last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import select, update

from vgpuctl.controller.database import schema
from vgpuctl.controller.database.rows import About, Rows
from vgpuctl.controller.model import Desktop
from vgpuctl.value import Value


class WatchedScreen(Value):
    """That somebody else than its user saw a desktop's screen last. `closed_at` None: it may be open."""

    desktop_id: str
    person: str
    opened_at: float
    closed_at: float | None


class ConsoleRows(Rows):
    """The consoles."""

    def open(self, desktop: Desktop, pool: str, person: str, *, is_watched: bool) -> float:
        """Note that somebody opened a console; return when. `is_watched`: it is another one's desktop."""
        table = schema.watched_screen
        with self._write() as connection:
            now = self._database.now(connection)
            if is_watched:
                row = {"desktop_id": desktop.id, "generation": desktop.generation, "person": person}
                row |= {"opened_at": now, "closed_at": None}
                self._database.insert_or_update(connection, table, ("desktop_id",), row)
            self._note(connection, "console-opened", desktop.name, person, _about(desktop, pool))
            return now

    def close(self, desktop: Desktop, pool: str, person: str, opened_at: float) -> float:
        """Note that a console ended; return when."""
        table = schema.watched_screen
        with self._write() as connection:
            now = self._database.now(connection)
            own = (table.c.desktop_id == desktop.id) & (table.c.opened_at == opened_at) & (table.c.person == person)
            connection.execute(update(table).where(own).values(closed_at=now))
            text = f"{desktop.name}, after {max(0, round(now - opened_at))} s"
            self._note(connection, "console-closed", text, person, _about(desktop, pool))
            return now

    def watched(self, desktops: Sequence[Desktop]) -> Mapping[str, WatchedScreen]:
        """Return, by their ids, those of which somebody else saw the screen since they were assigned."""
        table, generations = schema.watched_screen, {one.id: one.generation for one in desktops}
        if not generations:
            return {}
        with self._database.read() as connection:
            rows = connection.execute(select(table).where(table.c.desktop_id.in_(generations))).all()
        return {
            row.desktop_id: WatchedScreen(row.desktop_id, row.person, row.opened_at, row.closed_at)
            for row in rows
            if row.generation == generations[row.desktop_id]
        }


def _about(desktop: Desktop, pool: str) -> About:
    return About(pool=pool, desktop=desktop.name, user=desktop.user)
