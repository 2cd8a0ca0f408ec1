# SPDX-License-Identifier: Apache-2.0
"""The target host, parsed from an address on the command line: ssh://[user@]HOST[:port]."""

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
MAX_PORT = 65535


class Target(Value):
    """A host to log in at. `name` is its name for users. A field that is None comes from ssh_config or ssh's defaults.

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
