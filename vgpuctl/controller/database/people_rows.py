# SPDX-License-Identifier: Apache-2.0
"""People: their groups, what they may do, and their sessions.

Who only has a desktop is a person, too: he has no realm, and cannot sign in until he does so for the first time, or an
admin gives him a password.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, RowMapping, delete, func, insert, select, update

from vgpuctl.controller.database import schema
from vgpuctl.controller.database.entitlement_rows import read_caller
from vgpuctl.controller.database.place_rows import note_place
from vgpuctl.controller.database.rows import About, Rows, check_generation
from vgpuctl.controller.model import (
    CallerKind,
    FleetCaller,
    Person,
    Realm,
    WebSession,
)
from vgpuctl.controller.planning.changed_fields import changed_fields
from vgpuctl.errors import Exists, NotAllowed, NotFound
from vgpuctl.value import replace

SEEN_SECONDS = 60.0
"""So often a session's last use is written."""


class PeopleRows(Rows):
    """The people."""

    def list(self, *, after: str | None = None, limit: int = 1000) -> tuple[Person, ...]:
        """Return people by name: at most so many, those after a name."""
        table = schema.person
        statement = select(table).order_by(table.c.name).limit(limit)
        if after is not None:
            statement = statement.where(table.c.name > after)
        with self._database.read() as connection:
            rows = connection.execute(statement).mappings().all()
            groups = _groups_of(connection, [row["name"] for row in rows])
            return tuple(_person_of(row, groups.get(row["name"], ())) for row in rows)

    def find(self, name: str) -> Person:
        """Return one person.

        Raises:
            NotFound: there is none of this name.
        """
        with self._database.read() as connection:
            return _find(connection, name)

    def password(self, name: str) -> str | None:
        """Return the hash of a local person's password; None: he has none, or may not sign in."""
        table = schema.person
        with self._database.read() as connection:
            local = (table.c.name == name) & (table.c.realm == Realm.LOCAL.value) & table.c.disabled.is_(False)
            return connection.execute(select(table.c.password).where(local)).scalar()

    def name_of(self, account: str) -> str | None:
        """Return the person of an account, which has small letters; None: there is nobody."""
        name = schema.person.c.name
        with self._database.read() as connection:
            person = connection.execute(select(name).where(func.lower(name) == account).order_by(name)).scalar()
        return None if person is None else str(person)

    def put(
        self,
        name: str,
        actor: str,
        *,
        groups: Iterable[str] | None = None,
        disabled: bool | None = None,
        realm: Realm | None = None,
        if_generation: int | None = None,
    ) -> tuple[Person, bool]:
        """Make a person, or change one; return him, and whether anything is new. `realm`: a new one is local without.

        The groups of people of a directory are replaced at their next log-in. Who is disabled, or gets another realm,
        is signed out at once.

        Raises:
            Stale: he was changed since his `if_generation` was read.
        """
        with self._write() as connection:
            before = _lock(connection, name)
            if before is not None:
                check_generation(f"the person {name}", before.generation, if_generation)
            person = before or Person(name, Realm.LOCAL)
            after = replace(
                person,
                realm=realm or person.realm or Realm.LOCAL,
                has_password=person.has_password and realm in (None, Realm.LOCAL),
                groups=person.groups if groups is None else tuple(sorted(set(groups))),
                disabled=person.disabled if disabled is None else disabled,
            )
            if after == before:
                return after, False
            after = replace(after, generation=after.generation + (before is not None))
            values = {"realm": after.realm, "disabled": after.disabled, "generation": after.generation}
            values |= {} if after.has_password else {"password": None}
            self._database.insert_or_update(connection, schema.person, ("name",), {"name": name, **values})
            _set_groups(connection, name, after.groups)
            if after.disabled or after.realm is not person.realm:
                _end_sessions(connection, name)
            if after.realm is not person.realm:  # who signs in elsewhere by this name may be somebody else
                connection.execute(delete(schema.personal_token).where(schema.personal_token.c.person == name))
            text = f"{name}: {', '.join(after.groups) or 'no groups'}{', disabled' if after.disabled else ''}"
            kind, changed = "person-changed" if before else "person-added", changed_fields(before, after)
            self._note(connection, kind, text, actor, About(user=name), changed)
            return after, True

    def set_password(self, name: str, digest: str, actor: str, *, session: str | None = None) -> Person:
        """Give a local person a password, of which the database has a hash; he is signed out everywhere.

        `session`: the digest of the one in which he does that himself; it goes on.

        Raises:
            NotFound: there is none of this name. NotAllowed: his password is another server's, or his session ended,
            as when an admin has given him another password meanwhile.
        """
        with self._write() as connection:
            person = _lock(connection, name)
            if person is None:
                raise _no_person(name)
            if person.realm not in (None, Realm.LOCAL):
                raise NotAllowed(
                    f"{name} signs in by {person.realm}: the controller has no password of his", person=name
                )
            table = schema.web_session
            own = (table.c.digest == session) & (table.c.person == name)
            if session is not None and connection.execute(select(table.c.person).where(own)).first() is None:
                raise NotAllowed("your session has ended", hint="sign in again", person=name)
            generation = person.generation + 1
            values = {"password": digest, "realm": Realm.LOCAL, "generation": generation}
            connection.execute(update(schema.person).where(schema.person.c.name == name).values(**values))
            _end_sessions(connection, name, but=session)
            self._note(connection, "password-set", f"a new password of {name}", actor, About(user=name))
            return replace(person, realm=Realm.LOCAL, has_password=True, generation=generation)

    def rehash(self, name: str, before: str, digest: str) -> None:
        """Store a stronger hash of the same password, unless it was changed meanwhile."""
        table = schema.person
        with self._database.write() as connection:
            same = (table.c.name == name) & (table.c.password == before)
            connection.execute(update(table).where(same).values(password=digest))

    def delete(self, name: str, actor: str) -> Person:
        """Delete a person with what he may do; who has a desktop keeps it, and must give it back first.

        Raises:
            NotFound: there is none of this name. Exists: he has desktops.
        """
        with self._write() as connection:
            person = _lock(connection, name)
            if person is None:
                raise _no_person(name)
            own = select(schema.desktop.c.name).where(schema.desktop.c.user == name).order_by(schema.desktop.c.name)
            desktops = tuple(connection.execute(own).scalars())
            if desktops:
                raise Exists(
                    f"{name} has {', '.join(desktops[:10])}",
                    hint=f"vgpuctl controller release {desktops[0]}; to keep him out meanwhile: "
                    f"vgpuctl controller ensure-person {name} --disabled",
                    desktops=desktops,
                )
            self._delete_rights(connection, name, actor)
            connection.execute(delete(schema.person).where(schema.person.c.name == name))
            self._note(connection, "person-deleted", name, actor, About(user=name), changed_fields(person, None))
            return person

    def _delete_rights(self, connection: Connection, name: str, actor: str) -> None:
        """Delete what a person may do and have, each with an entry of the journal."""
        about = About(user=name)
        for table, kind in ((schema.entitlement, "entitlement-revoked"), (schema.quota, "quota-deleted")):
            for row in connection.execute(select(table).where(table.c.who == name)).mappings().all():
                values = {
                    key: value for key, value in row.items() if value is not None and key not in ("who", "set_by")
                }
                text = ", ".join(f"{key} {value}" for key, value in values.items())
                self._note(connection, kind, f"{name}, who is deleted: {text}", actor, about)
            connection.execute(delete(table).where(table.c.who == name))

    def sign_in(
        self, name: str, realm: Realm, digest: str, seconds: float, address: str,
        *, groups: Iterable[str] | None = None, shown: str | None = None, account: str | None = None,
    ) -> WebSession:  # fmt: skip
        """Begin a session of somebody whose password was checked. `groups`: of his directory, they replace his others.

        `account`: his name as tries at it are counted. The journal gets one entry a day of each place.

        Raises:
            NotAllowed: he is disabled, or a person of this name signs in elsewhere.
        """
        with self._write() as connection:
            before = _lock(connection, name)
            if before is not None and before.disabled:
                raise NotAllowed(f"the account {name} is disabled", hint="ask an admin of the fleet", person=name)
            if before is not None and before.realm not in (None, realm):
                raise NotAllowed(
                    f"{name} is an account of {before.realm}, and this is {realm}", hint="ask an admin of the fleet",
                    person=name,
                )  # fmt: skip
            now = self._database.now(connection)
            values = {"name": name, "realm": realm, "signed_in_at": now}
            values |= {} if shown is None else {"shown": shown}
            self._database.insert_or_update(connection, schema.person, ("name",), values)
            if groups is not None:
                _set_groups(connection, name, groups)
            session = WebSession(name, now, now, now + seconds, address)
            row = {"digest": digest, "person": name, "created_at": now, "seen_at": now}
            connection.execute(insert(schema.web_session).values(**row, expires_at=now + seconds, address=address))
            connection.execute(delete(schema.web_session).where(schema.web_session.c.expires_at <= now))
            if note_place(self._database, connection, name, account or name.lower(), address):
                with self._changes.made_by(FleetCaller(name, None, CallerKind.PERSON, address=address)):
                    self._note(connection, "signed-in", f"{name} from {address}", name, About(user=name))
            return session

    def realm(self, name: str) -> Realm | None:
        """Return who checks somebody's password; None: nobody yet."""
        with self._database.read() as connection:
            text = connection.execute(select(schema.person.c.realm).where(schema.person.c.name == name)).scalar()
        return None if text is None else Realm(text)

    def sign_out(self, digest: str) -> None:
        """End a session, if there is one."""
        table = schema.web_session
        with self._write() as connection:
            connection.execute(delete(table).where(table.c.digest == digest))

    def session(self, digest: str, idle_seconds: float, *, touches: bool = True) -> FleetCaller | None:
        """Return whose session this is, with what he may do now; None: nobody's, or it is over.

        `idle_seconds`: a session that was not used for so long is over. `touches`: this is a use.
        """
        table = schema.web_session
        with self._database.read() as connection:
            now = self._database.now(connection)
            row = connection.execute(select(table).where(table.c.digest == digest)).mappings().first()
            if row is None or row["expires_at"] <= now or row["seen_at"] + idle_seconds <= now:
                return None
            caller = read_caller(connection, row["person"])
        if touches and caller is not None and now >= row["seen_at"] + SEEN_SECONDS:
            with self._database.write() as connection:
                connection.execute(update(table).where(table.c.digest == digest).values(seen_at=now))
        return caller


