# SPDX-License-Identifier: Apache-2.0
"""What hosts said they have room for, a row each, and what is on its way to them.

Who places a desktop names the version of the row from which it counted. Each new row and each placed desktop makes
another version, so that of two controllers that count the same room one counts again.
"""

from __future__ import annotations

import functools
import json
import logging
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select, update

from vgpuctl.controller.database import schema
from vgpuctl.controller.database.rows import Rows, on_its_way
from vgpuctl.controller.model import OnItsWay, StoredRoom
from vgpuctl.model.documents import to_json_value
from vgpuctl.model.host_room import NO_ROOM, HostRoom
from vgpuctl.model.result_reader import Mismatch, read_value

log = logging.getLogger("vgpuctl.controller")

REFUSED_SECONDS = 60.0
"""So long nothing of a profile is placed on a host that had no room for it, unless its GPUs change before."""
MAX_BYTES = 1 << 20
MAX_REASON = 300


class RoomRows(Rows):
    """The room of all hosts."""

    def list(self) -> tuple[dict[str, StoredRoom], tuple[OnItsWay, ...]]:
        """Return what each host said, by its id, and the desktops that were placed there and are not in it yet.

        The rooms are read first: a desktop that its host reports meanwhile is in the host's next room, whose version
        is another one.
        """
        with self._database.read() as connection:
            now = self._database.now(connection)
            rooms = {row.host_id: _stored(row, now) for row in connection.execute(select(schema.host_room))}
            return rooms, _on_their_way(connection)

    def own_addresses(self) -> frozenset[str]:
        """Return the hosts' own addresses."""
        with self._database.read() as connection:
            texts = connection.execute(select(schema.host_room.c.room)).scalars()
            return frozenset(address for text in texts for address in room_of(text).own_addresses)

    def set(self, host_id: str, room: HostRoom) -> None:
        """Store what a host says; nothing is written unless it says something else.

        Other GPUs, or something else on them, end what it refused. One that says too much has no room.
        """
        text, table = _text_of(room), schema.host_room
        if len(text) > MAX_BYTES:
            log.warning("a host's room has %d bytes, more than %d: nothing new goes there", len(text), MAX_BYTES)
            room, text = NO_ROOM, _text_of(NO_ROOM)
        own = table.c.host_id == host_id
        with self._database.read() as connection:
            if connection.execute(select(table.c.room).where(own)).scalar() == text:
                return
        with self._write() as connection:
            row = connection.execute(select(table).where(own).with_for_update(key_share=True)).first()
            if row is None:
                connection.execute(insert(table).values(host_id=host_id, room=text, refused="{}", version=1))
                return
            before = room_of(row.room)
            is_same = (before.rules, before.gpus) == (room.rules, room.gpus)
            values = {"room": text, "version": row.version + 1, "refused": row.refused if is_same else "{}"}
            connection.execute(update(table).where(own).values(**values))

    def refuse(self, host_id: str, profile: str, reason: str) -> None:
        """Note that a host had no room for a profile, whatever it said before, and what it says now."""
        table = schema.host_room
        with self._database.write() as connection:
            row = connection.execute(
                select(table).where(table.c.host_id == host_id).with_for_update(key_share=True)
            ).first()
            if row is not None:
                now = self._database.now(connection)
                refused = {name: entry for name, entry in json.loads(row.refused).items() if entry[0] > now}
                refused[profile] = [now + REFUSED_SECONDS, reason[:MAX_REASON]]
                values = {"refused": json.dumps(refused), "version": row.version + 1}
                connection.execute(update(table).where(table.c.host_id == host_id).values(**values))


def count_placed(connection: Connection, host_id: str, version: int) -> bool:
    """Note that a desktop is placed on a host; False: its room is no longer the one of this version."""
    table = schema.host_room
    same = (table.c.host_id == host_id) & (table.c.version == version)
    return connection.execute(update(table).where(same).values(version=version + 1)).rowcount == 1


def _on_their_way(connection: Connection) -> tuple[OnItsWay, ...]:
    table = schema.desktop
    host_id = func.coalesce(table.c.moving_to, table.c.host_id)
    expected = on_its_way() | table.c.moving_to.is_not(None)
    placed = select(host_id, table.c.pool_id, table.c.name, table.c.profile).where(expected)
    return tuple(OnItsWay(*row) for row in connection.execute(placed.order_by(table.c.created_at, table.c.name)))


def _stored(row: Row[Any], now: float) -> StoredRoom:
    refused = {name: reason for name, (until, reason) in json.loads(row.refused).items() if until > now}
    return StoredRoom(room_of(row.room), row.version, refused)


def _text_of(room: HostRoom) -> str:
    return json.dumps(to_json_value(room), separators=(",", ":"), sort_keys=True)


@functools.lru_cache(maxsize=2048)
def room_of(text: str) -> HostRoom:
    """Return a room as its column has it."""
    try:
        room: HostRoom = read_value(HostRoom, json.loads(text))
    except Mismatch:  # another program stored it: the host says it again within seconds
        return NO_ROOM
    return room
