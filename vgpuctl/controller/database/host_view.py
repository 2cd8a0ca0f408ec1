# SPDX-License-Identifier: Apache-2.0
"""What one look at a host needs of the database, in one transaction of four statements.

A thousand hosts have fifty looks a second even when nothing happens, so this is the part of the store that costs. The
pools and images of the fleet are kept from look to look: each change of one raises its generation, and the first
statement returns all of them, with the ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, bindparam, column, literal, select, table

from vgpuctl.controller.database import schema
from vgpuctl.controller.database.engine import Database
from vgpuctl.controller.database.restored_rows import INCARNATION, RESTORED_KEY
from vgpuctl.controller.database.room_rows import room_of
from vgpuctl.controller.database.rows import (
    Changes,
    Rows,
    desktop_of,
    host_image_of,
    host_of,
    image_of,
    pool_of,
    read_text,
    stop_key,
)
from vgpuctl.controller.model import Desktop, FleetHost, HostImage, HostLease, Image, Pool, Restored
from vgpuctl.model.host_room import HostRoom
from vgpuctl.value import EMPTY_MAPPING, Value, replace

_HOST_ID: ColumnElement[str] = bindparam("host_id")
_DESKTOPS = select(schema.desktop).where(schema.desktop.c.host_id == _HOST_ID)
_HOST_IMAGES = select(schema.host_image).where(schema.host_image.c.host_id == _HOST_ID)
_ROOM = select(schema.host_room.c.room).where(schema.host_room.c.host_id == _HOST_ID)
_POOLS, _IMAGES = select(schema.pool), select(schema.image)


class HostView(Value):
    """A host in the database at one time. `now`: by its clock. `lease`: None: nobody ever had the host.

    `version`: of the tables. `stop_at`: when all desktops of a host in maintenance stop, whoever is logged on; None:
    never. The others are empty unless the host is the reader's. `room`: what the host said; None: nothing yet. `pools`,
    `images`: of the fleet, by id.
    """

    host: FleetHost
    now: float
    lease: HostLease | None
    incarnation: str
    version: str
    restored: Restored
    stop_at: float | None
    desktops: tuple[Desktop, ...] = ()
    host_images: tuple[HostImage, ...] = ()
    room: HostRoom | None = None
    pools: Mapping[str, Pool] = EMPTY_MAPPING
    images: Mapping[str, Image] = EMPTY_MAPPING

    def own_lease(self, holder: str, seconds: float = 0.0) -> HostLease | None:
        """Return the lease of a controller if it has the host, and for more than so many seconds."""
        lease = self.lease
        return lease if lease is not None and lease.holder == holder and lease.expires_at > self.now + seconds else None

    @property
    def is_free(self) -> bool:
        """Whether no controller has the host."""
        return self.lease is None or self.lease.expires_at <= self.now


class _Catalog(Value):
    """The pools and images of the fleet, by id. `generations`: as the database had them before they were read."""

    generations: tuple[frozenset[str], frozenset[str]]
    pools: Mapping[str, Pool]
    images: Mapping[str, Image]


class HostViews(Rows):
    """Reads what looks at hosts need."""

    def __init__(self, database: Database, changes: Changes) -> None:
        super().__init__(database, changes)
        self._one_host = _one_host(database)
        self._catalog: _Catalog | None = None

    def read(self, host_id: str, holder: str) -> HostView | None:
        """Return a host as the database has it now; None: it was removed. `holder`: who reads."""
        given = {"host_id": host_id}
        with self._database.read() as connection:
            row = connection.execute(self._one_host, given).mappings().first()
            if row is None:
                return None
            lease = None if row["epoch"] is None else HostLease(host_id, row["holder"], row["epoch"], row["expires_at"])
            view = HostView(
                host=host_of(row),
                now=self._database.now(connection) if row["now"] is None else float(row["now"]),
                lease=lease,
                incarnation=str(row["incarnation"]),
                version=str(row["version"]),
                restored=Restored() if row["restored"] is None else read_text(Restored, row["restored"]),
                stop_at=None if row["stop_at"] is None else float(row["stop_at"]),
            )
            if view.own_lease(holder) is None:
                return view
            catalog = self._read_catalog(connection, (_words(row["pools"]), _words(row["images"])))
            more = {
                "desktops": tuple(map(desktop_of, connection.execute(_DESKTOPS, given).mappings())),
                "host_images": tuple(map(host_image_of, connection.execute(_HOST_IMAGES, given).mappings())),
                "room": None if (text := connection.execute(_ROOM, given).scalar()) is None else room_of(text),
            }
        return replace(view, **more, pools=catalog.pools, images=catalog.images)

    def _read_catalog(self, connection: Connection, generations: tuple[frozenset[str], frozenset[str]]) -> _Catalog:
        """Return the pools and images, from the database only if one of them is another one now."""
        catalog = self._catalog
        if catalog is None or catalog.generations != generations:
            pools = map(pool_of, connection.execute(_POOLS).mappings())
            images = map(image_of, connection.execute(_IMAGES).mappings())
            catalog = self._catalog = _Catalog(
                generations, {one.id: one for one in pools}, {one.id: one for one in images}
            )
        return catalog


def _words(text: str | None) -> frozenset[str]:
    return frozenset((text or "").split())


def _one_host(database: Database) -> Select[Any]:
    """Return the query for all that there is once: the host, its lease, and what it needs of the fleet."""
    host, lease = schema.host, schema.host_lease
    version = table("alembic_version", column("version_num"))
    return (
        select(
            *host.c,
            lease.c.holder,
            lease.c.epoch,
            lease.c.expires_at,
            database.time_column().label("now"),
            select(version.c.version_num).scalar_subquery().label("version"),
            _meta(literal(INCARNATION)).label("incarnation"),
            _meta(literal(RESTORED_KEY)).label("restored"),
            _meta(literal(stop_key("")) + _HOST_ID).label("stop_at"),
            database.generations(schema.pool).label("pools"),
            database.generations(schema.image).label("images"),
        )
        .select_from(host.outerjoin(lease, lease.c.host_id == host.c.id))
        .where(host.c.id == _HOST_ID)
    )


def _meta(key: ColumnElement[str]) -> Any:
    return select(schema.meta.c.value).where(schema.meta.c.key == key).scalar_subquery()
