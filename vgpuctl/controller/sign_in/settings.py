# SPDX-License-Identifier: Apache-2.0
"""The file sign-in.yaml: which OpenID Connect issuer and which LDAP server know the users.

read_settings("/etc/vgpuctl-controller/sign-in.yaml")

Passwords are in files of their own. They are read when they are used, so no value here has one, and a new one needs no
restart.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from vgpuctl.config import rules
from vgpuctl.config.rules import Problem
from vgpuctl.config.shape import Key, Shape, nonempty_list
from vgpuctl.config.vm_fields import JsonSchema, nonempty_list_schema, pattern_schema
from vgpuctl.config.yaml_reader import parse_document
from vgpuctl.controller.sign_in.secret_file import read_secret
from vgpuctl.errors import FileFailed
from vgpuctl.model.names import is_visible
from vgpuctl.regular_file import read_regular_file
from vgpuctl.value import Value

MAX_SETTINGS_BYTES = 64 << 10
MAX_TEXT = 500
CLOCK_SKEW_SECONDS = 60
"""So far apart may the clocks of an issuer and of the controller be."""
AD_USER_FILTER = "(&(objectCategory=person)(objectClass=user)(sAMAccountName={user}))"
AD_NAME_ATTRIBUTE = "sAMAccountName"
GROUP_FILTER = "(member={dn})"
AD_NESTED_FILTER = "(member:1.2.840.113556.1.4.1941:={dn})"
"""Members of members too: LDAP_MATCHING_RULE_IN_CHAIN (Microsoft Learn, "Search Filter Syntax")."""
_ATTRIBUTE = r"[A-Za-z][A-Za-z0-9-]{0,63}"
_CLAIM = r"[!-~]{1,100}"
_SCOPE = r"[!#-\[\]-~]{1,100}"  # RFC 6749, section 3.3
_PLACEHOLDER = re.compile(r"\{[^{}]*\}|[{}]")
_TEXT_SCHEMA: JsonSchema = {"type": "string", "maxLength": MAX_TEXT}
_PATH_SCHEMA: JsonSchema = {"pattern": "^/", "type": "string"}


class OidcSettings(Value):
    """An OpenID Connect issuer. `address`: where browsers reach the controller, without a path.

    `client_secret_file`: None for a public client; `ca_file`: None for the system's.
    """

    issuer: str
    client_id: str
    address: str
    client_secret_file: str | None = None
    name_claim: str = "preferred_username"
    groups_claim: str = "groups"
    scopes: tuple[str, ...] = ("openid", "profile")
    ca_file: str | None = None


class LdapSettings(Value):
    """An LDAP server. `bind_dn`: who searches; None: anybody may. `ca_file`: None for the system's.

    `group_filter`: finds the groups below `group_base`; None: they are the values of `memberOf` of the user's entry.
    """

    url: str
    base_dn: str
    start_tls: bool = False
    ca_file: str | None = None
    bind_dn: str | None = None
    bind_password_file: str | None = None
    user_filter: str = AD_USER_FILTER
    name_attribute: str = AD_NAME_ATTRIBUTE
    group_base: str | None = None
    group_filter: str | None = None


class SignInSettings(Value):
    """How users may sign in, besides accounts of the fleet's own."""

    oidc: OidcSettings | None = None
    ldap: LdapSettings | None = None


def read_settings(path: str) -> SignInSettings:
    """Read the file, and see whether its secrets can be read.

    Raises:
        InvalidInput: each problem as `file:line:column: path: what is wrong`. FileFailed: it or a file that it names
            cannot be read. Refused: others may read a secret.
    """
    settings = parse_settings(_read_text(path), path)
    for secret in secret_files(settings):
        read_secret(secret)
    for authorities in [part.ca_file for part in (settings.oidc, settings.ldap) if part is not None and part.ca_file]:
        _read_text(authorities)
    return settings


def parse_settings(text: str, name: str) -> SignInSettings:
    """Check the text of the file `name`.

    Raises:
        InvalidInput: with every problem.
    """
    given: dict[str, Any] = parse_document(text, name, SIGN_IN_SHAPE)
    return SignInSettings(**given)


def secret_files(settings: SignInSettings) -> tuple[str, ...]:
    """Return the paths of the files with secrets."""
    paths = (
        settings.oidc and settings.oidc.client_secret_file,
        settings.ldap and settings.ldap.bind_password_file,
    )
    return tuple(path for path in paths if path)


def is_loopback(host: str | None) -> bool:
    """Return whether a host of a URL is this machine: what is sent there crosses no network."""
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def web_address(value: object) -> str:
    """Check an https address; http is enough for a loopback address. It has neither user nor fragment."""
    text = rules.as_text(value)
    parts = _split(text, "https://sso.example.org")
    if parts.scheme not in ("http", "https") or "#" in text:
        raise ValueError(f"{text[:99]!a} is not an https address like https://sso.example.org/realms/office")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise ValueError(f"{text[:99]!a} would send secrets in the clear: write https://")
    return text


