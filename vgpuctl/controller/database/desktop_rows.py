# SPDX-License-Identifier: Apache-2.0
"""Desktops: who has one, where they are, what their hosts report.

Who assigns a desktop locks the user's row first, then the pool's: two requests of one user wait for each other, and so
do two for one pool. Nothing locks them in another order.

Size: each method is one transaction, and all of them are about the same row.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from sqlalchemy import Connection, ScalarSelect, Select, Table, delete, func, insert, select, update

from vgpuctl.controller.database import schema
from vgpuctl.controller.database.quota_rows import lock_person, lock_user_of, refuse_over_quota
from vgpuctl.controller.database.room_rows import count_placed
from vgpuctl.controller.database.rows import (
    CONTROLLER,
    About,
    Rows,
    check_generation,
    desktop_of,
    forget_crashes,
    lock_desktops,
    pool_of,
    report_columns,
    row_of_desktop,
)
from vgpuctl.controller.database.use_rows import follow_use
from vgpuctl.controller.model import Desktop, DesktopReport, FleetHostState, Pool, PoolChanges, PoolKind, PoolState
from vgpuctl.controller.planning import pool_rules
from vgpuctl.controller.planning.back_off import WAITING_CODES, next_try
from vgpuctl.controller.planning.logons import others_logged_on
from vgpuctl.controller.planning.phase import (
    BLOCKING_CODES,
    CRASHES_CODE,
    FAILED_AFTER,
    LOGGED_ON_CODE,
    NO_HOST_CODE,
    SILENT_SECONDS,
    was_seen,
)
from vgpuctl.controller.planning.restarts import RESTART_SECONDS, WITHOUT_RESTART
from vgpuctl.controller.planning.restored import record_of
from vgpuctl.controller.policy import FleetTarget, no_desktop, no_pool
from vgpuctl.errors import Busy, InvalidInput, NoCapacity, Refused
from vgpuctl.value import replace

DAY_SECONDS = 86400.0
MAX_ROWS = 1000
MAX_UNPLACED = 500

PlanPool = Callable[[Pool, tuple[Desktop, ...], float], PoolChanges]
"""What a pool's desktops need, from the pool, its desktops and the time."""


