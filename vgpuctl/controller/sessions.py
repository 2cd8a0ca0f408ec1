# SPDX-License-Identifier: Apache-2.0
"""Signing in with a password, the sessions that follow, and a new password of one's own.

A session's secret is in a cookie; the database has its digest. Tries are limited by address, and by account and
address: who tries many passwords of somebody waits, and that somebody signs in meanwhile from where he is known.
"""

from __future__ import annotations

import ipaddress
import logging
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from vgpuctl.controller.digests import digest_of, header_token
from vgpuctl.controller.model import FleetCaller, Realm
from vgpuctl.controller.planning import pool_rules
from vgpuctl.controller.sign_in.signed_in import WRONG, SignInRefused
from vgpuctl.errors import InvalidInput, NotAllowed, Temporary
from vgpuctl.model.names import is_visible
from vgpuctl.value import Value

Answer = TypeVar("Answer")

if TYPE_CHECKING:
    from vgpuctl.controller.clock import ControllerClock
    from vgpuctl.controller.database.store import Store
    from vgpuctl.controller.sign_in.ldap import Ldap

log = logging.getLogger("vgpuctl.controller")

SESSION_SECONDS = 12 * 3600.0
IDLE_SECONDS = 2 * 3600.0
HASHES_AT_ONCE = 3
"""Each takes 64 MiB of memory and a quarter of a second of CPU."""
HASH_WAIT_SECONDS = 10.0
MOST_SHOWN = 64
"""So many characters of a name are in the log."""
LEAST_CHARACTERS, MOST_CHARACTERS = 12, 200
MAX_BUCKETS = 20_000


class WrongPassword(NotAllowed):
    """The name or the password is wrong (HTTP 401); which of them is not said."""

    code = "wrong-password"


class TooManyTries(Temporary):
    """Too many wrong passwords; the fact `seconds` says when the next try is heard (HTTP 429)."""

    code = "too-many-tries"


class BegunSession(Value):
    """A session that has begun. `secret`: for the cookie; `token`: what changes must carry in a header."""

    name: str
    secret: str
    token: str
    expires_at: float


class _Checked(Value):
    """Who signs in. `groups` None: they stay as they are."""

    name: str
    groups: tuple[str, ...] | None = None
    shown: str | None = None


class _Bucket(Value):
    tries: float
    at: float


class Limit:
    """So many tries, and then one in so many seconds, for each key; the keys that were used last are remembered."""

    def __init__(self, tries: int, seconds: float, clock: ControllerClock) -> None:
        self._most = tries
        self._seconds = seconds
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._lock = threading.Lock()

    def wait(self, key: str) -> float:
        """Return how many seconds a key must wait for its next try; 0: it may try now."""
        with self._lock:
            return max(0.0, (1 - self._tries(key)) * self._seconds)

    def count(self, key: str, tries: float = 1.0) -> float:
        """Count a try; return how much of one there was. A negative number gives that back."""
        with self._lock:
            before = self._tries(key)
            left = min(float(self._most), max(0.0, before - tries))
            self._buckets[key] = _Bucket(left, self._clock.monotonic())
            self._buckets.move_to_end(key)
            if len(self._buckets) > MAX_BUCKETS:
                self._buckets.popitem(last=False)
            return before - left

    def _tries(self, key: str) -> float:
        bucket = self._buckets.get(key)
        if bucket is None:
            return float(self._most)
        return min(float(self._most), bucket.tries + (self._clock.monotonic() - bucket.at) / self._seconds)