def _issuer(value: object) -> str:
    text = web_address(value)
    if "?" in text:
        raise ValueError(f"{text[:99]!a} has a query, and no issuer has one")
    return text


def _address(value: object) -> str:
    text = web_address(value)
    if urlsplit(text).path not in ("", "/"):
        raise ValueError("the address of the controller has no path")
    return text.removesuffix("/")


def _read_text(path: str) -> str:
    try:
        return read_regular_file(path, MAX_SETTINGS_BYTES if path.endswith((".yaml", ".yml")) else 1 << 20).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise FileFailed(f"{path} cannot be read: {reason}", hint=f"ls -l {shlex.quote(path)}", path=path) from None


def _split(text: str, example: str) -> SplitResult:
    """Return the parts of an address; a user or a password in it is refused, and not quoted."""
    if len(text) > MAX_TEXT or not re.fullmatch(r"[!-~]+", text, re.ASCII) or "\\" in text:
        raise ValueError(f"{text[:99]!a} is not an address like {example}")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        port, parts = -1, urlsplit("")
    if "@" in parts.netloc:
        raise ValueError(f"an address has neither user nor password: write it like {example}")
    if not parts.hostname or port in (-1, 0):
        raise ValueError(f"{text[:99]!a} is not an address like {example}")
    return parts


def _ldap_url(value: object) -> str:
    text = rules.as_text(value)
    parts = _split(text, "ldaps://dc1.example.org")
    if parts.scheme not in ("ldap", "ldaps") or parts.path not in ("", "/") or "?" in text or "#" in text:
        raise ValueError(f"{text[:99]!a} is not the address of a server, like ldaps://dc1.example.org")
    return text.removesuffix("/")


def _matching(pattern: str, what: str) -> Callable[[object], str]:
    def rule(value: object) -> str:
        text = rules.as_text(value)
        if not re.fullmatch(pattern, text, re.ASCII):
            raise ValueError(f"{text[:99]!a} is not {what}")
        return text

    return rule


def _name_claim(value: object) -> str:
    text = _matching(_CLAIM, "the name of a claim")(value)
    if text == "sub":
        raise ValueError("sub is an identifier that no person knows: name a claim like preferred_username")
    return text


def _scopes(value: object) -> tuple[str, ...]:
    listed = nonempty_list(_matching(_SCOPE, "a scope"))(value)
    scopes = tuple(dict.fromkeys(str(scope) for scope in listed)) if isinstance(listed, tuple) else ()
    if len(scopes) > 20:
        raise ValueError(f"{len(scopes)} scopes; at most 20 are allowed")
    if "openid" not in scopes:
        raise ValueError("openid is missing: without it an issuer does not say who signed in")
    return scopes


def _visible(text: str) -> str:
    if not text.strip() or len(text) > MAX_TEXT or not all(map(is_visible, text)):
        raise ValueError(f"{text[:99]!a} is not a text of 1 to {MAX_TEXT} visible characters")
    return text


def _client_id(value: object) -> str:
    return _visible(rules.as_text(value))


def _dn(value: object) -> str:
    text = _visible(rules.as_text(value))
    if not re.match(r"[A-Za-z0-9.-]+ *=", text, re.ASCII):
        raise ValueError(f"{text[:99]!a} is not a DN like dc=example,dc=org")
    return text


def _filter_with(allowed: tuple[str, ...]) -> Callable[[object], str]:
    """Return the rule of an LDAP filter that has at least one of these placeholders, and no others."""

    def rule(value: object) -> str:
        text = _visible(rules.as_text(value))
        placeholders = _PLACEHOLDER.findall(text)
        if not placeholders or any(one not in allowed for one in placeholders):
            raise ValueError(f"a filter has {' or '.join(allowed)} in it, and no other braces: {text[:99]!a}")
        depth = 0
        for number, character in enumerate(text, 1):
            depth += (character == "(") - (character == ")")
            if depth < 0 or (depth == 0 and number < len(text)):
                depth = -1
                break
        if depth != 0:
            raise ValueError(f"{text[:99]!a} is not a filter: its parentheses do not match")
        return text

    return rule


def _oidc(value: object) -> OidcSettings:
    given: dict[str, Any] = OIDC_SHAPE.check(value)
    return OidcSettings(**given)


def _ldap(value: object) -> LdapSettings:
    given: dict[str, Any] = LDAP_SHAPE.check(value)
    if given.pop("nested_groups", False):
        given["group_filter"] = AD_NESTED_FILTER
    if "group_filter" in given or "group_base" in given:
        given = {"group_filter": GROUP_FILTER, "group_base": given["base_dn"], **given}
    return LdapSettings(**given)


