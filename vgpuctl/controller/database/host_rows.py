# SPDX-License-Identifier: Apache-2.0
"""Hosts, and the leases on them."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Mapping

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from vgpuctl.controller.database import schema
from vgpuctl.controller.database.engine import Database
from vgpuctl.controller.database.restored_rows import read_restored
from vgpuctl.controller.database.rows import (
    CONTROLLER,
    About,
    Changes,
    Rows,
    check_generation,
    columns_of,
    first_generation,
    host_of,
    nothing_called,
    stop_key,
)
from vgpuctl.controller.model import AgentFacts, FleetHost, FleetHostState, HostLease
from vgpuctl.controller.planning.changed_fields import changed_fields
from vgpuctl.controller.planning.restored import RESTORED
from vgpuctl.errors import Exists, NotFound, Refused
from vgpuctl.value import replace

SEEN_SECONDS = 30.0
"""A host that was seen longer ago than this is written at once when it answers, without `store_seen`."""


class HostRows(Rows):
    """The hosts of the fleet."""

    def __init__(self, database: Database, changes: Changes) -> None:
        super().__init__(database, changes)
        self._seen_lock = threading.Lock()
        self._seen: dict[str, float] = {}
        """When hosts answered, by id: what `store_seen` is to write."""

    def list(self) -> tuple[FleetHost, ...]:
        """Return all hosts, by name."""
        with self._database.read() as connection:
            rows = connection.execute(select(schema.host).order_by(schema.host.c.name)).mappings()
            return tuple(map(host_of, rows))

    def find(self, name: str) -> FleetHost:
        """Return a host.

        Raises:
            NotFound: there is none of this name.
        """
        with self._database.read() as connection:
            return _find(connection, name)

    def add(
        self, name: str, address: str, host_key: str | None, labels: Mapping[str, str], facts: AgentFacts, actor: str,
        held: str | None = None,
    ) -> FleetHost:  # fmt: skip
        """Add a host that has answered. `held`: why nothing is changed there yet; else so in a restored database.

        Raises:
            Exists: a host has this name, or this machine is one already.
        """
        with self._write() as connection:
            host = schema.host
            same = connection.execute(
                select(host.c.name).where((host.c.name == name) | (host.c.machine_id == facts.machine_id))
            ).scalar()
            if same is not None:
                text = "there is a host" if same == name else f"this machine is in the fleet as host {same}: not"
                raise Exists(f"{text} {name}", hint=f"vgpuctl controller show-host {same}", host=same)
            if held is None and read_restored(connection).begun_at is not None:
                held = RESTORED
            new = FleetHost(
                id=str(uuid.uuid4()), name=name, address=address, host_key=host_key, labels=dict(labels),
                machine_id=facts.machine_id, boot_id=facts.boot_id, driver=facts.driver,
                agent_version=facts.agent_version, held=held, seen_at=self._database.now(connection),
                generation=first_generation(connection),
            )  # fmt: skip
            changed = {"labels": json.dumps(dict(labels)), "state": new.state.value}
            connection.execute(insert(host).values(**{**columns_of(new), **changed}))
            made = changed_fields(None, new)
            self._note(connection, "host-added", f"{name} at {address}", actor, About(host=name), made)
            return new

    def change(
        self,
        name: str,
        actor: str,
        *,
        state: FleetHostState | None = None,
        moves_live: bool = False,
        labels: Mapping[str, str] | None = None,
        if_generation: int | None = None,
    ) -> FleetHost:
        """Change a host's state or labels. `moves_live`: of a state that is given.

        Raises:
            NotFound, Stale: there is none, or it was changed since.
        """
        with self._write() as connection:
            before = _find(connection, name, lock=True)
            check_generation(f"host {name}", before.generation, if_generation)
            after = before if state is None else replace(before, state=state, moves_live=moves_live)
            after = after if labels is None else replace(after, labels=dict(labels))
            if after == before:
                return before
            self._changes.touch(before.id)
            after = replace(after, generation=before.generation + 1)
            connection.execute(
                update(schema.host)
                .where(schema.host.c.id == before.id)
                .values(
                    state=after.state.value, moves_live=after.moves_live, labels=json.dumps(dict(after.labels)),
                    generation=after.generation,
                )
            )  # fmt: skip
            changed = changed_fields(before, after)
            text = f"{name}: {after.state}{', its desktops move' if after.moves_live else ''}"
            self._note(connection, "host-changed", text, actor, About(host=name), changed)
            return after

    def begin_maintenance(self, name: str, minutes: int | None, actor: str) -> tuple[FleetHost, bool]:
        """Have a host's desktops stopped; return it, and whether something changed.

        `minutes`: so long those with users wait until nobody is logged on; None: as long as it takes.

        Raises:
            NotFound: there is none.
        """
        with self._write() as connection:
            before = _find(connection, name, lock=True)
            stop_at = None if minutes is None else self._database.now(connection) + 60 * minutes
            is_same = before.state is FleetHostState.MAINTENANCE
            if is_same and stop_at is None and _stop_at(connection, before.id) is None:
                return before, False
            self._changes.touch(before.id)
            key = stop_key(before.id)
            connection.execute(delete(schema.meta).where(schema.meta.c.key == key))
            if stop_at is not None:
                connection.execute(insert(schema.meta).values(key=key, value=repr(stop_at)))
            generation = before.generation + 1
            after = replace(before, state=FleetHostState.MAINTENANCE, moves_live=False, generation=generation)
            values = {"state": after.state.value, "moves_live": False, "generation": generation}
            connection.execute(update(schema.host).where(schema.host.c.id == before.id).values(**values))
            when = {None: "when nobody is logged on", 0: "now"}.get(minutes, f"in {minutes} minutes at the latest")
            text, changed = f"{name}: desktops stop {when}", changed_fields(before, after)
            self._note(connection, "host-maintenance", text, actor, About(host=name), changed)
            return after, True

    def stop_at(self, host_id: str) -> float | None:
        """Return when all desktops of a host in maintenance stop, whoever is logged on; None: never."""
        with self._database.read() as connection:
            return _stop_at(connection, host_id)

    def hold(self, host_id: str, reason: str | None, actor: str = CONTROLLER) -> None:
        """Hold a host, so that nothing is changed there, or let it go (None)."""
        with self._write() as connection:
            before = _by_id(connection, host_id)
            if before.held == reason:
                return
            self._changes.touch(host_id)
            connection.execute(update(schema.host).where(schema.host.c.id == host_id).values(held=reason))
            text = f"{before.name} is held: {reason}" if reason else f"{before.name} is no longer held"
            self._note(connection, "host-held" if reason else "host-released", text, actor, About(host=before.name))

    def note_seen(self, host: FleetHost, facts: AgentFacts | None, seen_at: float, host_key: str | None = None) -> None:
        """Note that a host answered, and what it says of itself; of a held one that does not count yet (None).

        `host`: as it was in the database before, at the time `seen_at`. Unless something changed, nothing is written
        now: `store_seen` does that for all hosts together.
        """
        values: dict[str, object] = {"problem": None}
        if facts is not None:
            values |= {**columns_of(facts), "host_key": host.host_key or host_key}
        is_recent = host.seen_at is not None and 0 <= seen_at - host.seen_at < SEEN_SECONDS
        if is_recent and all(getattr(host, name) == value for name, value in values.items()):
            with self._seen_lock:
                self._seen[host.id] = seen_at
            return
        with self._database.write() as connection:
            connection.execute(update(schema.host).where(schema.host.c.id == host.id).values(**values, seen_at=seen_at))

    def store_seen(self) -> None:
        """Store when hosts answered of which nothing else is new, since the last time."""
        with self._seen_lock:
            seen, self._seen = self._seen, {}
        if not seen:
            return
        host = schema.host
        later = (host.c.id == bindparam("host")) & (host.c.seen_at < bindparam("at"))
        rows = [{"host": host_id, "at": at} for host_id, at in sorted(seen.items())]
        with self._database.write() as connection:
            connection.execute(update(host).where(later).values(seen_at=bindparam("at")), rows)

    def note_problem(self, host_id: str, problem: str, *, is_own: bool = True) -> None:
        """Note why a host cannot be reached. Of controllers that do not have it, only the first one says so."""
        with self._database.read() as connection:
            before = _by_id(connection, host_id)
        if before.problem == problem[:1000] or (before.problem is not None and not is_own):
            return
        with self._write() as connection:
            connection.execute(update(schema.host).where(schema.host.c.id == host_id).values(problem=problem[:1000]))
            self._note(connection, "host-problem", f"{before.name}: {problem}", CONTROLLER, About(host=before.name))

    def take_over_machine(self, name: str, facts: AgentFacts, host_key: str | None, actor: str) -> FleetHost:
        """Accept a host as it is now, with its SSH key: an admin has decided so."""
        with self._write() as connection:
            before = _find(connection, name, lock=True)
            self._changes.touch(before.id)
            connection.execute(
                update(schema.host)
                .where(schema.host.c.id == before.id)
                .values(
                    **columns_of(facts), host_key=host_key, held=None, problem=None, generation=before.generation + 1
                )
            )
            after = _find(connection, name)
            text, changed = f"{name}: machine {facts.machine_id}", changed_fields(before, after)
            self._note(connection, "host-accepted", text, actor, About(host=name), changed)
            return after

    def remove(self, name: str, actor: str) -> None:
        """Remove a host that has no desktops.

        Raises:
            NotFound, Refused: there is none, or desktops are on it, or move to it.
        """
        with self._write() as connection:
            host = _find(connection, name, lock=True)
            table = schema.desktop
            is_there = (table.c.host_id == host.id) | (table.c.moving_to == host.id)
            desktops = connection.execute(select(table.c.name).where(is_there).limit(5)).scalars().all()
            if desktops:
                raise Refused(
                    f"{name} has desktops: {', '.join(desktops)}{', ...' if len(desktops) == 5 else ''}",
                    hint=f"vgpuctl controller drain-host {name}",
                    desktops=list(desktops),
                )
            connection.execute(delete(schema.host).where(schema.host.c.id == host.id))
            connection.execute(delete(schema.meta).where(schema.meta.c.key == stop_key(host.id)))
            self._note(connection, "host-removed", name, actor, About(host=name), changed_fields(host, None))

    def take_lease(self, host_id: str, holder: str, seconds: float, above: int = 0) -> HostLease | None:
        """Return the lease on a host: one's own, or one that nobody has any more; None: another has it.

        It lasts for so many seconds; one's own is renewed when half of them are over, so that a look costs no write.
        `above`: its epoch becomes higher than this one.
        """
        lease = schema.host_lease
        with self._database.read() as connection:
            row = connection.execute(select(lease).where(lease.c.host_id == host_id)).mappings().first()
            now = self._database.now(connection)
            own = HostLease(**row) if row is not None and row["holder"] == holder else None
            if own is not None and own.expires_at > now + seconds / 2 and own.epoch > above:
                return own
        with self._database.write() as connection:
            now = self._database.now(connection)
            row = (
                connection.execute(select(lease).where(lease.c.host_id == host_id).with_for_update(key_share=True))
                .mappings()
                .first()
            )
            if row is not None and row["holder"] != holder and row["expires_at"] > now:
                return None
            is_new = row is None or row["holder"] != holder or row["expires_at"] <= now
            epoch = max((0 if row is None else row["epoch"]) + is_new, above + 1)
            new = HostLease(host_id, holder, epoch, now + seconds)
            self._database.insert_or_update(connection, lease, ("host_id",), columns_of(new))
            return new

    def raise_epoch(self, host_id: str, above: int) -> HostLease | None:
        """Return the lease on a host, whoever has it, with an epoch higher than this one; None: nobody has it."""
        lease = schema.host_lease
        with self._database.write() as connection:
            own = select(lease).where(lease.c.host_id == host_id).with_for_update(key_share=True)
            row = connection.execute(own).mappings().first()
            if row is None or row["expires_at"] <= self._database.now(connection):
                return None
            raised = replace(HostLease(**row), epoch=max(row["epoch"], above + 1))
            connection.execute(update(lease).where(lease.c.host_id == host_id).values(epoch=raised.epoch))
            return raised

    def renew_leases(self, holder: str, seconds: float) -> None:
        """Renew the leases of a controller that have not run out, and of which more than a third is over."""
        lease = schema.host_lease
        with self._database.write() as connection:
            now = self._database.now(connection)
            own = (lease.c.holder == holder) & (lease.c.expires_at > now) & (lease.c.expires_at < now + 2 * seconds / 3)
            connection.execute(update(lease).where(own).values(expires_at=now + seconds))

    def drop_lease(self, host_id: str, holder: str) -> None:
        """Let other controllers have a host at once: its lease ends now."""
        lease = schema.host_lease
        with self._database.write() as connection:
            now = self._database.now(connection)
            own = (lease.c.host_id == host_id) & (lease.c.holder == holder) & (lease.c.expires_at > now)
            connection.execute(update(lease).where(own).values(expires_at=now))

    def holders(self) -> dict[str, str]:
        """Return which controller has each host, by the host's id, of those that one has."""
        lease = schema.host_lease
        with self._database.read() as connection:
            held = select(lease.c.host_id, lease.c.holder).where(lease.c.expires_at > self._database.now(connection))
            return {row.host_id: row.holder for row in connection.execute(held)}

    def leases(self) -> dict[str, HostLease]:
        """Return the lease of each host, by the host's id."""
        with self._database.read() as connection:
            rows = connection.execute(select(schema.host_lease)).mappings()
            return {row["host_id"]: HostLease(**row) for row in rows}

    def living_lease(self, host_id: str) -> HostLease | None:
        """Return the lease of a host, whoever has it; None: nobody has it now."""
        lease = schema.host_lease
        with self._database.read() as connection:
            living = (lease.c.host_id == host_id) & (lease.c.expires_at > self._database.now(connection))
            row = connection.execute(select(lease).where(living)).mappings().first()
            return None if row is None else HostLease(**row)

    def find_id(self, host_id: str) -> FleetHost | None:
        """Return a host by its id; None: it was removed."""
        with self._database.read() as connection:
            row = connection.execute(select(schema.host).where(schema.host.c.id == host_id)).mappings().first()
            return None if row is None else host_of(row)

    def desktop_counts(self) -> dict[str, int]:
        """Return how many desktops each host has, by the host's id."""
        column = schema.desktop.c.host_id
        with self._database.read() as connection:
            rows = connection.execute(select(column, func.count()).where(column.is_not(None)).group_by(column))
            return {row[0]: row[1] for row in rows}


def _stop_at(connection: Connection, host_id: str) -> float | None:
    text = connection.execute(select(schema.meta.c.value).where(schema.meta.c.key == stop_key(host_id))).scalar()
    return None if text is None else float(text)


def _find(connection: Connection, name: str, *, lock: bool = False) -> FleetHost:
    statement = select(schema.host).where(schema.host.c.name == name)
    row = connection.execute(statement.with_for_update(key_share=True) if lock else statement).mappings().first()
    if row is None:
        raise nothing_called(connection, schema.host, "host", name)
    return host_of(row)


def _by_id(connection: Connection, host_id: str) -> FleetHost:
    row = connection.execute(select(schema.host).where(schema.host.c.id == host_id)).mappings().first()
    if row is None:
        raise NotFound("the host was removed", hint="vgpuctl controller list-hosts")
    return host_of(row)
