# SPDX-License-Identifier: Apache-2.0
"""Starts the agent: its socket, its state directory, the host that it works on."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from pathlib import Path

from vgpuctl import library
from vgpuctl.agent import server
from vgpuctl.agent.looks import Looks
from vgpuctl.agent.protocol import SOCKET_PATH, STATE_DIRECTORY
from vgpuctl.host.processes import HostClock


def run(
    host: str,
    *,
    root: str = "/",
    connect: str | None = None,
    path: str | None = None,
    state: str | None = None,
) -> str:
    """Run the agent of a host, named as for `vgpuctl.open_host`, until it is told to stop; return its socket's path.

    Raises:
        VgpuctlError: it cannot begin: the host, the socket or the state directory cannot be used, or another one runs.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    looks = Looks(HostClock())
    open_host = library.opener(host, root=root, connect=connect)
    open_reader = library.opener(host, root=root, connect=connect, looks=looks)
    socket_path = os.path.abspath(path or SOCKET_PATH)
    directory = Path(state or os.environ.get("STATE_DIRECTORY") or STATE_DIRECTORY)
    with server.only_agent(directory):
        listening = server.bind(socket_path)
        agent = server.Agent(open_host, open_reader, looks, server.OwnerPolicy(), directory)
        asyncio.run(_serve(agent, listening))
    return socket_path


async def _serve(agent: server.Agent, listening: socket.socket) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await server.serve(agent, listening, stop)
