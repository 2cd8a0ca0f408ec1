# SPDX-License-Identifier: Apache-2.0
"""Starts the agent: its socket, its state directory, the host that it works on."""

from __future__ import annotations

import asyncio
import logging
import os
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
    socket: str | None = None,
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
    path = os.path.abspath(socket or SOCKET_PATH)
    directory = Path(state or os.environ.get("STATE_DIRECTORY") or STATE_DIRECTORY)
    with server.only_agent(directory):
        listening = server.bind(path)
        asyncio.run(server.serve(open_host, open_reader, looks, listening, directory, server.OwnerPolicy()))
    return path