class DesktopRows(Rows):
    """The desktops of the fleet."""

    def list(
        self,
        *,
        pool: str | None = None,
        host: str | None = None,
        user: str | None = None,
        after: str | None = None,
        limit: int = MAX_ROWS,
        pools: Collection[str] | None = None,
    ) -> tuple[Desktop, ...]:
        """Return desktops by name: of a pool, of a host, of a user, after a name; at most `limit`.

        `pools`: only those of these pools.
        """
        table = schema.desktop
        statement = select(table).order_by(table.c.name).limit(limit)
        if pool is not None:
            statement = statement.where(
                table.c.pool_id == select(schema.pool.c.id).where(schema.pool.c.name == pool).scalar_subquery()
            )
        if pools is not None:
            seen = select(schema.pool.c.id).where(schema.pool.c.name.in_(pools))
            statement = statement.where(table.c.pool_id.in_(seen))
        if host is not None:
            statement = statement.where(
                table.c.host_id == select(schema.host.c.id).where(schema.host.c.name == host).scalar_subquery()
            )
        if user is not None:
            statement = statement.where(table.c.user == user)
        return self._read(statement if after is None else statement.where(table.c.name > after))

    def of_pool(self, pool_id: str) -> tuple[Desktop, ...]:
        """Return all desktops of a pool."""
        return self._read(select(schema.desktop).where(schema.desktop.c.pool_id == pool_id))

    def of_host(self, host_id: str) -> tuple[Desktop, ...]:
        """Return all desktops that belong on a host."""
        return self._read(select(schema.desktop).where(schema.desktop.c.host_id == host_id))

    def unplaced(self) -> tuple[Desktop, ...]:
        """Return the desktops that need a host, the oldest first; those with a user before all others.

        Of each pool at most `MAX_UNPLACED`: one that fits nowhere is not in the way of others.
        """
        table = schema.desktop
        order = (table.c.user.is_(None), table.c.created_at, table.c.name)
        number = func.row_number().over(partition_by=table.c.pool_id, order_by=order).label("number")
        waiting = table.c.host_id.is_(None) & table.c.absent.is_(False)
        first = select(table.c.id, number).where(waiting).subquery()
        chosen = select(table).join(first, first.c.id == table.c.id).where(first.c.number <= MAX_UNPLACED)
        return self._read(chosen.order_by(*order))

    def target(self, name: str) -> FleetTarget:
        """Return what a call about a desktop is about.

        Raises:
            NotFound: there is none of this name.
        """
        table = schema.desktop
        own = select(schema.pool.c.name, table.c.user).join(table, table.c.pool_id == schema.pool.c.id)
        with self._database.read() as connection:
            row = connection.execute(own.where(table.c.name == name)).first()
        if row is None:
            raise no_desktop(name)
        return FleetTarget(row[0], row[1], is_desktop=True)

    def macs(self) -> set[str]:
        """Return the MAC addresses of all desktops."""
        with self._database.read() as connection:
            return set(connection.execute(select(schema.desktop.c.mac)).scalars())

    def count(self) -> int:
        """Return how many desktops there are."""
        with self._database.read() as connection:
            return int(connection.execute(select(func.count()).select_from(schema.desktop)).scalar_one())

    def find(self, name: str) -> Desktop:
        """Return a desktop.

        Raises:
            NotFound: there is none of this name.
        """
        with self._database.read() as connection:
            return _find(connection, name)

    def tick(self, pool_id: str, plan: PlanPool) -> PoolChanges:
        """Give a pool what its plan says it needs, in one transaction; return that."""
        with self._database.read() as connection:
            row = connection.execute(select(schema.pool).where(schema.pool.c.id == pool_id)).mappings().first()
            if row is None:
                return PoolChanges()
            rows = connection.execute(_of_pool(pool_id)).mappings()
            if plan(pool_of(row), tuple(map(desktop_of, rows)), self._database.now(connection)).is_empty:
                return PoolChanges()  # a pool that needs nothing costs no write
        with self._write() as connection:
            locked = select(schema.pool).where(schema.pool.c.id == pool_id).with_for_update(key_share=True)
            row = connection.execute(locked).mappings().first()
            if row is None:
                return PoolChanges()
            pool, now = pool_of(row), self._database.now(connection)
            desktops = {one.id: one for one in map(desktop_of, connection.execute(_of_pool(pool_id)).mappings())}
            changes = plan(pool, tuple(desktops.values()), now)
            lock_desktops(connection, (*changes.retire, *changes.release, *changes.move_image))
            self._apply(connection, pool, desktops, changes, now)
            return changes

    def assign(self, pool_name: str, user: str, actor: str, most: int | None = None) -> tuple[Desktop, bool]:
        """Return the user's desktop of a pool, and whether he got it now. `most`: he gets none beyond so many.

        A user who has as many as the pool allows keeps one of them. A floating one on a silent host does not count if
        another is ready; when the host answers again, he loses one of them (`planning.pool_plan`).

        Raises:
            NotFound: there is no such pool. InvalidInput: its desktops have no users.
            Refused: it is paused, or being deleted. NoCapacity: none is ready. QuotaReached: he has all he may have.
        """
        with self._write() as connection:
            lock_person(self._database, connection, user)
            row = connection.execute(
                select(schema.pool).where(schema.pool.c.name == pool_name).with_for_update(key_share=True)
            ).mappings().first()  # fmt: skip
            if row is None:
                raise no_pool(pool_name)
            pool = pool_of(row)
            _check_assign(pool, user)
            now = self._database.now(connection)
            live, silent = _of_user(connection, pool, user, now)
            limit = pool.spec.per_user if most is None else min(pool.spec.per_user, most)
            if len(live) >= limit or (len(live) + len(silent) >= limit and pool.state is not PoolState.ACTIVE):
                return self._open(connection, (*live, *silent)[0]), False
            if pool.state is not PoolState.ACTIVE:
                raise Refused(
                    f"pool {pool.name} is {pool.state}: {pool.reason or 'an admin paused it'}", pool=pool.name
                )
            taken = connection.execute(_takeable(pool.id, now)).mappings().first()
            if taken is None and len(live) + len(silent) >= limit:
                return self._open(connection, (*live, *silent)[0]), False
            if taken is None:
                raise _none_free(connection, pool, now)
            days = pool.spec.lease_days
            refuse_over_quota(connection, user, desktop_of(taken), {one.id for one in silent})
            desktop = replace(
                desktop_of(taken), user=user, generation=taken["generation"] + 1, handed_out=False, assigned_at=now,
                lease_until=None if days is None else now + days * DAY_SECONDS, errors=0, not_before=0.0,
                **WITHOUT_RESTART,
            )  # fmt: skip
            self._set(connection, desktop, **row_of_desktop(desktop))
            follow_use(self._database, connection, desktop_of(taken), desktop)
            for one in silent:
                report = replace(one.report or DesktopReport(exists=False), superseded=True)
                self._set(connection, one, **report_columns(report))
            about = About(pool=pool.name, desktop=desktop.name, user=user)
            self._note(connection, "assigned", f"{desktop.name} to {user}", actor, about)
            return desktop, True

    def release(
        self, name: str, actor: str, user: str | None = None, if_generation: int | None = None
    ) -> tuple[Desktop, bool]:
        """Take a desktop away from its user; return it, and whether it had one. `user`: whose it still must be.

        Raises:
            NotFound: there is none of this name, or it is not his. Stale: its generation is another one.
        """
        with self._write() as connection:
            desktop = _find(connection, name, lock=True, user=user, generation=if_generation)
            if desktop.user is None:
                return desktop, False
            return self._release(connection, desktop, actor), True

    def delete(self, name: str, actor: str, if_generation: int | None = None) -> Desktop:
        """Have a desktop deleted with its disks; the row goes when its host says so.

        Raises:
            NotFound: there is none of this name. Stale: its generation is another one.
        """
        with self._write() as connection:
            desktop = _find(connection, name, lock=True, generation=if_generation)
            if not desktop.absent:
                self._retire(connection, desktop, actor)
            return replace(desktop, absent=True)

    def set_power(
        self, name: str, actor: str, user: str | None = None, if_generation: int | None = None, *, on: bool
    ) -> tuple[Desktop, bool]:
        """Have a desktop started or stopped; return it, and whether that is new. `user`: whose it still must be.

        Raises:
            NotFound: there is none of this name, or it is not his. QuotaReached: its user may have no more that run.
            Busy: it was given to somebody just now. Stale: its generation is another one.
        """
        with self._write() as connection:
            holder = lock_user_of(self._database, connection, name) if on else None
            desktop = _find(connection, name, lock=True, user=user, generation=if_generation)
            waits = desktop.report is not None and desktop.report.code in (CRASHES_CODE, *WAITING_CODES)
            if desktop.power_on is on and not (on and waits):
                return desktop, False
            if on and desktop.user is not None and not desktop.power_on:
                if desktop.user != holder:
                    raise Busy(f"{name} was given to {desktop.user} just now", hint="try again", desktop=name)
                refuse_over_quota(connection, holder, desktop)
            self._set(connection, desktop, power_on=on, not_before=0.0, errors=0, **WITHOUT_RESTART)
            forget_crashes(connection, schema.desktop.c.id == desktop.id)
            words = "should run" if on else "should be off"
            self._note(connection, "power", f"{name} {words}", actor, About(desktop=name, user=desktop.user))
            return replace(desktop, power_on=on), True

    def raise_generation(self, desktop_id: str, generation: int) -> None:
        """Have a row of a restored database follow its VM's record."""
        table = schema.desktop
        with self._write() as connection:
            older = (table.c.id == desktop_id) & (table.c.generation < generation)
            connection.execute(update(table).where(older).values(generation=generation))

    def accept_record(self, name: str, actor: str) -> Desktop:
        """Have a row follow its VM's record, which contradicts it: an admin has decided so.

        Raises:
            NotFound: there is none of this name. Refused: no record contradicts it.
        """
        with self._write() as connection:
            before = _find(connection, name, lock=True)
            record = record_of(before.report)
            if record is None:
                raise Refused(
                    f"the record of {name} on its host does not contradict the database, as far as that is known",
                    hint=f"vgpuctl controller show-desktop {name}",
                    desktop=name,
                )
            user, generation = record
            now = self._database.now(connection)
            desktop = replace(
                before, user=user, generation=generation + (user is None), handed_out=False, errors=0, not_before=0.0,
                assigned_at=None if user is None else now, lease_until=None, absent=False, **WITHOUT_RESTART,
                report=replace(before.report or DesktopReport(True), code=None, error=None, hint=None,
                               record_user=None, record_generation=None),
            )  # fmt: skip
            self._set(connection, desktop, **row_of_desktop(desktop))
            follow_use(self._database, connection, before, desktop)
            text = f"{name} is {user or 'nobody'}'s, as its host says, and not {before.user or 'nobody'}'s"
            self._note(connection, "record-accepted", text, actor, About(desktop=name, user=user))
            return desktop

    def note_off(self, desktop_id: str) -> None:
        """Note that a desktop's user switched it off: it stays off until he opens it."""
        table = schema.desktop
        with self._write() as connection:
            off = update(table).where((table.c.id == desktop_id) & table.c.power_on.is_(True)).values(power_on=False)
            connection.execute(off)

    def place(self, desktop_id: str, host_id: str, profile: str | None, version: int) -> bool:
        """Put a desktop without a host onto one; False: it has one, or the host's room is no longer of this version."""
        table = schema.desktop
        with self._write() as connection:
            waiting = (table.c.id == desktop_id) & table.c.host_id.is_(None) & table.c.absent.is_(False)
            if connection.execute(select(table.c.id).where(waiting).with_for_update(key_share=True)).first() is None:
                return False
            if not count_placed(connection, host_id, version):
                return False
            placed = update(table).where(table.c.id == desktop_id)
            connection.execute(placed.values(host_id=host_id, profile=profile, not_before=0.0))
            self._changes.touch(host_id)
            return True

    def note_unplaced(self, desktops: Iterable[Desktop], reason: str) -> None:
        """Note why no host takes some desktops; nothing is written of those that have this reason already."""
        reason, table = reason[:1000], schema.desktop
        ids: dict[DesktopReport, list[str]] = {}
        for desktop in desktops:
            if desktop.report is None or desktop.report.error != reason:
                report = replace(
                    _unmade(desktop), code=NO_HOST_CODE, error=reason, hint="vgpuctl controller list-hosts"
                )
                ids.setdefault(report, []).append(desktop.id)
        for report, alike in ids.items():
            with self._database.write() as connection:
                waiting = table.c.id.in_(alike) & table.c.host_id.is_(None)
                connection.execute(update(table).where(waiting).values(**report_columns(report)))

    def unplace(self, desktop_id: str) -> None:
        """Let a desktop that no host has yet be placed elsewhere."""
        table = schema.desktop
        with self._write() as connection:
            locked = select(table).where(table.c.id == desktop_id).with_for_update(key_share=True)
            row = connection.execute(locked).mappings().first()
            if row is None or (row["report"] is not None and was_seen(desktop_of(row))):
                return
            free = {"host_id": None, "profile": None, **report_columns(_unmade(desktop_of(row)))}
            connection.execute(update(table).where(table.c.id == desktop_id).values(**free))

    def retire(self, desktop_id: str, reason: str) -> None:
        """Have a desktop without a user deleted where it is; its pool makes another one."""
        with self._write() as connection:
            locked = select(schema.desktop).where(schema.desktop.c.id == desktop_id).with_for_update(key_share=True)
            row = connection.execute(locked).mappings().first()
            if row is not None and row["user"] is None and not row["absent"]:
                self._retire(connection, desktop_of(row), CONTROLLER, reason)

    def report(
        self,
        host_id: str,
        holder: str,
        epoch: int,
        reports: Mapping[str, DesktopReport],
        looked_at: Sequence[Desktop] | None = None,
    ) -> bool:
        """Store what a host says of its desktops; what did not change is not written.

        `looked_at`: the rows that the reports follow; None: as they are now. One whose report was changed since, or
        that is on another host now, gets its report at the next look: an error that was noted meanwhile, or forgotten,
        would be lost.

        A desktop that should be absent, and whose VM is gone, is forgotten. One whose host confirms its user is handed
        out. False: the host belongs to another controller now, and nothing was stored.
        """
        table, lease = schema.desktop, schema.host_lease
        rows = self.of_host(host_id) if looked_at is None else looked_at
        wanted = (one for one in rows if one.id in reports and _differs(one, reports[one.id]))
        changed = sorted(wanted, key=lambda one: one.id)
        if not changed:
            return True
        with self._write() as connection:
            row = (
                connection.execute(select(lease).where(lease.c.host_id == host_id).with_for_update(key_share=True))
                .mappings()
                .first()
            )
            if row is None or (row["holder"], row["epoch"]) != (holder, epoch):
                return False
            for old in changed:
                desktop = connection.execute(
                    select(table).where(table.c.id == old.id).with_for_update(key_share=True)
                ).mappings().first()  # fmt: skip
                if desktop is None:
                    continue
                present = desktop_of(desktop)
                if (present.host_id, present.report) == (host_id, old.report):
                    self._store_report(connection, present, reports[old.id])
            return True

    def note_success(self, desktop_id: str) -> None:
        """Note that an action for a desktop worked, so that its earlier errors do not count any more."""
        table = schema.desktop
        failed = (table.c.id == desktop_id) & (table.c.errors > 0)
        with self._database.read() as connection:
            if connection.execute(select(table.c.id).where(failed)).first() is None:
                return
        with self._write() as connection:
            row = connection.execute(select(table).where(failed).with_for_update(key_share=True)).mappings().first()
            report = None if row is None else desktop_of(row).report
            if report is not None:
                report = replace(report, code=None, error=None, hint=None)
            values = {**report_columns(report), "errors": 0, "not_before": 0.0}
            connection.execute(update(table).where(failed).values(**values))

    def note_password(self, desktop: Desktop, actor: str) -> None:
        """Note in the journal that a desktop's user got a one-time password, without it."""
        with self._write() as connection:
            about = About(desktop=desktop.name, user=desktop.user)
            text = f"{desktop.name}: a one-time password for {desktop.user}"
            self._note(connection, "password-set", text, actor, about)

    def note_opened(self, desktop: Desktop, actor: str) -> None:
        """Note in the journal that somebody else got what opens a user's desktop."""
        with self._write() as connection:
            about = About(desktop=desktop.name, user=desktop.user)
            self._note(connection, "desktop-opened", f"{desktop.name}, which {desktop.user} has", actor, about)

    def note_let_in(self, desktop_id: str, let_in: str | None) -> None:
        """Note whom a desktop's guest lets log on, as its helper confirmed; None: nothing is asked of a new disk."""
        table = schema.desktop
        own = table.c.id == desktop_id
        with self._write() as connection:
            row = connection.execute(select(table).where(own).with_for_update(key_share=True)).mappings().first()
            report = None if row is None else desktop_of(row).report
            if report is not None and report.let_in != let_in:
                values = report_columns(replace(report, let_in=let_in))
                connection.execute(update(table).where(own).values(**values))

    def note_error(self, desktop_id: str, code: str, error: str, hint: str | None, *, counts: bool = True) -> None:
        """Note that an action for a desktop failed; it is tried again later. `counts`: among the pool's errors."""
        table = schema.desktop
        with self._write() as connection:
            row = (
                connection.execute(select(table).where(table.c.id == desktop_id).with_for_update(key_share=True))
                .mappings()
                .first()
            )
            if row is None:
                return
            desktop, now = desktop_of(row), self._database.now(connection)
            report = replace(desktop.report or DesktopReport(exists=False), code=code, error=error[:1000], hint=hint)
            errors = desktop.errors + counts
            values = {**report_columns(report), "errors": errors, "not_before": next_try(max(1, errors), now, code)}
            connection.execute(update(table).where(table.c.id == desktop_id).values(**values))
            if code in WAITING_CODES and desktop.report is not None and desktop.report.code == code:
                return  # it was noted when it began
            kind = "desktop-failed" if counts else "desktop-delayed"
            about = About(desktop=desktop.name, user=desktop.user)
            self._note(connection, kind, f"{desktop.name}: {error}"[:1000], CONTROLLER, about)

    def _store_report(self, connection: Connection, desktop: Desktop, report: DesktopReport) -> None:
        table = schema.desktop
        if desktop.absent and not report.exists:
            self._note(connection, "desktop-deleted", desktop.name, CONTROLLER, About(desktop=desktop.name))
            connection.execute(delete(table).where(table.c.id == desktop.id))
            follow_use(self._database, connection, desktop, None)
            return
        confirmed = _is_confirmed(desktop, report)
        others = set(others_logged_on(desktop.user, report)) - set(others_logged_on(desktop.user, desktop.report))
        stray = report.code == LOGGED_ON_CODE and (desktop.report is None or desktop.report.code != LOGGED_ON_CODE)
        if others or stray:
            text = f"{desktop.name}: {', '.join(sorted(others))} logged on, and it is {desktop.user}'s"
            text = f"{desktop.name}: {report.error}" if stray else text
            about = About(desktop=desktop.name, user=desktop.user)
            self._note(connection, "other-logon", text[:1000], CONTROLLER, about)
        values = {**report_columns(report), "handed_out": confirmed}
        if report.ready and desktop.errors:
            values |= {"errors": 0, "not_before": 0.0}
        connection.execute(update(table).where(table.c.id == desktop.id).values(**values))
        follow_use(self._database, connection, desktop, replace(desktop, report=report))
        if report.code == CRASHES_CODE and (desktop.report is None or desktop.report.code != CRASHES_CODE):
            self._note(
                connection, "desktop-failed", f"{desktop.name}: {report.error}", CONTROLLER, About(desktop=desktop.name)
            )
        if confirmed and not desktop.handed_out:
            about = About(desktop=desktop.name, user=desktop.user)
            self._note(connection, "handed-out", f"{desktop.name} to {desktop.user}", CONTROLLER, about)

    def _apply(
        self, connection: Connection, pool: Pool, desktops: Mapping[str, Desktop], changes: PoolChanges, now: float
    ) -> None:
        table = schema.desktop
        for new in changes.create:
            desktop = Desktop(
                id=str(uuid.uuid4()),
                pool_id=pool.id,
                name=new.name,
                mac=new.mac,
                image_id=pool.image_id,
                created_at=now,
            )
            connection.execute(insert(table).values(**row_of_desktop(desktop)))
        for one in changes.retire:
            self._retire(connection, desktops[one], CONTROLLER)
        for one in changes.release:
            self._release(connection, desktops[one], CONTROLLER)
        if changes.move_image:
            moved = table.c.id.in_(changes.move_image)
            connection.execute(update(table).where(moved).values(image_id=pool.image_id, not_before=0.0))
            for one in changes.move_image:
                self._changes.touch(desktops[one].host_id)
        if changes.create:
            names = ", ".join(new.name for new in changes.create[:5])
            text = f"{pool.name}: {len(changes.create)} more: {names}{', ...' if len(changes.create) > 5 else ''}"
            self._note(connection, "desktops-added", text, CONTROLLER, About(pool=pool.name))
        if changes.pause is not None:
            values = {"state": PoolState.PAUSED.value, "reason": changes.pause, "paused_by_errors": True}
            connection.execute(
                update(schema.pool).where(schema.pool.c.id == pool.id).values(**values, generation=pool.generation + 1)
            )
            self._note(connection, "pool-paused", f"{pool.name}: {changes.pause}", CONTROLLER, About(pool=pool.name))

    def _retire(self, connection: Connection, desktop: Desktop, actor: str, reason: str | None = None) -> None:
        """Mark a desktop absent; one that no host has is forgotten at once."""
        table = schema.desktop
        text = desktop.name if reason is None else f"{desktop.name}: {reason}"
        self._note(connection, "desktop-deleting", text, actor, About(desktop=desktop.name, user=desktop.user))
        if desktop.host_id is None:
            connection.execute(delete(table).where(table.c.id == desktop.id))
            follow_use(self._database, connection, desktop, None)
        else:
            self._set(connection, desktop, absent=True, not_before=0.0, errors=0)

    def _release(self, connection: Connection, desktop: Desktop, actor: str) -> Desktop:
        free = replace(
            desktop, user=None, generation=desktop.generation + 1, handed_out=False, assigned_at=None, lease_until=None,
            power_on=True, errors=0, not_before=0.0, **WITHOUT_RESTART,
        )  # fmt: skip
        self._set(connection, free, **row_of_desktop(free))
        follow_use(self._database, connection, desktop, free)
        about = About(desktop=free.name, user=desktop.user)
        self._note(connection, "released", f"{free.name}, which {desktop.user} had", actor, about)
        if desktop.report is not None and desktop.report.moved:
            self._retire(connection, free, actor, "it was moved here, so no image makes its disk again")
            return replace(free, absent=True)
        return free

    def _open(self, connection: Connection, desktop: Desktop) -> Desktop:
        """Return a user's desktop, which is started if it is off."""
        if not desktop.power_on:
            refuse_over_quota(connection, desktop.user or "", desktop)
            self._set(connection, desktop, power_on=True, not_before=0.0)
        return replace(desktop, power_on=True)

    def _set(self, connection: Connection, desktop: Desktop, **values: object) -> None:
        """Set columns of a desktop's row; its host's loop looks at it soon."""
        connection.execute(update(schema.desktop).where(schema.desktop.c.id == desktop.id).values(**values))
        self._changes.touch(desktop.host_id)

    def _read(self, statement: Select[tuple[object, ...]]) -> tuple[Desktop, ...]:
        with self._database.read() as connection:
            return tuple(map(desktop_of, connection.execute(statement).mappings()))


