# SPDX-License-Identifier: Apache-2.0
"""Joins stdin and stdout to the agent's socket: the agent's API for who reaches this machine by SSH.

An SSH key with `command="vgpuctl agent dial",restrict` can do nothing else. It imports the standard library alone.
"""

from __future__ import annotations

import os
import select
import socket

CHUNK_BYTES = 1 << 16


def join(path: str, read: int = 0, write: int = 1) -> None:
    """Connect to the socket and carry bytes both ways until the agent closes the connection, or nobody reads.

    Without any input there is no answer to wait for: that is how a command ends that a restricted key turned into this.

    Raises:
        OSError: the agent cannot be reached.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
        agent.connect(path)
        ready = select.poll()
        ready.register(read, select.POLLIN)
        ready.register(agent, select.POLLIN)
        ready.register(write, 0)  # always reported: nobody reads any more
        has_input = False
        while True:
            for descriptor, _ in ready.poll():
                if descriptor == agent.fileno():
                    data = agent.recv(CHUNK_BYTES)
                    if not data:
                        return
                    _write_all(write, data)
                elif descriptor != read:
                    return
                elif data := os.read(read, CHUNK_BYTES):
                    has_input = True
                    agent.sendall(data)
                elif not has_input:
                    return
                else:  # the answer is still to come, and an HTTP server takes a half-closed connection for a closed one
                    ready.unregister(read)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
