# SPDX-License-Identifier: Apache-2.0
"""Other hosts: their addresses, and the interfaces for logging in to one and running a command there.

An address on the command line is ssh://[user@]HOST[:port], where HOST may have ranges. No SSH library is imported here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from io import BufferedReader
from typing import Protocol

from vgpuctl.config.name_patterns import PATTERN_HINT, expand_braces
from vgpuctl.errors import InvalidInput
from vgpuctl.value import Value

SCHEME = "ssh://"
ROOT = "root"
_URL = re.compile(
    r"ssh://(?:(?P<user>[^@/:\s]+)@)?(?:\[(?P<v6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^@/:\s\[\]]+))(?::(?P<port>[0-9]{1,9}))?/?"
)
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*|[0-9A-Fa-f:.]+(%\w+)?", re.ASCII)
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]*\$?", re.ASCII)
_IPV6 = re.compile(r"ssh://([^@\[]*@)?\[")
MAX_PORT = 65535
_RANGE_HINT = "write a range like 'ssh://gpu{01..20}' or a list like 'ssh://{web,db}-1', in quotes"

MAX_NOISE_BYTES = 1 << 20
"""Limit of stdout before vgpuctl's own output: what the remote shell prints at a login."""
MAX_REPLY_BYTES = 16 << 20
"""Limit of stdout in total. A list of 1,000 VMs takes 2 MiB."""
TOO_NOISY = f"it printed more than {MAX_NOISE_BYTES >> 20} MiB before vgpuctl started"
TOO_LONG = f"it printed more than {MAX_REPLY_BYTES >> 20} MiB"
ABANDONED = "it was not waited for"


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


def parse_url(text: str, option: str = "--host") -> Target:
    """Return the host of an address. `option`: where it was given.

    Raises:
        InvalidInput: it is not such an address.
    """
    match = _URL.fullmatch(text)
    if match is None:
        raise InvalidInput(f"{option} {text} is not the address of a host", hint="use ssh://[user@]HOST[:port]")
    port = None if match["port"] is None else int(match["port"])
    target = Target(text.removeprefix(SCHEME).rstrip("/"), match["v6"] or match["host"], port, match["user"])
    problem = find_invalid_part(target)
    if problem:
        raise InvalidInput(f"{option} {text}: {problem}", hint="use ssh://[user@]HOST[:port]")
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


class RemoteOutput(Value):
    """The output of a remote command. `status` is None if it is not known how it ended: `abandon_reason` says why.

    `noise` is what the remote shell printed before vgpuctl began, None if vgpuctl never began. `is_late`: its deadline
    passed, and it was sent SIGINT.
    """

    status: int | None
    out: str
    err: str
    noise: str | None
    is_late: bool = False
    abandon_reason: str | None = None


class RemoteCommand(Value):
    """What to run: `vgpuctl` with these arguments and this standard input.

    With `program_bytes` Python runs instead: its program is the first `program_bytes` bytes of the standard input.
    """

    arguments: tuple[str, ...]
    stdin: bytes = b""
    program_bytes: int | None = None


class RunControl(Value):
    """How long to wait for a command, where its output goes, and how often the user has stopped it so far.

    `deadline` is a time of the monotonic clock. `report_line` gets each line of stderr, `report_sent` the number of
    bytes of the standard input that were sent.
    """

    deadline: float
    report_line: Callable[[str], None]
    interrupt_count: Callable[[], int]
    report_sent: Callable[[int], None] | None = None


class AgentSocket(Protocol):
    """A connection to the host agent of another host, with the methods of a socket that http.client uses."""

    def sendall(self, data: bytes) -> None:
        """Send bytes."""

    def settimeout(self, seconds: float | None) -> None:
        """Set how long one read or write may take."""

    def shutdown(self, how: int) -> None:
        """End both directions: who waits for bytes gets none."""

    def makefile(self, mode: str) -> BufferedReader:
        """Return the bytes of an answer as a file. Its reads raise Interrupted and DeadlineExceeded."""

    def error_line(self) -> str:
        """Return why the program there has ended, as it says itself; nothing if it says nothing."""

    def close(self) -> None:
        """Close the connection."""


class Session(Protocol):
    """A login at another host, as `user`."""

    user: str

    def run(self, command: RemoteCommand, control: RunControl) -> RemoteOutput:
        """Run the command there and return when it has ended.

        It is sent SIGINT at the deadline, and whenever `interrupt_count` has grown. If it does not end after that, the
        output is returned without a status.

        Raises:
            Unreachable: the connection broke before it began.
        """

    def dial(self, control: RunControl | None = None) -> AgentSocket:
        """Return a connection to the host agent there, by its `vgpuctl agent dial`; the user's rights are what count.

        Whether the agent answers shows the first answer. `control`: what ends reads; None: nothing.

        Raises:
            Unreachable: the connection of the login broke.
        """

    def close(self) -> None:
        """Log out."""


class AgentLogin(Protocol):
    """The host agent of another host, through a login there."""

    def find_problem(self) -> str | None:
        """Return why no agent answers there; None if one does."""


Connect = Callable[[Target, float], Session]
"""A function that logs in to a host and returns the login. Its deadline is a time of the monotonic clock.

Raises:
    Unreachable: the host does not answer.
    HostKeyRefused: its host key changed or is unknown.
    HostCannot: it refuses the login, or has no SSH algorithm in common; the fact `check` says which.
    InvalidInput: ssh_config cannot be parsed.
"""
