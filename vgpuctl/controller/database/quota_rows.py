# SPDX-License-Identifier: Apache-2.0
"""How much people may have, and have.

Who gives somebody more locks the person's row, so that two of them wait for each other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import Connection, delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from vgpuctl.controller.database import schema
from vgpuctl.controller.database.engine import Database
from vgpuctl.controller.database.room_rows import room_of
from vgpuctl.controller.database.rows import (
    About,
    Rows,
    check_generation,
    columns_of,
    desktop_of,
    first_generation,
    read_text,
)
from vgpuctl.controller.model import EVERYBODY, GROUP_MARK, Desktop, PoolSpec, Quota, QuotaLimit, QuotaUse
from vgpuctl.controller.planning.changed_fields import changed_fields
from vgpuctl.controller.planning.quotas import gpu_mib_of, limits_of, refuse_more
from vgpuctl.errors import Busy, NotFound, Stale
from vgpuctl.value import replace


class QuotaRows(Rows):
    """The quotas."""

    def list(self) -> tuple[Quota, ...]:
        """Return all quotas, by whom they are for."""
        with self._database.read() as connection:
            rows = connection.execute(select(schema.quota).order_by(schema.quota.c.who)).mappings()
            return tuple(Quota(**row) for row in rows)

    def put(self, quota: Quota, actor: str, if_generation: int | None = None) -> tuple[Quota, bool]:
        """Store a quota instead of a former one; return it, and whether it is another one. Nobody loses what he has.

        Raises:
            Stale: it was changed since its `if_generation` was read; 0: there was none.
        """
        table = schema.quota
        with self._write() as connection:
            own = select(table).where(table.c.who == quota.who).with_for_update(key_share=True)
            row = connection.execute(own).mappings().first()
            before = None if row is None else Quota(**row)
            former = 0 if before is None else before.generation
            check_generation(f"the quota of {quota.who}", former, if_generation)
            new = replace(quota, set_by=actor, generation=former + 1 if former else first_generation(connection))
            if before is not None and replace(before, set_by=actor, generation=new.generation) == new:
                return before, False
            if before is None:
                _insert(connection, new)
            else:
                connection.execute(update(table).where(table.c.who == quota.who).values(**columns_of(new)))
            self._note(connection, "quota-set", quota.who, actor, About(user=quota.who), changed_fields(before, new))
            return new, True

    def delete(self, who: str, actor: str) -> Quota:
        """Delete a quota; return what it was.

        Raises:
            NotFound: there is none.
        """
        table = schema.quota
        with self._write() as connection:
            row = connection.execute(select(table).where(table.c.who == who)).mappings().first()
            if row is None:
                raise NotFound(f"there is no quota of {who}", hint="vgpuctl controller list-quotas", who=who)
            before = Quota(**row)
            connection.execute(delete(table).where(table.c.who == who))
            self._note(connection, "quota-deleted", who, actor, About(user=who), changed_fields(before, None))
            return before

    def of_person(self, person: str) -> tuple[QuotaUse, Mapping[str, QuotaLimit]]:
        """Return how much a person has, and what limits him."""
        with self._database.read() as connection:
            limits = _limits(connection, person)
            return (_used(connection, person) if limits else QuotaUse()), limits


def _insert(connection: Connection, quota: Quota) -> None:
    """Store a quota where there was none a moment ago.

    Raises:
        Stale: another transaction stored one meanwhile.
    """
    try:
        connection.execute(insert(schema.quota).values(**columns_of(quota)))
    except IntegrityError as error:
        text = f"the quota of {quota.who} was set by somebody else just now"
        raise Stale(text, hint="read it again, and decide again") from error


def lock_person(database: Database, connection: Connection, name: str) -> None:
    """Have others wait who would give this person something; one who is not known yet becomes known."""
    database.insert_or_update(connection, schema.person, ("name",), {"name": name})
    connection.execute(select(schema.person).where(schema.person.c.name == name).with_for_update(key_share=True)).all()


def lock_user_of(database: Database, connection: Connection, desktop: str) -> str | None:
    """Lock the user of a desktop, of which the row is not locked yet; return who that is."""
    table = schema.desktop
    user: str | None = connection.execute(select(table.c.user).where(table.c.name == desktop)).scalar()
    if user is not None:
        lock_person(database, connection, user)
    return user


def refuse_over_quota(connection: Connection, person: str, desktop: Desktop, not_counted: Collection[str] = ()) -> None:
    """Refuse that a person, whose row is locked, gets a desktop, or has his own one run.

    `not_counted`: ids of desktops that he loses for it.

    Raises:
        QuotaReached: he may not have more. Busy: its host has not said yet how much it has.
    """
    limits = _limits(connection, person)
    if not limits:
        return
    more = QuotaUse(running=1)
    if desktop.user is None:
        more = QuotaUse(1, 1, _gpu_mib(connection, (desktop,)))
        room = select(schema.host_room.c.host_id).where(schema.host_room.c.host_id == desktop.host_id)
        if "gpu_mib" in limits and not more.gpu_mib and connection.execute(room).first() is None:
            raise Busy(f"the GPU memory of {desktop.name} is not known yet", hint="try again in a minute")
    refuse_more(person, _used(connection, person, not_counted), more, limits)


def _limits(connection: Connection, person: str) -> Mapping[str, QuotaLimit]:
    table, member = schema.quota, schema.membership
    groups = select(GROUP_MARK + member.c.group_name).where(member.c.person == person)
    own = or_(table.c.who.in_((person, EVERYBODY)), table.c.who.in_(groups))
    return limits_of((Quota(**row) for row in connection.execute(select(table).where(own)).mappings()), person)


def _used(connection: Connection, person: str, not_counted: Collection[str] = ()) -> QuotaUse:
    table = schema.desktop
    own = select(table).where((table.c.user == person) & table.c.absent.is_(False)).order_by(table.c.id)
    rows = (desktop_of(row) for row in connection.execute(own).mappings().all())
    counted = tuple(
        one for one in rows if one.id not in not_counted and not (one.report is not None and one.report.superseded)
    )
    return QuotaUse(len(counted), sum(one.power_on for one in counted), _gpu_mib(connection, counted))


def _gpu_mib(connection: Connection, desktops: tuple[Desktop, ...]) -> int:
    """Return the GPU memory of desktops together."""
    pools, rooms = {one.pool_id for one in desktops}, {one.host_id for one in desktops if one.host_id is not None}
    pool, room = schema.pool, schema.host_room
    specs = {one.id: one.spec for one in connection.execute(select(pool.c.id, pool.c.spec).where(pool.c.id.in_(pools)))}
    wanted = select(room.c.host_id, room.c.room).where(room.c.host_id.in_(rooms))
    texts = {one.host_id: one.room for one in connection.execute(wanted)}
    return sum(
        gpu_mib_of(
            one, read_text(PoolSpec, specs[one.pool_id]), room_of(texts[one.host_id]) if one.host_id in texts else None
        )
        for one in desktops
    )
