# SPDX-License-Identifier: Apache-2.0
"""A network of its own for an agent's thread, in which the addresses of simulated guests are, and servers there."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.agent.conftest import RunningAgent, running

SUBNET = "192.168.122.1/24"
"""In which the simulator's DHCP leases are; each of its addresses is this machine's there."""
_NEW_NETWORK = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class GuestNetwork:
    """The network. `enter_new` is called by the thread that is to be in it."""

    descriptor: int

    def enter_new(self) -> None:
        """Make the network, for the thread that calls this."""
        if _libc.unshare(_NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "unshare")
        for words in (["link", "set", "lo", "up"], ["addr", "add", SUBNET, "dev", "lo"]):
            subprocess.run(["ip", *words], check=True)
        self.descriptor = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    def listen(self, address: str, port: int) -> socket.socket:
        """Return a listening socket in the network."""
        made: list[socket.socket] = []

        def make() -> None:
            if _libc.setns(self.descriptor, _NEW_NETWORK):
                raise OSError(ctypes.get_errno(), "setns")
            made.append(socket.create_server((address, port)))

        thread = threading.Thread(target=make)
        thread.start()
        thread.join(30)
        return made[0]


@contextmanager
def serving(listening: socket.socket, serve: Callable[[socket.socket], None]) -> Iterator[None]:
    """Have a program in a guest serve each connection, in a thread of its own."""

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=_served, args=(connection, serve), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def _served(connection: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    with connection:
        try:
            serve(connection)
        except OSError:
            return


def echo(connection: socket.socket) -> None:
    """Send back what arrives."""
    while data := connection.recv(1 << 16):
        connection.sendall(data)


@contextmanager
def running_with_guests(
    host: str, directory: Path, policy: object = None
) -> Iterator[tuple[RunningAgent, GuestNetwork]]:
    """Run an agent whose guests have a network."""
    network = GuestNetwork()
    with running(host, directory, policy=policy, prepare=network.enter_new) as agent:
        try:
            yield agent, network
        finally:
            os.close(network.descriptor)