def _id_of(table: Table, name: str) -> ScalarSelect[object]:
    return select(table.c.id).where(table.c.name == name).scalar_subquery()


def _of_pool(pool_id: str) -> Select[tuple[object, ...]]:
    return select(schema.desktop).where(schema.desktop.c.pool_id == pool_id)


def _of_user(
    connection: Connection, pool: Pool, user: str, now: float
) -> tuple[tuple[Desktop, ...], tuple[Desktop, ...]]:
    """Return a user's desktops of a pool, the oldest first; floating ones of silent hosts by themselves."""
    table, host = schema.desktop, schema.host
    is_own = (table.c.user == user) & table.c.absent.is_(False)
    rows = connection.execute(_of_pool(pool.id).where(is_own).order_by(table.c.assigned_at)).mappings()
    own = tuple(map(desktop_of, rows))
    if pool.spec.kind is not PoolKind.FLOATING or not own:
        return own, ()
    seen = host.c.seen_at >= now - SILENT_SECONDS
    answering = set(connection.execute(select(host.c.id).where(seen)).scalars())
    live = tuple(one for one in own if one.host_id in answering)
    return live, tuple(one for one in own if one not in live)


def _takeable(pool_id: str, now: float) -> Select[tuple[object, ...]]:
    """Return the query for a desktop that a user can get: `is_assignable` says the same of one that was read."""
    table, host = schema.desktop, schema.host
    return (
        select(table)
        .join(host, host.c.id == table.c.host_id)
        .where(
            (table.c.pool_id == pool_id)
            & table.c.user.is_(None)
            & table.c.can_take.is_(True)
            & table.c.absent.is_(False),
            table.c.power_on.is_(True)
            & (table.c.reported_generation == table.c.generation)
            & (table.c.errors < FAILED_AFTER)
            & (
                table.c.restart_at.is_(None)
                | table.c.restart_error.is_not(None)
                | (table.c.restart_at <= now - RESTART_SECONDS)
            ),
            host.c.held.is_(None)
            & (host.c.state != FleetHostState.MAINTENANCE.value)
            & (host.c.seen_at >= now - SILENT_SECONDS),
        )
        .order_by(table.c.created_at, table.c.name)
        .limit(1)
    )


