# SPDX-License-Identifier: Apache-2.0
"""Connections to an agent: to its socket on this machine, or through SSH, where `vgpuctl agent dial` joins them."""

from __future__ import annotations

import http.client
import json
import shlex
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from vgpuctl.agent.protocol import API_VERSION, EVENT_STREAM
from vgpuctl.errors import InvalidInput, Refused, Unreachable, VgpuctlError
from vgpuctl.model.agent_service import SOCKET_PATH
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.remote.session import AgentSocket, RunControl, Session

Dial = Callable[[], "socket.socket | AgentSocket"]
"""Returns a new connection to the agent: a socket, or what behaves like one."""

LOCAL_AGENT = "agent"
SSH_SECONDS = 365 * 86400.0
"""A login at another host may last as long as the program that uses it."""
ANSWER_SECONDS = 660.0
"""The agent answers within this time: a read of a host ends long before."""
STREAM_SECONDS = 60.0
"""A stream sends a beat every ten seconds: so long without one, and the connection is dead."""
PROBE_SECONDS = 20.0
"""So long an agent of another host may take to say that it is there."""
MAX_PROBE_BYTES = 64 << 10
MAX_PROBLEM = 300
SPARE_SECONDS = 3.0
"""So long the connection that found an agent is used for a call."""
MAX_FIELDS = 16


class AgentConnection(http.client.HTTPConnection):
    """HTTP on a connection that `dial` makes, for one request at a time."""

    def __init__(self, dial: Dial) -> None:
        self._answer: http.client.HTTPResponse | None = None
        super().__init__("agent")
        self._dial = dial

    def connect(self) -> None:
        """Connect."""
        dialled: Any = self._dial()
        self.sock = dialled
        self.sock.settimeout(ANSWER_SECONDS)

    def getresponse(self) -> http.client.HTTPResponse:
        """Return the answer; `close` closes it, too."""
        self._answer = super().getresponse()
        return self._answer

    def close(self) -> None:
        """Close the connection."""
        super().close()
        if self._answer is not None:
            self._answer.close()

    def open_stream(self, path: str, last: str | None) -> http.client.HTTPResponse:
        """Return the answer to a request for server-sent events, those after the event `last`.

        Raises:
            OSError, http.client.HTTPException: the connection broke.
        """
        headers = {"Accept": EVENT_STREAM, "Connection": "close"} | ({} if last is None else {"Last-Event-ID": last})
        self.request("GET", path, headers=headers)
        self.sock.settimeout(STREAM_SECONDS)
        return self.getresponse()


class AnswerLimits(Value):
    """How long an answer and a line of a stream may be, and how many commas they may have.

    A parsed list takes 20 times the memory of its text.
    """

    answer_bytes: int = 256 << 20
    line_bytes: int = 64 << 20
    commas: int = 1 << 30

    def parse(self, text: bytes | str) -> Any:
        """Return JSON as a value.

        Raises:
            ValueError, RecursionError: it is not JSON, or has too many values.
        """
        count = text.count(b",") if isinstance(text, bytes) else text.count(",")
        if count > self.commas:
            raise ValueError(f"it has more than {self.commas:,} values")
        return json.loads(text)


LOCAL_LIMITS = AnswerLimits()
"""The agent here is root's own."""
REMOTE_LIMITS = AnswerLimits(16 << 20, 16 << 20, 1_000_000)
"""As for a command there (`remote.session`, `remote.reply`): a list of 1,000 VMs takes 2 MiB."""


class SshAgent:
    """The agent of another host, through a login there. The connection that found it serves the first call, too."""

    def __init__(self, session: Session, control: RunControl | None = None) -> None:
        self.session = session
        self._control = control
        self._spares: list[tuple[float, AgentSocket]] = []

    def dial(self) -> AgentSocket:
        """Return a connection to it.

        Raises:
            Unreachable: the connection of the login broke.
        """
        with suppress(IndexError):
            since, spare = self._spares.pop()
            if time.monotonic() < since + SPARE_SECONDS:
                return spare
            spare.close()
        return self.session.dial(self._control)

    def find_problem(self) -> str | None:
        """Return why it does not answer, or refuses the user; None if it answers.

        Raises:
            Unreachable: the connection of the login broke.
            Interrupted, DeadlineExceeded: see `session.AgentSocket`.
        """
        dialled = self.session.dial(self._control)
        connection = AgentConnection(lambda: dialled)
        try:
            connection.request("GET", f"/{API_VERSION}")
            connection.sock.settimeout(PROBE_SECONDS)
            response = connection.getresponse()
            answer = json.loads(response.read(MAX_PROBE_BYTES))
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            dialled.close()
            return dialled.error_line() or str(error) or type(error).__name__
        except BaseException:
            dialled.close()
            raise
        if response.status == 200 and isinstance(answer, dict) and "rights" in answer:
            self._spares.append((time.monotonic(), dialled))
            return None
        dialled.close()
        failure = answer.get("error") if isinstance(answer, dict) else None
        message = failure.get("message") if isinstance(failure, dict) else None
        return str(message or f"it answers with HTTP's status {response.status}")[:MAX_PROBLEM]

    def close(self) -> None:
        """Log out."""
        self.session.close()


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

    agent = SshAgent(SshConnector()(parse_url(name), time.monotonic() + SSH_SECONDS))
    return agent.dial, agent.close


def show_operation_command(name: str, operation: str) -> str:
    """Return the command line that shows an operation of the agent of this name, see `client.connect`."""
    path = f"/{API_VERSION}/operations/{operation}"
    if not name.startswith("ssh://"):
        socket_path = name.removeprefix(f"{LOCAL_AGENT}:") if name.startswith(f"{LOCAL_AGENT}:") else SOCKET_PATH
        return f"curl --unix-socket {shlex.quote(socket_path)} http://agent{path}"
    return f"printf 'GET {path} HTTP/1.0\\r\\n\\r\\n' | ssh {shlex.quote(name)} vgpuctl agent dial"


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


def read_stream(response: http.client.HTTPResponse, line_bytes: int) -> Iterator[dict[str, str] | None]:
    """Yield the fields of each server-sent event; None for a beat, which says that the other side lives.

    `line_bytes`: how long a line may be.

    Raises:
        ValueError: it is no such stream.
        OSError: the connection broke.
    """
    fields: dict[str, str] = {}
    while line := response.readline(line_bytes):
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            fields[name] = value
            if len(fields) > MAX_FIELDS:
                raise ValueError(f"an event with more than {MAX_FIELDS} fields")
            continue
        yield fields if "event" in fields else None
        fields = {}
