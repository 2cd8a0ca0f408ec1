# SPDX-License-Identifier: Apache-2.0
"""Which host has which image. A row outlives its image: it says that a copy is still to be deleted there."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import delete, select, union, update

from vgpuctl.controller.database import schema
from vgpuctl.controller.database.rows import Rows, columns_of, host_image_of
from vgpuctl.controller.model import HostImage


class HostImageRows(Rows):
    """The images of all hosts."""

    def list(self, host_id: str | None = None) -> tuple[HostImage, ...]:
        """Return the images of all hosts, or of one."""
        table = schema.host_image
        statement = select(table).order_by(table.c.host_id, table.c.image_id)
        with self._database.read() as connection:
            rows = connection.execute(statement if host_id is None else statement.where(table.c.host_id == host_id))
            return tuple(map(host_image_of, rows.mappings()))

    def put(self, image: HostImage) -> None:
        """Store what a host has of an image; who waits for changes is woken."""
        row = {**columns_of(image), "state": image.state.value}
        with self._write() as connection:
            self._database.insert_or_update(connection, schema.host_image, ("host_id", "image_id"), row)

    def remove(self, image: HostImage) -> None:
        """Forget an image of a host."""
        table = schema.host_image
        with self._write() as connection:
            own = (table.c.host_id == image.host_id) & (table.c.image_id == image.image_id)
            connection.execute(delete(table).where(own))

    def retry(self, image_id: str) -> None:
        """Have an image that failed tried again now, on all hosts."""
        table = schema.host_image
        with self._write() as connection:
            failed = (table.c.image_id == image_id) & (table.c.errors > 0)
            for host_id in connection.execute(select(table.c.host_id).where(failed)).scalars():
                self._changes.touch(host_id)
            connection.execute(update(table).where(failed).values(errors=0, not_before=0.0))

    def unused(self, ids: Collection[str]) -> frozenset[str]:
        """Return those of some images, by id, that no pool and no desktop uses."""
        pool, desktop = schema.pool.c.image_id, schema.desktop.c.image_id
        used = union(select(pool).where(pool.in_(ids)), select(desktop).where(desktop.in_(ids)))
        with self._database.read() as connection:
            return frozenset(ids).difference(connection.execute(used).scalars())
