# SPDX-License-Identifier: Apache-2.0
"""Signs users in at an LDAP server: their entry is searched, and they bind as it with their password.

    person = Ldap(settings).sign_in("ada", password)

Each sign-in opens its own connections, with at most five seconds for each answer. Referrals are never followed:
another server would get the password.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import ldap
from ldap.controls.libldap import SimplePagedResultsControl
from ldap.dn import str2dn
from ldap.filter import escape_filter_chars

from vgpuctl.controller.sign_in.ldap_channel import open_channel
from vgpuctl.controller.sign_in.secret_file import read_secret
from vgpuctl.controller.sign_in.settings import LdapSettings
from vgpuctl.controller.sign_in.signed_in import (
    MAX_GROUPS,
    WRONG,
    SignedIn,
    SignInRefused,
    SignInUnavailable,
    person_of,
    server_text,
)

log = logging.getLogger("vgpuctl.controller.sign_in")

ANSWER_SECONDS = 5.0
MAX_USER, MAX_PASSWORD = 128, 1024
PAGE = 500
NOT_LET_IN = "the user name or the password is wrong"
_AD_REASON = re.compile(r"AcceptSecurityContext error, data ([0-9a-f]{3,4})\b")
_AD_REASONS = {
    "52e": "wrong password", "530": "not at this time", "531": "not from this machine", "532": "password expired",
    "533": "account disabled", "701": "account expired", "773": "password must be changed", "775": "account locked",
}  # fmt: skip
"""Microsoft's system error codes in hexadecimal, as Active Directory has them in its answer to a bind."""
_NOT_BOUND = (
    ldap.INVALID_CREDENTIALS, ldap.INAPPROPRIATE_AUTH, ldap.INVALID_DN_SYNTAX, ldap.NO_SUCH_OBJECT,
    ldap.UNWILLING_TO_PERFORM, ldap.CONSTRAINT_VIOLATION, ldap.INSUFFICIENT_ACCESS,
)  # fmt: skip
"""How servers refuse a bind: a wrong password, no password, a locked or disabled account, an entry that vanished."""
Entry = tuple[str, Mapping[str, list[bytes]]]


