# SPDX-License-Identifier: Apache-2.0
"""Target hosts, parsed from an address on the command line: ssh://[user@]HOST[:port], where HOST may have ranges."""

from __future__ import annotations

import re

from vgpuctl.config.name_patterns import PATTERN_HINT, expand_braces
from vgpuctl.errors import InvalidInput
from vgpuctl.value import Value

SCHEME = "ssh://"
_URL = re.compile(
    r"ssh://(?:(?P<user>[^@/:\s]+)@)?(?:\[(?P<v6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^@/:\s\[\]]+))(?::(?P<port>[0-9]{1,9}))?/?"
)
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*|[0-9A-Fa-f:.]+(%\w+)?", re.ASCII)
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]*\$?", re.ASCII)
_IPV6 = re.compile(r"ssh://([^@\[]*@)?\[")
MAX_PORT = 65535
_RANGE_HINT = "write a range like 'ssh://gpu{01..20}' or a list like 'ssh://{web,db}-1', in quotes"


class Target(Value):
    """A host to log in at. `name` is its name for users. What is None comes from ssh_config or ssh's defaults."""

    name: str
    host: str
    port: int | None = None
    user: str | None = None


def is_range(text: str) -> bool:
    """Return whether an address may stand for several hosts: it has braces."""
    return "{" in text or "}" in text


def expand_range(text: str) -> tuple[str, ...]:
    """Return the addresses that an address with ranges or lists in braces stands for; without braces it is one.

    Raises:
        InvalidInput: the braces are wrong, or there is a range in brackets. Brackets around an IPv6 address are none.
    """
    try:
        return expand_braces(text, has_sets=_IPV6.match(text) is None)
    except InvalidInput as exc:
        hint = exc.hint if exc.hint not in (None, PATTERN_HINT) else _RANGE_HINT
        raise InvalidInput(f"--host {exc.message}", hint=hint) from exc


def parse_url(text: str) -> Target:
    """Return the host of an address.

    Raises:
        InvalidInput: it is not such an address.
    """
    match = _URL.fullmatch(text)
    if match is None:
        raise InvalidInput(f"--host {text} is not the address of a host", hint="use ssh://[user@]HOST[:port]")
    port = None if match["port"] is None else int(match["port"])
    target = Target(text.removeprefix(SCHEME).rstrip("/"), match["v6"] or match["host"], port, match["user"])
    problem = find_invalid_part(target)
    if problem:
        raise InvalidInput(f"--host {text}: {problem}", hint="use ssh://[user@]HOST[:port]")
    return target


def find_invalid_part(target: Target) -> str | None:
    """Return the invalid part of an address, or None. ProxyCommand gets them in its command line."""
    if not _HOST.fullmatch(target.host):
        return f"'{target.host}' is not a host name or address"
    if target.user is not None and not _USER.fullmatch(target.user):
        return f"'{target.user}' is not a user name"
    if target.port is not None and not 1 <= target.port <= MAX_PORT:
        return f"{target.port} is not a port: 1 to {MAX_PORT}"
    return None
