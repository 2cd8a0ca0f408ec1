# SPDX-License-Identifier: Apache-2.0
"""The calls about people: who they are, who may what, API tokens; `FleetService` has them with all other calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vgpuctl.config import rules
from vgpuctl.controller.model import (
    EVERYBODY,
    GROUP_MARK,
    CallerKind,
    Entitlement,
    FleetCaller,
    Person,
    Realm,
    Right,
    Role,
)
from vgpuctl.controller.my_tokens import refuse_token, token_result
from vgpuctl.controller.planning import pool_rules
from vgpuctl.controller.planning.quotas import LIMITS
from vgpuctl.controller.policy import has_right, has_role, only_admins
from vgpuctl.controller.times import time_text
from vgpuctl.errors import InvalidInput
from vgpuctl.model.outcome import Outcome, QueryResult
from vgpuctl.model.results.people import ApiTokenResult, EntitlementResult, LimitResult, MyselfResult, PersonResult
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.controller.database.store import Store

DAY_SECONDS = 86400.0
MAX_GROUPS, MAX_GROUP_CHARACTERS = 2000, 200
_GROUP = re.compile(r"[^\s@].*")


class PeopleCalls:
    """The calls. `FleetService` says which store they are about."""

    _store: Store

    def show_myself(self, caller: FleetCaller) -> QueryResult[MyselfResult]:
        """Return who asks, and what he may do."""
        role = None if caller.role is None else str(caller.role)
        rights = {pool: str(right) for pool, right in sorted(caller.rights.items())}
        is_person = caller.kind is CallerKind.PERSON
        limits = self._limits(caller.name) if is_person else ()
        own_password = is_person and self._store.people.realm(caller.name) is Realm.LOCAL
        return QueryResult(MyselfResult(caller.name, str(caller.kind), role, rights, limits, own_password))

    def list_people(
        self, caller: FleetCaller, after: str | None = None, limit: int = 1000
    ) -> QueryResult[tuple[PersonResult, ...]]:
        """Return people by name: at most `limit`, those `after` a name."""
        if not 1 <= limit <= 1000:
            raise InvalidInput(f"limit: {limit} is not a number from 1 to 1000")
        return QueryResult(tuple(map(_person_result, self._store.people.list(after=after, limit=limit))))

    def show_person(self, caller: FleetCaller, name: str) -> QueryResult[PersonResult]:
        """Return one person, with what he may."""
        result = _person_result(self._store.people.find(name))
        mine = {name, EVERYBODY, *(f"{GROUP_MARK}{group}" for group in result.groups)}
        rights = tuple(one for one in self.list_entitlements(caller).data if one.who in mine)
        return QueryResult(replace(result, limits=self._limits(name), rights=rights))

    def _limits(self, person: str) -> tuple[LimitResult, ...]:
        use, limits = self._store.quotas.of_person(person)
        shown = ((name, limits[name]) for name in LIMITS if name in limits)
        return tuple(LimitResult(name, getattr(use, name), one.most, one.quota.who) for name, one in shown)

    def ensure_person(
        self,
        caller: FleetCaller,
        name: str,
        groups: Sequence[str] | None = None,
        disabled: bool | None = None,
        realm: str | None = None,
        if_generation: int | None = None,
    ) -> Outcome[PersonResult]:
        """Make a person, or change one; what is not given stays. Who is disabled is signed out, and keeps desktops.

        `groups`: all of them; those of people of a directory are replaced when they sign in. `realm`: local, oidc or
        ldap.
        """
        _check_person(name)
        checked = None if groups is None else _check_groups(groups)
        kind = None if realm is None else Realm(_one_of("realm", realm, tuple(map(str, Realm))))
        person, changed = self._store.people.put(
            name, caller.name, groups=checked, disabled=disabled, realm=kind, if_generation=if_generation
        )
        return Outcome(changed, _person_result(person))

    def set_password(self, caller: FleetCaller, name: str, password: str | None = None) -> Outcome[PersonResult]:
        """Give a local person a new password: this one, or one that is made and shown this once; he is signed out."""
        from vgpuctl.controller.sessions import check_password, hash_password
        from vgpuctl.model.guest_logon import new_password

        refuse_token(caller)
        given = check_password(name, password) if password is not None else new_password()
        person = self._store.people.set_password(name, hash_password(given), caller.name)
        enable = f"{name} is disabled, and cannot sign in: vgpuctl controller ensure-person {name} --enabled"
        result = replace(_person_result(person), password=None if password is not None else given)
        return Outcome(True, result, warnings=(enable,) if person.disabled else ())

    def delete_person(self, caller: FleetCaller, name: str) -> Outcome[PersonResult]:
        """Delete a person who has no desktop, with all that he may do."""
        person = self._store.people.delete(name, caller.name)
        again = f"signing in by {person.realm} makes {name} again: vgpuctl controller ensure-person {name} --disabled"
        is_elsewhere = person.realm not in (None, Realm.LOCAL)
        return Outcome(True, _person_result(person), warnings=(again,) if is_elsewhere else ())

    def list_entitlements(
        self, caller: FleetCaller, pool: str | None = None
    ) -> QueryResult[tuple[EntitlementResult, ...]]:
        """Return who may what: on one pool, or everywhere."""
        seen = (
            one
            for one in self._store.entitlements.list(pool)
            if has_role(caller, Role.ADMIN) or (one.pool is not None and has_right(caller, Right.MANAGE, one.pool))
        )
        return QueryResult(tuple(EntitlementResult(one.who, str(one.right), one.pool) for one in seen))

    def entitle(self, caller: FleetCaller, who: str, right: str, pool: str | None = None) -> Outcome[EntitlementResult]:
        """Let a person, `@GROUP` or everybody use, operate or manage a pool; or give a role in the fleet."""
        kinds, others = (Role, Right) if pool is None else (Right, Role)
        if right in tuple(map(str, others)):
            where = "a right on a pool: add --pool POOL" if pool is None else "a role in the fleet: leave out the pool"
            raise InvalidInput(f"right: {right} is {where}")
        text = _one_of("right", right, tuple(map(str, kinds)))
        given: Role | Right = Role(text) if pool is None else Right(text)
        is_admin = has_role(caller, Role.ADMIN)
        self._refuse_of_managers(caller, pool, given)
        entitlement = Entitlement(check_who(who), given, pool)
        changed = self._store.entitlements.put(entitlement, caller.name, may_manage=is_admin)
        people = self._store.entitlements.count_members(who) if is_admin and who != EVERYBODY else None
        return Outcome(changed, EntitlementResult(who, str(given), pool, people), warnings=nobody_yet(who, people))

    def revoke(
        self, caller: FleetCaller, who: str, pool: str | None = None, right: str | None = None
    ) -> Outcome[EntitlementResult]:
        """Take back what `entitle` gave; desktops that people have stay theirs until they are released.

        `right`: what it must be; with another one nothing changes.
        """
        is_admin = has_role(caller, Role.ADMIN)
        gone = self._store.entitlements.delete(check_who(who), pool, caller.name, may_manage=is_admin, right=right)
        return Outcome(True, EntitlementResult(gone.who, str(gone.right), gone.pool))

    def list_tokens(self, caller: FleetCaller) -> QueryResult[tuple[ApiTokenResult, ...]]:
        """Return the API tokens, without their secrets, and after them those of people."""
        tokens = (*self._store.tokens.list(), *self._store.personal_tokens.list())
        return QueryResult(tuple(map(token_result, tokens)))

    def add_token(
        self,
        caller: FleetCaller,
        name: str,
        role: str | None = None,
        right: str | None = None,
        pools: Sequence[str] = (),
        days: int | None = None,
    ) -> Outcome[ApiTokenResult]:
        """Make an API token, of a `role` in the fleet, or a `right` on `pools`; its secret is shown this once."""
        refuse_token(caller)
        pool_rules.checked_name(name)
        if right is not None and (role is not None or not pools):
            raise InvalidInput("a token has either a role, or a right and the pools for it")
        if right is None and pools:
            raise InvalidInput("a token for some pools has a right there: use, operate or manage")
        kind = None if right is None else Right(_one_of("right", right, tuple(map(str, Right))))
        checked = None if kind is not None else Role(_one_of("role", role or Role.VIEWER, tuple(map(str, Role))))
        if days is not None and not 1 <= days <= 3650:
            raise InvalidInput(f"days: {days} is not a number from 1 to 3650")
        from vgpuctl.controller.digests import digest_of, new_token

        secret = new_token()
        valid = None if days is None else days * DAY_SECONDS
        token = self._store.tokens.add(
            name, checked, digest_of(secret), valid, caller.name, right=kind, pools=tuple(dict.fromkeys(pools))
        )
        return Outcome(True, token_result(token, secret))

    def delete_token(self, caller: FleetCaller, name: str, person: str | None = None) -> Outcome[ApiTokenResult]:
        """Delete an API token, or a `person`'s own one: it opens nothing any more."""
        if person is not None:
            return Outcome(True, token_result(self._store.personal_tokens.delete(person, name, caller.name)))
        result = next((token_result(one) for one in self._store.tokens.list() if one.name == name), None)
        self._store.tokens.delete(name, caller.name)
        assert result is not None
        return Outcome(True, result)

    @staticmethod
    def _refuse_of_managers(caller: FleetCaller, pool: str | None, right: Role | Right) -> None:
        """Refuse that a pool's manager makes others managers."""
        if (pool is None or right is Right.MANAGE) and not has_role(caller, Role.ADMIN):
            raise only_admins(pool)


