# SPDX-License-Identifier: Apache-2.0
"""An agent of a simulated host, in a thread of the test's process, or in a process of its own."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from vgpuctl import library
from vgpuctl.agent import server
from vgpuctl.agent.client import connect
from vgpuctl.agent.guest_helpers import AgentGuestHelpers
from vgpuctl.agent.rights import HostRights
from vgpuctl.agent.snapshot_cache import SnapshotCache
from vgpuctl.agent.usage_sampler import SampledUsage
from vgpuctl.config.agent_metrics import MetricsSpec
from vgpuctl.host.processes import HostClock
from vgpuctl.library import GpuHost
from vgpuctl.model.outcome import CallSettings
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

ROOT = Path(__file__).resolve().parents[2]


class Answer:
    """What the agent answered."""

    def __init__(self, status: int, headers: dict[str, str], text: str) -> None:
        self.status = status
        self.headers = headers
        self.text = text

    @property
    def document(self) -> dict[str, Any]:
        """The JSON object in it."""
        result: dict[str, Any] = json.loads(self.text)
        return result


class RunningAgent:
    """An agent that answers at `path`."""

    def __init__(self, path: str, state: Path, host: str) -> None:
        self.path = path
        self.state = state
        self.host = host

    def dial(self) -> socket.socket:
        """Return a connection to it."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(self.path)
        return connection

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        """Send a request; `body` is JSON, or bytes as they are."""
        connection = http.client.HTTPConnection("agent")
        connection.sock = self.dial()
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection.request(method, path, data, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        answer = Answer(response.status, dict(response.getheaders()), response.read().decode())
        connection.close()
        return answer

    def change(self, call: str, **arguments: object) -> dict[str, Any]:
        """Make a call that changes the host, and return its document when it has ended."""
        begun = self.ask("POST", f"/v1/{call}", arguments)
        assert begun.status == 202, begun.text
        return self.ended(begun.document["id"])

    def ended(self, operation: str) -> dict[str, Any]:
        """Return the document of an operation when it has ended."""
        while True:
            shown = self.ask("GET", f"/v1/operations/{operation}?wait=30").document
            if shown["document"] is not None:
                document: dict[str, Any] = shown["document"]
                return document

    def connect(self, **settings: Any) -> GpuHost:
        """Return the host behind it."""
        return connect(f"agent:{self.path}", **settings)


@contextmanager
def running(
    host: str,
    directory: Path,
    policy: Any = None,
    open_host: Any = None,
    path: str | None = None,
    watch_reads: Callable[[Host], Host] = lambda ports: ports,
    metrics: MetricsSpec | None = None,
    prepare: Callable[[], None] = lambda: None,
) -> Iterator[RunningAgent]:
    """Run an agent of a host in a thread, which calls `prepare` first. `path`: its socket, by default its own."""
    snapshots = SnapshotCache(HostClock())
    ports = library.open_ports(host)
    assert ports.usage is not None
    usage = SampledUsage(ports.usage)
    assert ports.guest_reports is not None
    helpers = AgentGuestHelpers(ports.guest_reports)
    with_helpers = partial(replace, guest_reports=helpers, guest_helpers=helpers)

    def open_reader(settings: CallSettings, clock: HostClock | None) -> GpuHost:
        reads = replace(with_helpers(watch_reads(library.open_ports(host))), snapshots=snapshots, usage=usage)
        return GpuHost(reads, settings, None, open_reader)

    agent = server.Agent(
        open_host=open_host or library.opener(host, adapt=with_helpers),
        open_reader=open_reader,
        ports=replace(with_helpers(ports), snapshots=snapshots),
        snapshots=snapshots,
        policy=policy or HostRights(ports, owner=os.geteuid()),
        state=directory / "state",
        usage=usage,
        helpers=helpers,
        metrics=metrics,
    )
    ready = threading.Event()
    stop: list[Callable[[], None]] = []

    async def serve() -> None:
        event, loop = asyncio.Event(), asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(event.set))
        await server.serve(agent, listening, event, lambda _: ready.set())

    with tempfile.TemporaryDirectory(prefix="agent-") as short:  # a socket's path has at most 107 bytes
        path = path or f"{short}/agent.sock"
        listening = server.bind(path)

        def run() -> None:
            prepare()
            asyncio.run(serve())

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert ready.wait(60)
        try:
            yield RunningAgent(path, directory / "state", host)
        finally:
            stop[0]()
            thread.join(server.STOP_SECONDS + 30)  # it waits so long for what runs
            assert not thread.is_alive()
            if ports.close is not None:
                ports.close()


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    monkeypatch.delenv("VGPUCTL_HOST", raising=False)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[RunningAgent]:
    """An agent of a host with one A100."""
    with running("sim:a100-40", tmp_path) as one:
        yield one


class AgentProcess(RunningAgent):
    """An agent in a process of its own."""

    process: subprocess.Popen[bytes]

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(60)


@contextmanager
def process(host: str, directory: Path) -> Iterator[AgentProcess]:
    """Run an agent in a process; it tells that it is ready as it tells systemd."""
    with (
        tempfile.TemporaryDirectory(prefix="agent-") as short,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified,
    ):
        notified.bind(f"{short}/notify")
        notified.settimeout(60)
        one = AgentProcess(f"{short}/agent.sock", directory / "state", host)
        words = [sys.executable, "-m", "vgpuctl", "--host", host, "agent", "run"]
        words += ["--socket", one.path, "--state", str(one.state)]
        environment = {**os.environ, "NOTIFY_SOCKET": f"{short}/notify", "PYTHONPATH": str(ROOT)}
        one.process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE)
        try:
            while b"READY=1" not in notified.recv(4096):
                pass
            yield one
        finally:
            one.process.kill()
            one.process.communicate()
