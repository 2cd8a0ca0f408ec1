# SPDX-License-Identifier: Apache-2.0
"""Connections to an agent: to its socket on this machine, or through SSH, where `vgpuctl agent dial` joins them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

from vgpuctl.agent.http_client import HttpAnswer, HttpConnection
from vgpuctl.errors import InvalidInput, Refused, Unreachable, VgpuctlError
from vgpuctl.model.agent_service import SOCKET_PATH

Dial = Callable[[], socket.socket]
"""Returns a new connection to the agent: a socket, or what behaves like one."""

LOCAL_AGENT = "agent"
SSH_SECONDS = 365 * 86400.0
"""A login at another host may last as long as the program that uses it."""
ANSWER_SECONDS = 660.0
"""The agent sends something within this time: a read of a host ends long before, and a stream sends beats."""
MAX_LINE_BYTES = 64 << 20
MAX_FIELDS = 16


class AgentConnection(HttpConnection):
    """HTTP on a connection that `dial` makes."""

    def __init__(self, dial: Dial) -> None:
        super().__init__("agent")
        self._dial = dial

    def connect(self) -> None:
        """Connect."""
        self.sock = self._dial()
        self.sock.settimeout(ANSWER_SECONDS)


def dialer(name: str) -> tuple[Dial, Callable[[], None] | None]:
    """Return what connects to the agent of this name, see `client.connect`, and what ends a login, if there is one.

    Raises:
        InvalidInput: it is no such name.
        Unreachable, HostKeyRefused: the other host cannot be reached.
    """
    if name == LOCAL_AGENT:
        return dial_socket(SOCKET_PATH), None
    if name.startswith(f"{LOCAL_AGENT}:/"):
        return dial_socket(name.removeprefix(f"{LOCAL_AGENT}:")), None
    if not name.startswith("ssh://"):
        raise InvalidInput(
            f"{name} is not the name of a host agent", hint="use agent, agent:/PATH/OF/SOCKET, or ssh://[USER@]HOST"
        )
    from vgpuctl.remote.session import parse_url
    from vgpuctl.remote.ssh import SshConnector

    session = SshConnector()(parse_url(name), time.monotonic() + SSH_SECONDS)
    return session.dial, session.close


def dial_socket(path: str) -> Dial:
    """Return what connects to an agent's socket on this machine."""

    def dial() -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(path)
        except OSError as error:
            connection.close()
            raise _unreachable(path, error) from error
        return connection

    return dial


def _unreachable(path: str, error: OSError) -> VgpuctlError:
    if isinstance(error, PermissionError):
        return Refused(
            f"the host agent's socket {path} is for members of the group vgpuctl",
            hint="an administrator adds you: usermod -aG vgpuctl USER; it counts from your next log-in",
            path=path,
        )
    return Unreachable(
        f"the host agent does not answer at {path}: {error.strerror or error}",
        hint="systemctl status vgpuctl-agent; sudo vgpuctl works without it",
        path=path,
        errno=error.errno,
    )


def read_stream(response: HttpAnswer) -> Iterator[dict[str, str] | None]:
    """Yield the fields of each server-sent event; None for a beat, which says that the other side lives.

    Raises:
        ValueError: it is no such stream.
        OSError: the connection broke.
    """
    fields: dict[str, str] = {}
    while line := response.readline(MAX_LINE_BYTES):
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            fields[name] = value
            if len(fields) > MAX_FIELDS:
                raise ValueError(f"an event with more than {MAX_FIELDS} fields")
            continue
        yield fields if "event" in fields else None
        fields = {}