class PasswordSignIn:
    """Checks passwords, begins sessions, and says whose they are. `ldap`: the server that knows others' passwords."""

    def __init__(self, store: Store, ldap: Ldap | None = None) -> None:
        self._store = store
        self._ldap = ldap
        self._nobody: str | None = None
        self._of_address = Limit(60, 10.0, store.clock)
        self._of_known_address = Limit(300, 2.0, store.clock)
        self._of_both = Limit(5, 30.0, store.clock)
        self._of_account = Limit(20, 30.0, store.clock)

    def sign_in(self, name: str, password: str, address: str) -> BegunSession:
        """Begin a session.

        Raises:
            WrongPassword: the name or the password is wrong. TooManyTries: too many were.
            NotAllowed: the account is disabled. SignInRefused: the server's answer about him cannot be used.
            Temporary: too many sign in at once, or the server does not answer.
        """
        person, realm = self._checked(name, password, address)
        return self.begin(person.name, realm, address, person.groups, person.shown, _account_of(name, password))

    def change_password(self, name: str, old: str, new: str, address: str, session: str) -> None:
        """Change the password of a local person who has signed in; his other sessions end. `session`: its digest.

        Raises:
            NotAllowed: his password is another server's, or his session has ended meanwhile.
            InvalidInput: the new one is not good enough, or is the old one. WrongPassword, TooManyTries, Temporary: as
            `sign_in`, about the old one.
        """
        realm = self._store.people.realm(name)
        if realm is not Realm.LOCAL:
            raise NotAllowed(
                f"you sign in by {realm}: the controller has no password of yours",
                hint="your directory has your password: change it there",
                rule="realm",
            )
        if check_password(name, new) == old:
            raise InvalidInput("the new password is the old one")
        try:
            self._checked(name, old, address)
        except WrongPassword:
            raise WrongPassword("the old password is wrong") from None
        self._store.people.set_password(name, hash_password(new), name, session=session)

    def _checked(self, name: str, password: str, address: str) -> tuple[_Checked, Realm]:
        """Return whose password this is, and who says so; wrong ones are counted.

        Raises:
            VgpuctlError: as `sign_in`.
        """
        network, account = network_of(address), _account_of(name, password)
        limits = [(self._of_both, f"{account} {network}")]
        if self._store.places.has(account, network):
            limits += [(self._of_known_address, network)]
        else:
            limits += [(self._of_address, network), (self._of_account, account)]
        if wait := max(limit.wait(key) for limit, key in limits):
            seconds = int(wait) + 1
            log.info("too many wrong passwords for an account, or from %s", network)
            raise TooManyTries(
                "too many wrong passwords", hint=f"the next try is heard in {seconds} seconds", seconds=seconds
            )
        counted = [limit.count(key) for limit, key in limits]  # before it is known: of many at once each counts
        is_wrong = False
        try:
            return self._check(name.strip(), password) if account else _nobody()
        except WrongPassword:
            is_wrong = True
            log.info("a wrong password of %s from %s", self._known_name(account), network)
            raise
        finally:
            for (limit, key), tries in zip(limits, counted, strict=True):
                limit.count(key, 0.0 if is_wrong else -tries)

    def _known_name(self, account: str) -> str:
        """Return an account for the log. A name that nobody has may be a password, in the wrong field."""
        known = self._store.people.name_of(account) if account else None
        return "an unknown name" if known is None else "".join(filter(is_visible, known))[:MOST_SHOWN]

    def _check(self, name: str, password: str) -> tuple[_Checked, Realm]:
        """Return who this is, and who says so.

        Raises:
            WrongPassword: the name or the password is wrong.
        """
        if self._ldap is None or self._store.people.realm(name) is Realm.LOCAL:
            return (_Checked(name), Realm.LOCAL) if self._is_password(name, password) else _nobody()
        try:
            person = self._ldap.sign_in(name, password)
        except SignInRefused as error:
            if error.facts.get("problem") == WRONG:
                return _nobody()
            raise
        return _Checked(person.name, person.groups, person.shown), Realm.LDAP

    def _is_password(self, name: str, password: str) -> bool:
        """Return whether a local person has this password; it takes as long for a name that nobody has."""
        digest = self._store.people.password(name)
        is_right = self._verify(digest or self._digest_of_nobody(), password) and digest is not None
        if is_right and digest is not None and _hasher.check_needs_rehash(digest):
            self._store.people.rehash(name, digest, hash_password(password))
        return is_right

    def begin(
        self,
        name: str,
        realm: Realm,
        address: str,
        groups: tuple[str, ...] | None = None,
        shown: str | None = None,
        account: str | None = None,
    ) -> BegunSession:
        """Begin a session of somebody who has shown who he is. `groups`: of his directory. `account`: as he typed it.

        Raises:
            NotAllowed: the account is disabled, or is one of another realm.
        """
        secret = secrets.token_urlsafe(32)
        session = self._store.people.sign_in(
            name,
            realm,
            digest_of(secret),
            SESSION_SECONDS,
            network_of(address),
            groups=groups,
            shown=shown,
            account=account,
        )
        return BegunSession(name, secret, header_token(secret), session.expires_at)

    def caller(self, secret: str, *, touches: bool = True) -> FleetCaller | None:
        """Return whose session this is, with what he may do now; None: nobody's. `touches`: this is a use of it."""
        return self._store.people.session(digest_of(secret), IDLE_SECONDS, touches=touches)

    def sign_out(self, secret: str) -> None:
        """End a session."""
        self._store.people.sign_out(digest_of(secret))

    def _verify(self, digest: str, password: str) -> bool:
        if len(password) > MOST_CHARACTERS:
            return False

        def check() -> bool:
            try:
                return _hasher.verify(digest, password)
            except (VerificationError, InvalidHashError):
                return False

        return _work(check)

    def _digest_of_nobody(self) -> str:
        """Return the hash of a password that nobody has: who asks for unknown names waits as long as others."""
        if self._nobody is None:
            self._nobody = hash_password(secrets.token_urlsafe(16))
        return self._nobody


def _account_of(name: str, password: str) -> str:
    """Return the account whose tries count together: an LDAP server takes each spelling; empty: nobody's.

    What no account can have is not asked of a database or a server.
    """
    try:
        pool_rules.user(name.strip())
        password.encode()
    except ValueError:
        return ""
    return "" if "\0" in password else name.strip().lower()


def _nobody() -> NoReturn:
    raise WrongPassword("the name or the password is wrong")


_hasher = PasswordHasher()
_at_once = threading.BoundedSemaphore(HASHES_AT_ONCE)


def hash_password(password: str) -> str:
    """Return the hash of a password.

    Raises:
        Temporary: too many passwords are checked at once.
    """
    return _work(lambda: _hasher.hash(password))


def _work(act: Callable[[], Answer]) -> Answer:
    if not _at_once.acquire(timeout=HASH_WAIT_SECONDS):
        raise Temporary("too many people sign in at once", hint="try again in a few seconds")
    try:
        return act()
    finally:
        _at_once.release()


def check_password(name: str, password: str) -> str:
    """Return a new password of somebody.

    Raises:
        InvalidInput: it is too short or too long, or his name.
    """
    if not LEAST_CHARACTERS <= len(password) <= MOST_CHARACTERS:
        raise InvalidInput(
            f"a password has {LEAST_CHARACTERS} to {MOST_CHARACTERS} characters, and this one has {len(password)}"
        )
    if not password.isprintable():
        raise InvalidInput("a password has printable characters alone")
    if name.lower() in password.lower() and len(password) < len(name) + LEAST_CHARACTERS:
        raise InvalidInput("the password is little more than the name")
    return password


def network_of(client: str) -> str:
    """Return the address whose tries count together: of IPv6 the network of 64 bits that one customer has."""
    try:
        ip = ipaddress.ip_address(client)
    except ValueError:
        return client[:100]
    if isinstance(ip, ipaddress.IPv6Address):
        return str(ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)
