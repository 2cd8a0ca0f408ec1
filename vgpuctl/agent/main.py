# SPDX-License-Identifier: Apache-2.0
"""Starts the agent: its socket, its state directory, the host that it works on; tells systemd how it is."""

from __future__ import annotations

import asyncio
import contextlib
import grp
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from socket import socket

from vgpuctl import library
from vgpuctl.agent import run_directory, server, systemd
from vgpuctl.agent.guest_helpers import AgentGuestHelpers
from vgpuctl.agent.rights import HostRights
from vgpuctl.agent.snapshot_cache import SnapshotCache
from vgpuctl.agent.usage_sampler import SampledUsage
from vgpuctl.config.agent_metrics import MetricsSpec, parse_metrics
from vgpuctl.errors import InvalidInput
from vgpuctl.host.processes import HostClock
from vgpuctl.model.agent_service import IDENTITY_PATH, METRICS_PORT, SOCKET_PATH, STATE_DIRECTORY, VIEWERS_GROUP
from vgpuctl.value import replace

log = logging.getLogger("vgpuctl.agent")


def run(
    host: str,
    *,
    root: str = "/",
    connect: str | None = None,
    path: str | None = None,
    state: str | None = None,
    metrics: str | None = None,
) -> str:
    """Run the agent of a host, named as for `vgpuctl.open_host`, until SIGTERM or SIGINT; return its socket's path.

    `path`: its socket; None: the one that systemd hands over, or SOCKET_PATH. `state`: the directory of its operations.
    `metrics`: `ADDRESS:PORT` where it serves metrics; None: where host.yaml says.

    Raises:
        VgpuctlError: it cannot begin: the host, the socket or the state directory cannot be used, or another one runs.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    snapshots = SnapshotCache(HostClock())
    given_metrics = None if metrics is None else _metrics_option(metrics)
    directory = Path(state or os.environ.get("STATE_DIRECTORY") or STATE_DIRECTORY)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    with server.only_agent(directory):
        listening = _listen(path)
        ports = library.open_ports(host, root=root, connect=connect)
        usage = None if ports.usage is None else SampledUsage(ports.usage)
        helpers = None if ports.guest_reports is None else AgentGuestHelpers(ports.guest_reports)
        with_helpers = partial(replace, guest_reports=helpers, guest_helpers=helpers)
        adapt = partial(with_helpers, snapshots=snapshots, usage=usage, usage_history=ports.usage_history)
        agent = server.Agent(
            open_host=library.opener(host, root=root, connect=connect, adapt=with_helpers),
            open_reader=library.opener(host, root=root, connect=connect, adapt=adapt),
            ports=adapt(ports),
            snapshots=snapshots,
            usage=usage,
            helpers=helpers,
            metrics=given_metrics,
            policy=HostRights(ports, owner=os.geteuid()),
            state=directory,
        )
        socket_path = str(listening.getsockname())
        asyncio.run(_serve(agent, listening))
    return socket_path


def _metrics_option(text: str) -> MetricsSpec:
    """Return where `--metrics` says; only a loopback address: others need the certificates of host.yaml.

    Raises:
        InvalidInput: it is no such address.
    """
    try:
        return parse_metrics({"listen": text})
    except ValueError as error:
        hint = f"vgpuctl agent run --metrics 127.0.0.1:{METRICS_PORT}; set certificates in host.yaml, agent: metrics:"
        raise InvalidInput(f"--metrics {text}: {error}", hint=hint) from error


def _listen(path: str | None) -> socket:
    """Return the listening socket, open to the groups that may use it."""
    passed = systemd.listen_sockets()
    if path is None and passed:
        listening = passed.get(systemd.API_SOCKET_NAME) or next(iter(passed.values()))
        server.check_socket(listening)
    else:
        listening = server.bind(os.path.abspath(path or SOCKET_PATH))
    socket_path = str(listening.getsockname())
    with contextlib.suppress(KeyError):
        viewers = grp.getgrnam(VIEWERS_GROUP).gr_gid
        try:
            run_directory.let_group_connect(socket_path, viewers)
        except OSError as error:
            log.warning("%s: the group %s cannot connect: %s", socket_path, VIEWERS_GROUP, error.strerror)
    if socket_path == SOCKET_PATH:
        run_directory.publish_identity(Path(IDENTITY_PATH))
    return listening


async def _serve(agent: server.Agent, listening: socket) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def end() -> None:
        systemd.notify("STOPPING=1")
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    beating: list[asyncio.Task[None]] = []

    def ready(answers: Callable[[], bool]) -> None:
        systemd.notify("READY=1")
        beating.append(asyncio.create_task(_beat(answers)))

    try:
        await server.serve(agent, listening, stop, ready)
    finally:
        for task in beating:
            task.cancel()


async def _beat(answers: Callable[[], bool]) -> None:
    """Tell systemd that the loop and the sources of events answer, twice in the time after which it restarts us."""
    seconds = systemd.watchdog_seconds()
    while seconds is not None:
        if answers():
            systemd.notify("WATCHDOG=1")
        await asyncio.sleep(seconds / 2)
