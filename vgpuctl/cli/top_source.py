# SPDX-License-Identifier: Apache-2.0
"""Where `vgpuctl top` reads: from the host agent if one runs, else from the host itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from vgpuctl.errors import Unreachable
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.agent.client import AgentHost
    from vgpuctl.cli.global_options import Settings
    from vgpuctl.library import GpuHost
    from vgpuctl.model.event import Event
    from vgpuctl.model.outcome import QueryResult
    from vgpuctl.model.results.usage import UsageResult
    from vgpuctl.model.usage import ProcessUse

Data = TypeVar("Data")

OWN, AGENT = "own sample", "agent"
MAX_EVENTS = 200


class Reading(Value):
    """One look. `source`: OWN or AGENT. `events`: those that the agent keeps, the newest last; None without an agent.

    `warnings`: what could not be read.
    """

    usage: UsageResult
    source: str
    events: tuple[Event, ...] | None
    warnings: tuple[str, ...] = ()


class UsageSource:
    """Reads the use of one host. `agent`: None where no agent can answer; `own`: None where only the agent may answer.

    An agent that does not answer is tried again at the next look.
    """

    def __init__(self, agent: AgentHost | None, own: Callable[[], GpuHost] | None) -> None:
        self._agent = agent
        self._open_own = own
        self._own: GpuHost | None = None
        self._events: tuple[Event, ...] = ()

    def read(self) -> QueryResult[UsageResult]:
        """Return the use of the host.

        Raises:
            VgpuctlError: it cannot be read.
        """
        return self._ask(lambda host: host.top())[0]

    def sample(self) -> Reading:
        """Return the use of the host, and the agent's events.

        Raises:
            VgpuctlError: it cannot be read.
        """
        result, source = self._ask(lambda host: host.top())
        events = None
        if source == AGENT:
            with suppress(Unreachable):  # it answered just now: the next look tells
                events = self._read_events()
        return Reading(result.data, source, events, result.warnings)

    def read_processes(self, vm: str) -> tuple[ProcessUse, ...]:
        """Return the processes in a VM that use its vGPUs.

        Raises:
            VgpuctlError: they cannot be read, or they are another account's.
        """
        return self._ask(lambda host: host.guest_processes(vm))[0].data

    def close(self) -> None:
        """Close what was opened."""
        if self._own is not None:
            self._own.close()

    def _ask(self, call: Callable[[GpuHost], QueryResult[Data]]) -> tuple[QueryResult[Data], str]:
        if self._agent is not None:
            try:
                return call(self._agent), AGENT
            except Unreachable:
                if self._open_own is None:
                    raise
        if self._own is None:
            assert self._open_own is not None
            self._own = self._open_own()
        return call(self._own), OWN

    def _read_events(self) -> tuple[Event, ...]:
        assert self._agent is not None
        after = self._events[-1].id if self._events else None
        self._events = (*self._events, *self._agent.read_events(after).data)[-MAX_EVENTS:]
        return self._events


def open_source(settings: Settings, cancelled: Callable[[], bool]) -> UsageSource:
    """Return where to read the host that the global options name."""
    from vgpuctl import library
    from vgpuctl.agent.client import AgentHost
    from vgpuctl.cli import run
    from vgpuctl.model.agent_service import SOCKET_PATH

    if _is_this_host(settings) and os.access(SOCKET_PATH, os.R_OK | os.W_OK):
        return UsageSource(
            run.open_agent(settings, cancelled=cancelled),
            lambda: library.open_host(settings.host, wait_seconds=settings.wait, cancelled=cancelled),
        )
    host = run.open_host(settings, cancelled=cancelled)
    return UsageSource(host, None) if isinstance(host, AgentHost) else UsageSource(None, lambda: host)


def _is_this_host(settings: Settings) -> bool:
    from vgpuctl.cli.run import LOCAL

    is_remote = settings.is_remote or settings.agent_route is not None
    return settings.host == LOCAL and not is_remote and settings.root == "/" and settings.connect is None