def _check_ldap(fields: Mapping[str, object]) -> tuple[Problem, ...]:
    return tuple(_find_ldap_problems(fields))


def _find_ldap_problems(fields: Mapping[str, object]) -> Iterator[Problem]:
    url, start_tls = str(fields.get("url")), fields.get("start_tls") is True
    if url.startswith("ldaps://") and start_tls:
        yield Problem(("start_tls",), "ldaps:// is TLS already: omit this, or write ldap:// in url")
    if url.startswith("ldap://") and not start_tls and not is_loopback(urlsplit(url).hostname):
        text = "passwords would cross the network in the clear: write ldaps://, or add start_tls: true"
        yield Problem(("url",), text)
    if ("bind_dn" in fields) != ("bind_password_file" in fields):
        missing = "bind_password_file" if "bind_dn" in fields else "bind_dn"
        yield Problem((), f"bind_dn and bind_password_file belong together: {missing} is missing")
    if fields.get("nested_groups") is True and "group_filter" in fields:
        yield Problem(("group_filter",), "nested_groups: true is a filter by itself: omit this", at_key=True)
    if "name_attribute" not in fields and "user_filter" in fields:
        text = "missing: the attribute whose value is the user's name, such as uid, because user_filter is given"
        yield Problem(("name_attribute",), text)


def _check_sections(fields: Mapping[str, object]) -> tuple[Problem, ...]:
    if "oidc" in fields or "ldap" in fields:
        return ()
    return (Problem((), "specify oidc:, ldap: or both"),)


OIDC_SHAPE = Shape(
    "SignInOidc",
    "An OpenID Connect issuer, such as Keycloak or Microsoft Entra.",
    (
        Key("issuer", _issuer, "its https address, exactly as it writes it", _TEXT_SCHEMA, required=True),
        Key("client_id", _client_id, "the id of this client at the issuer", _TEXT_SCHEMA, required=True),
        Key("address", _address, "where browsers reach it: https://NAME[:PORT]", _TEXT_SCHEMA, required=True),
        Key("client_secret_file", rules.secret_path, "a file of mode 0600; a public client has none", _PATH_SCHEMA),
        Key("name_claim", _name_claim, "the claim with the user's name", pattern_schema(_CLAIM)),
        Key("groups_claim", _matching(_CLAIM, "the name of a claim"), "the claim with groups", pattern_schema(_CLAIM)),
        Key("scopes", _scopes, "what is asked for; openid is one", nonempty_list_schema(pattern_schema(_SCOPE))),
        Key("ca_file", rules.path, "certificates (PEM) that sign the issuer's; the system's without it", _PATH_SCHEMA),
    ),
)
LDAP_SHAPE = Shape(
    "SignInLdap",
    "An LDAP server, such as Active Directory or OpenLDAP.",
    (
        Key("url", _ldap_url, "ldaps://NAME, or ldap://NAME with start_tls", _TEXT_SCHEMA, required=True),
        Key("start_tls", rules.boolean, "whether ldap:// goes on with TLS", {"type": "boolean"}),
        Key("ca_file", rules.path, "certificates (PEM) that sign the server's; the system's without it", _PATH_SCHEMA),
        Key("bind_dn", _dn, "the account that searches; without it anybody may search", _TEXT_SCHEMA),
        Key("bind_password_file", rules.secret_path, "a file of mode 0600 with its password", _PATH_SCHEMA),
        Key("base_dn", _dn, "users are below this entry", _TEXT_SCHEMA, required=True),
        Key("user_filter", _filter_with(("{user}",)), f"finds a user; {AD_USER_FILTER} without it", _TEXT_SCHEMA),
        Key(
            "name_attribute",
            _matching(_ATTRIBUTE, "the name of an attribute"),
            f"the attribute with the user's name; {AD_NAME_ATTRIBUTE} without it",
            pattern_schema(_ATTRIBUTE),
        ),
        Key("group_base", _dn, "groups are searched below this entry", _TEXT_SCHEMA),
        Key("group_filter", _filter_with(("{dn}", "{user}")), f"finds them; {GROUP_FILTER} without it", _TEXT_SCHEMA),
        Key("nested_groups", rules.boolean, "groups of groups too, in Active Directory", {"type": "boolean"}),
    ),
    _check_ldap,
)
SIGN_IN_SHAPE = Shape(
    "SignIn",
    "How users sign in.",
    (
        Key("oidc", _oidc, "an OpenID Connect issuer", nested_shape=OIDC_SHAPE),
        Key("ldap", _ldap, "an LDAP server", nested_shape=LDAP_SHAPE),
    ),
    _check_sections,
)
