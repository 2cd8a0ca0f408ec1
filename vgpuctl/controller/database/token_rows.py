# SPDX-License-Identifier: Apache-2.0
"""API tokens. The database has only digests of their secrets."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, RowMapping, delete, insert, select

from vgpuctl.controller.database import schema
from vgpuctl.controller.database.rows import About, Rows, pool_ids
from vgpuctl.controller.model import ApiToken, Right, Role
from vgpuctl.controller.planning.changed_fields import changed_fields
from vgpuctl.errors import Exists, NotFound


class TokenRows(Rows):
    """The API tokens."""

    def list(self) -> tuple[ApiToken, ...]:
        """Return all tokens, by name."""
        with self._database.read() as connection:
            rows = connection.execute(select(schema.token).order_by(schema.token.c.name)).mappings().all()
            pools = _pools_of(connection)
            return tuple(_token_of(row, pools) for row in rows)

    def find(self, digest: str) -> ApiToken | None:
        """Return the token whose secret has this digest; None: there is none, or it has expired."""
        with self._database.read() as connection:
            now = self._database.now(connection)
            row = connection.execute(select(schema.token).where(schema.token.c.digest == digest)).mappings().first()
            if row is None or not hmac.compare_digest(row["digest"], digest):
                return None
            if row["expires_at"] is not None and row["expires_at"] <= now:
                return None
            return _token_of(row, {} if row["right"] is None else _pools_of(connection, row["name"]))

    def add(
        self,
        name: str,
        role: Role | None,
        digest: str,
        valid_seconds: float | None,
        actor: str,
        *,
        right: Right | None = None,
        pools: Sequence[str] = (),
    ) -> ApiToken:
        """Add a token with a role in the fleet, or a right on some pools.

        Raises:
            Exists: there is one of this name. NotFound: there is no such pool.
        """
        with self._write() as connection:
            if connection.execute(select(schema.token.c.name).where(schema.token.c.name == name)).first() is not None:
                raise Exists(f"there is a token {name}", hint=f"vgpuctl controller delete-token {name}", token=name)
            ids = pool_ids(connection, pools)
            now = self._database.now(connection)
            token = ApiToken(name, role, now, None if valid_seconds is None else now + valid_seconds, right, (*pools,))
            connection.execute(
                insert(schema.token).values(
                    name=name, role=role, right=right, digest=digest, created_at=now, expires_at=token.expires_at
                )
            )
            for pool_id in ids:
                connection.execute(insert(schema.token_pool).values(token=name, pool_id=pool_id))
            what = str(role) if right is None else f"{right} on {', '.join(pools)}"
            self._note(connection, "token-added", f"{name}: {what}", actor, About(), changed_fields(None, token))
            return token

    def delete(self, name: str, actor: str) -> None:
        """Delete a token.

        Raises:
            NotFound: there is none of this name.
        """
        own = schema.token.c.name == name
        with self._write() as connection:
            row = connection.execute(select(schema.token).where(own)).mappings().first()
            if row is None:
                raise NotFound(f"there is no token {name}", hint="vgpuctl controller list-tokens", token=name)
            token = _token_of(row, _pools_of(connection, name))
            connection.execute(delete(schema.token).where(own))
            self._note(connection, "token-deleted", name, actor, About(), changed_fields(token, None))


def _pools_of(connection: Connection, token: str | None = None) -> Mapping[str, tuple[str, ...]]:
    """Return the names of the pools of one token, or of each."""
    table = schema.token_pool
    statement = select(table.c.token, schema.pool.c.name).join(schema.pool, schema.pool.c.id == table.c.pool_id)
    if token is not None:
        statement = statement.where(table.c.token == token)
    pools: dict[str, tuple[str, ...]] = {}
    for name, pool in connection.execute(statement.order_by(schema.pool.c.name)):
        pools[name] = (*pools.get(name, ()), pool)
    return pools


def _token_of(row: RowMapping, pools: Mapping[str, tuple[str, ...]]) -> ApiToken:
    role, right = row["role"], row["right"]
    return ApiToken(
        row["name"],
        None if role is None else Role(role),
        row["created_at"],
        row["expires_at"],
        None if right is None else Right(right),
        pools.get(row["name"], ()),
    )
