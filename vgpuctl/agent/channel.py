# SPDX-License-Identifier: Apache-2.0
"""Requests to an agent and their answers, on connections of their own or on some that wait for the next request."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from vgpuctl.agent.connection import AgentConnection, AnswerLimits, Dial
from vgpuctl.errors import Unreachable

IDLE_SECONDS = 100.0
"""So long an idle connection is kept for a next request; the agent closes it after 120."""
MAX_IDLE = 4


class AnswerLost(Unreachable):
    """A request was sent, and its answer did not arrive."""


class IdleConnections:
    """Connections to one agent that wait for the next request. Threads share them.

    Each connection to an agent of another host is a channel of SSH and a process there: to begin one takes longer than
    most requests.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[float, AgentConnection]] = []

    def take(self) -> AgentConnection | None:
        """Return one that has served before, the latest; None if there is none. The agent may have closed it."""
        with self._lock:
            while self._idle:
                since, connection = self._idle.pop()
                if time.monotonic() < since + IDLE_SECONDS:
                    return connection
                connection.close()
        return None

    def keep(self, connection: AgentConnection) -> None:
        """Keep a connection whose answer was read, unless there are enough."""
        with self._lock:
            if len(self._idle) < MAX_IDLE:
                self._idle.append((time.monotonic(), connection))
                return
        connection.close()

    def close(self) -> None:
        """Close all."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()


class AgentChannel:
    """What asks one agent. `idle`: where connections wait for the next request; None: each request has one."""

    def __init__(self, dial: Dial, limits: AnswerLimits, idle: IdleConnections | None) -> None:
        self._dial = dial
        self._limits = limits
        self._idle = idle

    def ask(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        """Return the status and the object of an answer.

        Raises:
            AnswerLost: it did not arrive.
            Unreachable: the agent does not answer.
        """
        used = None if self._idle is None else self._idle.take()
        if used is not None:
            with suppress(AnswerLost):  # the agent closed it meanwhile; a change has a key, and is not done twice
                return self._exchange(used, method, path, body, headers)
        return self._exchange(AgentConnection(self._dial), method, path, body, headers)

    def _exchange(
        self, connection: AgentConnection, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, dict[str, Any]]:
        """Send a request and return its answer; then close the connection, or keep it."""
        last = {} if self._idle is not None else {"Connection": "close"}
        is_whole = False
        try:
            connection.request(method, path, body, {**last, **headers})
            response = connection.getresponse()
            answer = self._limits.parse(response.read(self._limits.answer_bytes))
            is_whole = response.isclosed() and not response.will_close
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            raise AnswerLost(
                f"the host agent's answer to {method} {path} did not arrive: {error}",
                hint="systemctl status vgpuctl-agent; vgpuctl log shows what was done",
            ) from error
        finally:
            if is_whole and self._idle is not None:
                self._idle.keep(connection)
            else:
                connection.close()
        if not isinstance(answer, dict):
            raise AnswerLost(f"the host agent answered {method} {path} with something that is no object")
        return response.status, answer