def _check_person(name: str) -> None:
    try:
        pool_rules.user(name)
    except ValueError as error:
        raise InvalidInput(f"name: {error}") from error


def nobody_yet(who: str, people: int | None) -> tuple[str, ...]:
    """Return the warning about a person or group of whom nobody is known. `people`: how many are; None: not counted."""
    kind = f"in the group {who.removeprefix(GROUP_MARK)}" if who.startswith(GROUP_MARK) else f"called {who}"
    meant = rules.suggest_word(who, (EVERYBODY,))
    return () if people != 0 else (f"nobody who is known here is {kind} yet{meant}",)


def check_who(who: str) -> str:
    """Return whom something is for: a person's name, `@GROUP` or everybody.

    Raises:
        InvalidInput: it is none of them.
    """
    if who == EVERYBODY:
        return who
    if who.startswith(GROUP_MARK):
        _check_groups([who.removeprefix(GROUP_MARK)])
        return who
    _check_person(who)
    return who


def _check_groups(groups: Sequence[str]) -> tuple[str, ...]:
    if len(groups) > MAX_GROUPS:
        raise InvalidInput(f"groups: {len(groups)}, and at most {MAX_GROUPS} are allowed")
    for group in groups:
        if len(group) > MAX_GROUP_CHARACTERS or _GROUP.fullmatch(group) is None or not group.isprintable():
            raise InvalidInput(
                f"{group[:60]!a} is not the name of a group: 1 to {MAX_GROUP_CHARACTERS} printable characters, the "
                "first one neither a space nor @"
            )
    return tuple(groups)


def _one_of(field: str, value: str, words: tuple[str, ...]) -> str:
    try:
        return str(rules.one_of(words)(value))
    except ValueError as error:
        raise InvalidInput(f"{field}: {error}") from error


def _person_result(person: Person) -> PersonResult:
    realm = None if person.realm is None else str(person.realm)
    return PersonResult(
        person.name, realm, person.groups, person.disabled, person.has_password, person.shown,
        time_text(person.signed_in_at), person.generation,
    )  # fmt: skip