class Ldap:
    """One LDAP server. Threads may share it. `seconds`: how long one answer may take."""

    def __init__(self, settings: LdapSettings, *, seconds: float = ANSWER_SECONDS) -> None:
        self._settings = settings
        self._seconds = seconds

    def sign_in(self, user: str, password: str) -> SignedIn:
        """Return who has this name and this password.

        Raises:
            SignInRefused: nobody, or more than one. SignInUnavailable: the server does not answer, or not as it
                should. Refused, FileFailed: the file with the searching account's password cannot be used.
        """
        # A bind with an empty password succeeds as anybody (RFC 4513, section 5.1.2); some servers end one at a NUL.
        if not password or "\0" in password or len(password) > MAX_PASSWORD or not _is_unicode(password):
            raise _not_let_in()
        if not user.strip() or len(user) > MAX_USER or not user.isprintable():
            raise _not_let_in()
        with self._searching() as connection:
            entry = self._find_user(connection, user)
            if entry is None:
                raise _not_let_in()
            dn, attributes = entry
            self._check_password(user, dn, password)
            name = _only_value(attributes, self._settings.name_attribute)
            groups, warnings = self._find_groups(connection, dn, name, attributes)
        shown = _only_value(attributes, "displayName") or _only_value(attributes, "cn")
        source = f"the attribute {self._settings.name_attribute} of {server_text(dn)}"
        return person_of(name, groups, shown, source, warnings)

    def check(self) -> None:
        """See that users can be searched, for `doctor`.

        Raises:
            SignInUnavailable: they cannot. Refused, FileFailed: the file with the password cannot be used.
        """
        with self._searching() as connection:
            bases = [self._settings.base_dn, self._settings.group_base or self._settings.base_dn]
            for base in dict.fromkeys(bases):
                self._ask(partial(self._search, connection, base, "(objectClass=*)", ["1.1"], ldap.SCOPE_BASE))
            self._find_user(connection, "?")
            if self._settings.group_filter is not None:
                self._find_groups(connection, self._settings.base_dn, "?", {})
            self._check_name_attribute(connection)

    def _check_name_attribute(self, connection: Any) -> None:
        settings = self._settings
        text = f"({settings.name_attribute}=*)"
        with suppress(ldap.SIZELIMIT_EXCEEDED):
            search = partial(self._search, connection, settings.base_dn, text, ["1.1"], limit=1)
            if not self._ask(search, ldap.SIZELIMIT_EXCEEDED):
                raise SignInUnavailable(
                    f"no entry of {settings.base_dn} has the attribute {settings.name_attribute}, or is shown",
                    hint="compare name_attribute in sign-in.yaml with the attributes of a user's entry",
                )

    @contextmanager
    def _searching(self) -> Iterator[Any]:
        """Yield a connection of the account that searches."""
        settings = self._settings
        with self._connected() as connection:
            if settings.bind_dn is not None:
                password = read_secret(str(settings.bind_password_file))
                try:
                    self._ask(partial(connection.simple_bind_s, settings.bind_dn, password), *_NOT_BOUND)
                except _NOT_BOUND as error:
                    raise SignInUnavailable(
                        f"{settings.url} refuses the account that searches, {settings.bind_dn}{_ad_reason(error)}",
                        hint="compare bind_dn and bind_password_file in sign-in.yaml with the server's",
                    ) from None
            yield connection

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        url = self._settings.url
        channel = open_channel(self._settings, self._seconds)
        channel.setblocking(True)
        connection = ldap.initialize("ldap://" + url.partition("://")[2], fileno=channel.fileno())
        channel.detach()  # it is the connection's, which closes it
        try:
            options = {
                ldap.OPT_PROTOCOL_VERSION: 3,
                ldap.OPT_REFERRALS: 0,
                ldap.OPT_RESTART: 0,
                ldap.OPT_TIMEOUT: self._seconds,
            }
            for option, value in options.items():
                connection.set_option(option, value)
            yield connection
        finally:
            with suppress(ldap.LDAPError):
                connection.unbind_s()

    def _find_user(self, connection: Any, user: str) -> Entry | None:
        settings = self._settings
        text = _filled(settings.user_filter, {"{user}": user})
        names = [settings.name_attribute, "displayName", "cn", *([] if settings.group_filter else ["memberOf"])]
        try:
            entries = self._ask(
                partial(self._search, connection, settings.base_dn, text, names, limit=2), ldap.SIZELIMIT_EXCEEDED
            )
        except ldap.SIZELIMIT_EXCEEDED:
            entries = [("", {}), ("", {})]
        if len(entries) > 1:
            raise SignInRefused(
                f"more than one user of {settings.url} matches {server_text(user)}",
                hint="have user_filter in sign-in.yaml match one entry for each name",
                problem="ambiguous",
            )
        return entries[0] if entries else None

    def _check_password(self, user: str, dn: str, password: str) -> None:
        if not dn:  # a bind without a name succeeds as anybody
            raise _not_let_in()
        with self._connected() as connection:
            try:
                self._ask(partial(connection.simple_bind_s, dn, password), *_NOT_BOUND)
            except _NOT_BOUND as error:
                reason = _ad_reason(error) or f" ({type(error).__name__})"
                log.info("%s is not let in by %s%s", server_text(user), self._settings.url, reason)
                raise _not_let_in() from None

    def _find_groups(
        self, connection: Any, dn: str, name: str | None, attributes: Mapping[str, list[bytes]]
    ) -> tuple[list[object], tuple[str, ...]]:
        """Return the names of the groups, and warnings."""
        settings = self._settings
        if settings.group_filter is None:
            names = [_first_part(_text(value)) for value in _values(attributes, "memberOf")]
            is_cut = any(key.lower().startswith("memberof;range=") for key in attributes)
            more = f"Active Directory lists only {len(names)} groups in memberOf: set group_base in sign-in.yaml"
            return list(names), (more,) if is_cut else ()
        text = _filled(settings.group_filter, {"{dn}": dn, "{user}": name or ""})
        base = settings.group_base or settings.base_dn
        groups: list[object] = []
        paging = SimplePagedResultsControl(criticality=False, size=PAGE, cookie="")
        while len(groups) <= MAX_GROUPS:
            try:
                entries, cookie = self._ask(
                    partial(self._page, connection, base, text, paging), ldap.SIZELIMIT_EXCEEDED
                )
            except ldap.SIZELIMIT_EXCEEDED:
                return groups, (f"{settings.url} shows the searching account no more than {len(groups)} groups",)
            groups += [_only_value(one, "cn") or _first_part(group) for group, one in entries]
            if not cookie:
                break
            paging.cookie = cookie
        return groups, ()

    def _page(self, connection: Any, base: str, text: str, paging: Any) -> tuple[list[Entry], Any]:
        message = connection.search_ext(base, ldap.SCOPE_SUBTREE, text, ["cn"], serverctrls=[paging])
        _, data, _, controls = connection.result3(message, timeout=self._seconds)
        cookies = [one.cookie for one in controls if isinstance(one, SimplePagedResultsControl)]
        return _entries(data), cookies[0] if cookies else None

    def _search(
        self, connection: Any, base: str, text: str, names: list[str], scope: int = ldap.SCOPE_SUBTREE, limit: int = 0
    ) -> list[Entry]:
        message = connection.search_ext(base, scope, text, names, sizelimit=limit)
        return _entries(connection.result3(message, timeout=self._seconds)[1])

    def _ask(self, request: Callable[[], Any], *expected: type[ldap.LDAPError]) -> Any:
        """Return what a request returns; an error that is not `expected` is about the server, and says so."""
        try:
            return request()
        except expected:
            raise
        except (ldap.LDAPError, UnicodeError) as error:
            raise self._unavailable(error) from None

    def _unavailable(self, error: Exception) -> SignInUnavailable:
        settings, says = self._settings, _says(error)
        url, hint = settings.url, None
        if isinstance(error, ldap.TIMEOUT | ldap.TIMELIMIT_EXCEEDED):
            text = f"{url} did not answer within {self._seconds:g} s"
        elif isinstance(error, ldap.SERVER_DOWN | ldap.CONNECT_ERROR):
            text = f"{url} ended the connection: {says}"
            if not settings.url.startswith("ldaps:") and not settings.start_tls:
                hint = "if that port speaks TLS at once, such as 636, write ldaps:// in sign-in.yaml"
        elif isinstance(error, ldap.FILTER_ERROR):
            text, hint = f"a filter is wrong: {says}", "correct user_filter and group_filter in sign-in.yaml"
        elif isinstance(error, ldap.REFERRAL | ldap.PARTIAL_RESULTS):
            text = f"{url} refers to another server, which is not followed: {says}"
            hint = "write a base_dn and a group_base in sign-in.yaml that this server has, or the url of the other"
        elif isinstance(error, ldap.NO_SUCH_OBJECT):
            bases = [base for base in dict.fromkeys((settings.base_dn, settings.group_base)) if base]
            text = f"{url} has no entry {' or '.join(bases)}, or does not show it"
            hint = "compare base_dn and group_base in sign-in.yaml with the server's"
        elif isinstance(error, ldap.STRONG_AUTH_REQUIRED | ldap.CONFIDENTIALITY_REQUIRED):
            text, hint = f"{url} takes passwords with TLS alone", "write ldaps:// in sign-in.yaml, or start_tls: true"
        else:
            text = f"{url} refuses to search: {says}"
            if settings.bind_dn is None:
                hint = "set bind_dn and bind_password_file in sign-in.yaml: not everybody may search everywhere"
        return SignInUnavailable(text, hint=hint)