def _check_assign(pool: Pool, user: str) -> None:
    if pool.spec.kind is PoolKind.FIXED:
        raise InvalidInput(
            f"the desktops of pool {pool.name} have no users: it is {pool.spec.kind}",
            hint="vgpuctl controller list-pools shows which are floating or dedicated",
        )
    text = pool_rules.logon_problem(user, pool.spec.logon)
    if text is not None:
        raise InvalidInput(f"{text}, and pool {pool.name} has logon: {pool.spec.logon}", pool=pool.name)


def _none_free(connection: Connection, pool: Pool, now: float) -> NoCapacity:
    """Return the error for a pool without a desktop that a user can get; it counts those there are."""
    rows = [desktop_of(row) for row in connection.execute(_of_pool(pool.id)).mappings()]
    assigned = sum(one.user is not None for one in rows)
    text = f"no desktop of pool {pool.name} is ready: {len(rows)} of {pool.spec.maximum} exist, {assigned} have users"
    return NoCapacity(
        text, hint=f"vgpuctl controller list-desktops --pool {pool.name} shows what the others wait for",
        pool=pool.name, desktops=len(rows), assigned=assigned, maximum=pool.spec.maximum,
    )  # fmt: skip


def _differs(desktop: Desktop, report: DesktopReport) -> bool:
    """Return whether a report says something new; when it was made does not count."""
    old = desktop.report
    if desktop.absent and not report.exists:
        return True
    if old is None or desktop.handed_out is not _is_confirmed(desktop, report):
        return True
    return replace(old, seen_at=report.seen_at) != report


def _is_confirmed(desktop: Desktop, report: DesktopReport) -> bool:
    if desktop.user is None or report.code in BLOCKING_CODES:
        return False  # the host has something else than the database says
    return not report.logon_due and (report.user, report.generation) == (desktop.user, desktop.generation)


def _find(
    connection: Connection, name: str, *, lock: bool = False, user: str | None = None, generation: int | None = None
) -> Desktop:
    statement = select(schema.desktop).where(schema.desktop.c.name == name)
    row = connection.execute(statement.with_for_update(key_share=True) if lock else statement).mappings().first()
    if row is None or user not in (None, row["user"]):
        raise no_desktop(name)
    check_generation(f"desktop {name}", row["generation"], generation)
    return desktop_of(row)


def _unmade(desktop: Desktop) -> DesktopReport:
    """Return the report of a desktop that no host has; one that is moved keeps the files of its disks."""
    if desktop.report is None or not desktop.report.moved:
        return DesktopReport(exists=False)
    return DesktopReport(exists=False, disks=desktop.report.disks, moved=True)