def _lock(connection: Connection, name: str) -> Person | None:
    table = schema.person
    row = (
        connection.execute(select(table).where(table.c.name == name).with_for_update(key_share=True)).mappings().first()
    )
    return None if row is None else _person_of(row, _groups_of(connection, [name]).get(name, ()))


def _find(connection: Connection, name: str) -> Person:
    row = connection.execute(select(schema.person).where(schema.person.c.name == name)).mappings().first()
    if row is None:
        raise _no_person(name)
    return _person_of(row, _groups_of(connection, [name]).get(name, ()))


def _no_person(name: str) -> NotFound:
    return NotFound(f"there is no person {name}", hint="vgpuctl controller list-people", person=name)


def _groups_of(connection: Connection, names: list[str]) -> dict[str, tuple[str, ...]]:
    table = schema.membership
    statement = select(table).where(table.c.person.in_(names)).order_by(table.c.group_name)
    groups: dict[str, tuple[str, ...]] = {}
    for row in connection.execute(statement):
        groups[row.person] = (*groups.get(row.person, ()), row.group_name)
    return groups


def _set_groups(connection: Connection, name: str, groups: Iterable[str]) -> None:
    """Replace the groups of a person; those that stay are not written."""
    table, wanted = schema.membership, set(groups)
    present = set(_groups_of(connection, [name]).get(name, ()))
    if present - wanted:
        gone = (table.c.person == name) & table.c.group_name.in_(sorted(present - wanted))
        connection.execute(delete(table).where(gone))
    if wanted - present:
        connection.execute(insert(table), [{"person": name, "group_name": one} for one in sorted(wanted - present)])


def _end_sessions(connection: Connection, name: str, but: str | None = None) -> None:
    table = schema.web_session
    statement = delete(table).where(table.c.person == name)
    connection.execute(statement if but is None else statement.where(table.c.digest != but))


def _person_of(row: RowMapping, groups: tuple[str, ...]) -> Person:
    realm = row["realm"]
    return Person(
        row["name"],
        None if realm is None else Realm(realm),
        groups,
        row["disabled"],
        row["password"] is not None,
        row["shown"],
        row["signed_in_at"],
        row["generation"],
    )
