# SPDX-License-Identifier: Apache-2.0
"""Personal tokens: who has the secret of one is its person, with what that person may do then.

The database has only digests of the secrets.
"""

from __future__ import annotations

import hmac

from sqlalchemy import RowMapping, delete, func, insert, select

from vgpuctl.controller.database import schema
from vgpuctl.controller.database.entitlement_rows import read_caller
from vgpuctl.controller.database.rows import About, Rows
from vgpuctl.controller.model import ApiToken, FleetCaller, Realm
from vgpuctl.controller.planning.changed_fields import changed_fields
from vgpuctl.errors import Exists, NotAllowed, NotFound, Refused
from vgpuctl.value import replace

DAY_SECONDS = 86400.0
MOST_TOKENS = 5
"""So many a person has at once."""
DIRECTORY_DAYS = 7
"""So long after a sign-in the tokens of somebody work whose groups a directory says: they are those of that sign-in."""


class PersonalTokenRows(Rows):
    """The personal tokens."""

    def list(self, person: str | None = None) -> tuple[ApiToken, ...]:
        """Return all tokens, or those of a person, by person and name."""
        table = schema.personal_token
        statement = select(table).order_by(table.c.person, table.c.name)
        with self._database.read() as connection:
            rows = connection.execute(statement if person is None else statement.where(table.c.person == person))
            return tuple(map(_token_of, rows.mappings()))

    def caller(self, digest: str) -> FleetCaller | None:
        """Return the person whose token's secret has this digest, with what he may do now.

        None: there is none, it has expired, or he is disabled.

        Raises:
            NotAllowed: a directory says what groups he is in, and he signed in too long ago.
        """
        table = schema.personal_token
        with self._database.read() as connection:
            now = self._database.now(connection)
            row = connection.execute(select(table).where(table.c.digest == digest)).mappings().first()
            if row is None or not hmac.compare_digest(row["digest"], digest) or row["expires_at"] <= now:
                return None
            own = select(schema.person).where(schema.person.c.name == row["person"])
            person = connection.execute(own).mappings().one()
            caller = read_caller(connection, row["person"])
        if caller is None:
            return None
        is_of_directory = person["realm"] not in (None, Realm.LOCAL.value)
        if is_of_directory and now - (person["signed_in_at"] or 0.0) >= DIRECTORY_DAYS * DAY_SECONDS:
            raise NotAllowed(
                f"{caller.name} has not signed in for {DIRECTORY_DAYS} days, and a token works no longer without that",
                hint="sign in on the controller's page; then this token works again",
                rule="sign-in",
            )
        return replace(caller, token=row["name"])

    def add(self, person: str, name: str, digest: str, days: int, actor: str) -> ApiToken:
        """Add a token of a person; those of his that have expired are deleted.

        Raises:
            Exists: he has one of this name. Refused: he has as many as anybody.
        """
        table = schema.personal_token
        with self._write() as connection:
            locked = select(schema.person.c.name).where(schema.person.c.name == person)
            connection.execute(locked.with_for_update(key_share=True)).one()
            now, own = self._database.now(connection), table.c.person == person
            connection.execute(delete(table).where(own & (table.c.expires_at <= now)))
            if connection.execute(select(table.c.name).where(own & (table.c.name == name))).first() is not None:
                raise Exists(f"you have a token {name} already", hint="delete it, or take another name", token=name)
            count = connection.execute(select(func.count()).select_from(table).where(own)).scalar_one()
            if count >= MOST_TOKENS:
                raise Refused(f"you have {count} tokens, and nobody has more", hint="delete one first")
            token = ApiToken(name, None, now, now + days * DAY_SECONDS, person=person)
            row = {"person": person, "name": name, "digest": digest, "created_at": now, "expires_at": token.expires_at}
            connection.execute(insert(table).values(**row))
            about, changed = About(user=person), changed_fields(None, token)
            self._note(connection, "token-added", f"{name} of {person}, for {days} days", actor, about, changed)
            return token

    def delete(self, person: str, name: str, actor: str) -> ApiToken:
        """Delete a token of a person; return what it was.

        Raises:
            NotFound: he has none of this name.
        """
        table = schema.personal_token
        own = (table.c.person == person) & (table.c.name == name)
        with self._write() as connection:
            row = connection.execute(select(table).where(own)).mappings().first()
            if row is None:
                raise NotFound(f"{person} has no token {name}", hint="vgpuctl controller list-tokens", token=name)
            token = _token_of(row)
            connection.execute(delete(table).where(own))
            about, changed = About(user=person), changed_fields(token, None)
            self._note(connection, "token-deleted", f"{name} of {person}", actor, about, changed)
            return token


def _token_of(row: RowMapping) -> ApiToken:
    return ApiToken(row["name"], None, row["created_at"], row["expires_at"], person=row["person"])
