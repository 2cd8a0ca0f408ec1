# SPDX-License-Identifier: Apache-2.0
"""Which host is meant, by an address that people type: ssh://[user@]HOST[:port]."""

from __future__ import annotations

import re

from vgpuctl.errors import InvalidInput
from vgpuctl.value import Value

SCHEME = "ssh://"
_URL = re.compile(
    r"ssh://(?:(?P<user>[^@/:\s]+)@)?(?:\[(?P<v6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^@/:\s\[\]]+))(?::(?P<port>[0-9]{1,9}))?/?"
)
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*|[0-9A-Fa-f:.]+(%\w+)?", re.ASCII)
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]*\$?", re.ASCII)
MOST_PORT = 65535


class Target(Value):
    """A host to log in at. `name` is what people call it; None of the rest is what ssh_config says, or ssh's default.

    `identity_files` are tried before those of ssh_config.
    """

    name: str
    host: str
    port: int | None = None
    user: str | None = None
    identity_files: tuple[str, ...] = ()


def parse_url(text: str) -> Target:
    """Return the host of an address.

    Raises:
        InvalidInput: it is no such address.
    """
    found = _URL.fullmatch(text)
    if found is None:
        raise InvalidInput(f"--host {text} is no address of a host", hint="say ssh://[user@]HOST[:port]")
    port = None if found["port"] is None else int(found["port"])
    target = Target(text.removeprefix(SCHEME).rstrip("/"), found["v6"] or found["host"], port, found["user"])
    problem = wrong(target)
    if problem:
        raise InvalidInput(f"--host {text}: {problem}", hint="say ssh://[user@]HOST[:port]")
    return target


def wrong(target: Target) -> str | None:
    """Return what is wrong with the parts of an address, or None. ProxyCommand gets them in its command line."""
    if not _HOST.fullmatch(target.host):
        return f"'{target.host}' is no name or address of a host"
    if target.user is not None and not _USER.fullmatch(target.user):
        return f"'{target.user}' is no name of a user"
    if target.port is not None and not 1 <= target.port <= MOST_PORT:
        return f"{target.port} is no port: 1 to {MOST_PORT}"
    return None
