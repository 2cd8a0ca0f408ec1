# SPDX-License-Identifier: Apache-2.0
"""Who may what: the rights of people and groups on pools, and their roles in the fleet."""

from __future__ import annotations

import shlex

from sqlalchemy import Connection, RowMapping, delete, func, or_, select

from vgpuctl.controller.database import schema
from vgpuctl.controller.database.rows import About, Rows, pool_ids
from vgpuctl.controller.model import (
    EVERYBODY,
    GROUP_MARK,
    CallerKind,
    Entitlement,
    FieldChange,
    FleetCaller,
    Right,
    Role,
)
from vgpuctl.controller.policy import greatest, greatest_role, only_admins
from vgpuctl.errors import NotFound, Refused


class EntitlementRows(Rows):
    """Who may what."""

    def count_members(self, who: str) -> int:
        """Return how many people an entitlement is for; of a group those who signed in, or whom an admin put in."""
        own = schema.membership.c.group_name == who.removeprefix(GROUP_MARK)
        if not who.startswith(GROUP_MARK):
            own = schema.person.c.name == who
        with self._database.read() as connection:
            return int(connection.execute(select(func.count()).where(own)).scalar_one())

    def list(self, pool: str | None = None) -> tuple[Entitlement, ...]:
        """Return all entitlements, those in the fleet first; or those on a pool.

        Raises:
            NotFound: there is no such pool.
        """
        table = schema.entitlement
        names = select(table, schema.pool.c.name.label("pool")).outerjoin(
            schema.pool, schema.pool.c.id == table.c.pool_id
        )
        with self._database.read() as connection:
            if pool is not None:
                names = names.where(table.c.pool_id == pool_ids(connection, (pool,))[0])
            rows = connection.execute(names).mappings().all()
        rights = (_entitlement_of(row) for row in rows)
        return tuple(sorted(rights, key=lambda one: (one.pool or "", one.who)))

    def put(self, entitlement: Entitlement, actor: str, *, may_manage: bool = True) -> bool:
        """Give somebody a right on a pool, or a role in the fleet, instead of his former one; return whether it is new.

        `may_manage`: whether the actor may take away that somebody manages the pool.

        Raises:
            NotFound: there is no such pool. NotAllowed: he may not.
        """
        table, who = schema.entitlement, entitlement.who
        with self._write() as connection:
            scope, pool_id = _scope(connection, entitlement.pool)
            own = (table.c.who == who) & (table.c.scope == scope)
            before = connection.execute(select(table.c.right).where(own)).scalar()
            if before == entitlement.right.value:
                return False
            if before == Right.MANAGE and not may_manage:
                raise only_admins(entitlement.pool)
            row = {"who": who, "scope": scope, "pool_id": pool_id, "right": entitlement.right.value}
            self._database.insert_or_update(connection, table, ("who", "scope"), row)
            text = f"{who}: {entitlement.right}{f', before {before}' if before else ''}"
            changed = (FieldChange("right", before, entitlement.right.value),)
            self._note(connection, "entitled", text, actor, About(pool=entitlement.pool, user=who), changed)
            return True

    def delete(
        self, who: str, pool: str | None, actor: str, *, may_manage: bool = True, right: str | None = None
    ) -> Entitlement:
        """Take somebody's right on a pool, or his role in the fleet; return what it was.

        `may_manage`: as of `put`. `right`: what it must be; None: whatever it is.

        Raises:
            NotFound: there is no such pool, or he has none. NotAllowed: as of `put`. Refused: it is another right.
        """
        table = schema.entitlement
        with self._write() as connection:
            scope, _ = _scope(connection, pool)
            own = (table.c.who == who) & (table.c.scope == scope)
            before = connection.execute(select(table.c.right).where(own)).scalar()
            if before is None:
                where = "in the fleet" if pool is None else f"on pool {pool}"
                raise NotFound(f"{who} has no right of his own {where}", hint="vgpuctl controller list-entitlements")
            if not may_manage and (pool is None or before == Right.MANAGE):
                raise only_admins(pool)
            if right not in (None, before):
                where = "" if pool is None else f" --pool {shlex.quote(pool)}"
                raise Refused(
                    f"{who} has {before} {'in the fleet' if pool is None else f'on pool {pool}'}, not {right}",
                    hint=f"to take that away: vgpuctl controller revoke {shlex.quote(who)} {before}{where}",
                )
            connection.execute(delete(table).where(own))
            changed = (FieldChange("right", before, None),)
            self._note(
                connection, "entitlement-revoked", f"{who}: {before}", actor, About(pool=pool, user=who), changed
            )
            return Entitlement(who, Role(before) if pool is None else Right(before), pool)


def read_caller(connection: Connection, name: str) -> FleetCaller | None:
    """Return a person with all that he may do: by himself, by his groups, and as everybody; None: he is disabled."""
    person = connection.execute(select(schema.person).where(schema.person.c.name == name)).mappings().first()
    if person is None or person["disabled"]:
        return None
    table, member = schema.entitlement, schema.membership
    groups = select(GROUP_MARK + member.c.group_name).where(member.c.person == name)
    own = or_(table.c.who == name, table.c.who == EVERYBODY, table.c.who.in_(groups))
    names = select(table.c.right, schema.pool.c.name).outerjoin(schema.pool, schema.pool.c.id == table.c.pool_id)
    role: Role | None = None
    rights: dict[str, Right] = {}
    for right, pool in connection.execute(names.where(own)):
        if pool is None:
            role = greatest_role(role, Role(right))
        else:
            rights[pool] = greatest(rights, pool, Right(right))
    return FleetCaller(name, role, CallerKind.PERSON, rights)


def _scope(connection: Connection, pool: str | None) -> tuple[str, str | None]:
    if pool is None:
        return schema.FLEET, None
    (pool_id,) = pool_ids(connection, (pool,))
    return pool_id, pool_id


def _entitlement_of(row: RowMapping) -> Entitlement:
    right = Role(row["right"]) if row["pool"] is None else Right(row["right"])
    return Entitlement(row["who"], right, row["pool"])
