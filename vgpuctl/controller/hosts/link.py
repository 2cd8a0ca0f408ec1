# SPDX-License-Identifier: Apache-2.0
"""A connection to a host's agent: to a socket of this machine, or by SSH to `vgpuctl agent dial` on the host.

    link = HostLink("gpu01", "ssh://fleet@gpu01.example.org", host_key="ssh-ed25519 SHA256:...")
    link.identity()
    link.host(fleet=FleetRequest(fence, mark)).refresh_vm("office-001")

One login serves all requests of a host; threads share it, and a few channels that wait for the next request. A login
that broke is made again by the next request.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from vgpuctl.agent.channel import AgentChannel, AnswerLost, IdleConnections
from vgpuctl.agent.client import AgentHost
from vgpuctl.agent.connection import LOCAL_AGENT, REMOTE_LIMITS, SshAgent, dial_socket
from vgpuctl.agent.image_client import ImageClient
from vgpuctl.controller.model import AgentFacts
from vgpuctl.errors import InvalidInput, Unreachable
from vgpuctl.model.agent_service import SOCKET_PATH
from vgpuctl.model.outcome import CallSettings, never_cancelled

if TYPE_CHECKING:
    import socket

    from vgpuctl.model.desktop import Fence, FleetRequest, FleetStatus
    from vgpuctl.remote.session import AgentSocket
    from vgpuctl.remote.ssh_session import SshSession

LOCAL_ADDRESS = "local"
KEY_OPTIONS = 'command="vgpuctl agent dial",restrict'
"""What a host's authorized_keys has before the controller's key."""
LOGIN_SECONDS = 20.0
"""A login by SSH takes at most this long."""
SESSION_SECONDS = 10 * 365 * 86400.0
WAIT_SECONDS = 120.0
"""So long an operation waits for another vgpuctl on the host, or for a guest that shuts down."""


def check_address(address: str) -> str:
    """Return the address of a host's agent: `local`, `agent:/PATH/OF/SOCKET` or `ssh://[USER@]HOST[:PORT]`.

    Raises:
        InvalidInput: it is none.
    """
    if address == LOCAL_ADDRESS or address.startswith(f"{LOCAL_AGENT}:/"):
        return address
    if not address.startswith("ssh://"):
        raise InvalidInput(
            f"{address!a} is not the address of a host agent",
            hint="use local, ssh://USER@HOST[:PORT], or agent: with an absolute path: agent:/PATH/OF/agent.sock",
        )
    from vgpuctl.remote.session import parse_url

    parse_url(address)
    return address


def facts_of(seen: FleetStatus) -> AgentFacts:
    """Return what a host said it is, as the database has it."""
    return AgentFacts(seen.machine_id, seen.boot_id, seen.driver, seen.agent_version)


class HostLink:
    """The agent of one host. `host_key`: the SSH key that it must have; None: the one that known_hosts has."""

    def __init__(self, name: str, address: str, host_key: str | None = None) -> None:
        self.name = name
        self.address = check_address(address)
        self._host_key = host_key
        self._lock = threading.Lock()
        self._session: SshSession | None = None
        self._idle = IdleConnections()

    @property
    def _is_remote(self) -> bool:
        return self.address.startswith("ssh://")

    @property
    def host_key(self) -> str | None:
        """The key that the host showed at the present login, or that it must have."""
        session = self._session
        return self._host_key if session is None or session.host_key is None else session.host_key

    def host(
        self,
        fleet: FleetRequest | None = None,
        cancelled: Callable[[], bool] = never_cancelled,
        *,
        key: str | None = None,
    ) -> AgentHost:
        """Return the host, for calls; `fleet`: what changes carry; `key`: of one change, which is made once with it.

        It needs no close: the login is this link's.
        """
        settings = CallSettings(
            wait_seconds=WAIT_SECONDS, cancelled=cancelled, command_line=(), fleet=fleet, request_key=key
        )
        name = self.address if self._is_remote else LOCAL_AGENT
        return AgentHost(self.dial, settings, name, idle=self._idle)

    def images(self, fence: Fence) -> ImageClient:
        """Return the images of the host, for its holder."""
        return ImageClient(AgentChannel(self.dial, REMOTE_LIMITS, self._idle), fence)

    def read_fleet(self) -> FleetStatus:
        """Return what the host says it is, and whom it obeys.

        Raises:
            VgpuctlError: as `host`'s calls; Unreachable: the key does not reach an agent, and why.
        """
        try:
            return self.host().read_fleet()
        except AnswerLost:
            if not self._is_remote:
                raise
            problem = SshAgent(self._login()).find_problem()
            if problem is None:
                raise
            raise Unreachable(
                f"no host agent answers the controller's key at {self.name}: {problem}",
                hint=f"there: systemctl status vgpuctl-agent; in authorized_keys the key begins with {KEY_OPTIONS}",
            ) from None

    def opens_shell(self) -> bool:
        """Return whether the controller's key can do more on the host than reach its agent.

        Raises:
            VgpuctlError: as `host`'s calls.
        """
        return self._is_remote and self._login().runs_commands()

    def close(self) -> None:
        """Log out; what runs on the connection fails."""
        self._idle.close()
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def dial(self) -> socket.socket | AgentSocket:
        """Return a connection to the agent, which lasts as long as the login.

        Raises:
            Unreachable, HostKeyRefused, HostCannot: the host cannot be reached.
        """
        if self.address == LOCAL_ADDRESS:
            return dial_socket(SOCKET_PATH)()
        if not self._is_remote:
            return dial_socket(self.address.removeprefix(f"{LOCAL_AGENT}:"))()
        return self._login().dial()

    def _login(self) -> SshSession:
        """Return the login, a new one if the former broke; others wait meanwhile."""
        from vgpuctl.remote.session import parse_url
        from vgpuctl.remote.ssh import SshConnector

        with self._lock:
            if self._session is not None and self._session.is_active():
                return self._session
            if self._session is not None:
                self._session.close()
                self._session = None
            connector = SshConnector(self._host_key)
            session = connector(parse_url(self.address), time.monotonic() + LOGIN_SECONDS)
            session.keep_open()
            self._session = session
            return session
