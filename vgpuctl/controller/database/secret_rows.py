# SPDX-License-Identifier: Apache-2.0
"""Secrets that are good once: any controller takes what another one gave out. The database has only their digests."""

from __future__ import annotations

import secrets

from sqlalchemy import delete, func, insert, select

from vgpuctl.controller.database import schema
from vgpuctl.controller.database.rows import Rows
from vgpuctl.controller.digests import digest_of
from vgpuctl.errors import Busy

MOST_OF_KIND = 10_000


class SecretRows(Rows):
    """The secrets. `kind`: what they are for; one of another kind opens nothing."""

    def give_out(self, kind: str, state: str, seconds: float) -> str:
        """Return a new secret: for so long, `take` returns `state` to who has it. One with the same state goes.

        Raises:
            Busy: very many of this kind were given out, and not used.
        """
        table, secret = schema.one_time_secret, secrets.token_urlsafe(32)
        with self._database.write() as connection:
            now = self._database.now(connection)
            same = (table.c.kind == kind) & (table.c.state == state)
            connection.execute(delete(table).where((table.c.expires_at <= now) | same))
            count = select(func.count()).select_from(table).where(table.c.kind == kind)
            if connection.execute(count).scalar_one() >= MOST_OF_KIND:
                raise Busy("too many people do this at once", hint="try again in a few minutes")
            row = {"digest": digest_of(secret), "kind": kind, "state": state, "expires_at": now + seconds}
            connection.execute(insert(table).values(row))
        return secret

    def take(self, kind: str, secret: str) -> str | None:
        """Return what belongs to a secret, once; None: it is none of this kind, or too old."""
        table = schema.one_time_secret
        with self._database.write() as connection:
            now = self._database.now(connection)
            own = (table.c.digest == digest_of(secret)) & (table.c.kind == kind)
            row = connection.execute(delete(table).where(own).returning(table.c.state, table.c.expires_at)).first()
            return None if row is None or row.expires_at <= now else str(row.state)
