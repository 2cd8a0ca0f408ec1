# SPDX-License-Identifier: Apache-2.0
"""Which controllers live: also one that has no host yet counts when they share the hosts."""

from __future__ import annotations

from sqlalchemy import delete, func, select

from vgpuctl.controller.database import schema
from vgpuctl.controller.database.rows import Rows


class ControllerRows(Rows):
    """The controllers on this database."""

    def renew(self, holder: str, seconds: float) -> int:
        """Note that a controller lives for so long at least; return how many live. Dead ones are forgotten."""
        table = schema.controller
        with self._database.write() as connection:
            now = self._database.now(connection)
            row = {"holder": holder, "expires_at": now + seconds}
            self._database.insert_or_update(connection, table, ("holder",), row)
            live = connection.execute(select(func.count()).where(table.c.expires_at > now)).scalar_one()
            dead = select(table.c.holder).where(table.c.expires_at <= now).order_by(table.c.holder)
            names = connection.execute(dead.with_for_update(key_share=True)).scalars().all()
            if names:
                connection.execute(delete(table).where(table.c.holder.in_(names)))
            return int(live)

    def leave(self, holder: str) -> None:
        """Note that a controller stops."""
        with self._database.write() as connection:
            connection.execute(delete(schema.controller).where(schema.controller.c.holder == holder))