def _not_let_in() -> SignInRefused:
    """Return the one error for a wrong password and for a user who does not exist."""
    return SignInRefused(NOT_LET_IN, problem=WRONG)


def _is_unicode(text: str) -> bool:
    """Return whether a text can be sent: JSON has halves of characters."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _says(error: Exception) -> str:
    facts = error.args[0] if error.args and isinstance(error.args[0], dict) else {}
    texts = dict.fromkeys(str(facts[key]).replace("\n", " ").strip() for key in ("desc", "info") if facts.get(key))
    return server_text(": ".join(texts) or type(error).__name__)


def _ad_reason(error: ldap.LDAPError) -> str:
    """Return why Active Directory refuses a bind, for an admin; "" for other servers."""
    match = _AD_REASON.search(_says(error))
    return f" ({_AD_REASONS.get(match[1], f'data {match[1]}')})" if match else ""


def _filled(template: str, values: Mapping[str, str]) -> str:
    """Return a filter with the values in one pass: none of them can bring another placeholder, or end its part."""
    return re.sub(r"\{[a-z]+\}", lambda match: str(escape_filter_chars(values[match[0]])), template)


def _entries(data: list[tuple[str | None, Any]]) -> list[Entry]:
    """Return the entries of an answer; those that refer to another server have no DN."""
    return [(dn, attributes) for dn, attributes in data if dn is not None]


def _values(attributes: Mapping[str, list[bytes]], name: str) -> list[bytes]:
    return next((value for key, value in attributes.items() if key.lower().partition(";")[0] == name.lower()), [])


def _only_value(attributes: Mapping[str, list[bytes]], name: str) -> str | None:
    values = _values(attributes, name)
    return _text(values[0]) if len(values) == 1 else None


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _first_part(dn: str | None) -> str | None:
    """Return the value of a DN's first part: `desktops` of cn=desktops,ou=groups,dc=example,dc=org."""
    with suppress(ldap.LDAPError):
        parts = str2dn(dn or "")
        return str(parts[0][0][1]) if parts and parts[0] else None
    return None
