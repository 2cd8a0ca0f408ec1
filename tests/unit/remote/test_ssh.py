# SPDX-License-Identifier: Apache-2.0
"""Servers that begin like SSH servers and then stop responding."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from vgpuctl.errors import Unreachable
from vgpuctl.remote.login import resolve_login
from vgpuctl.remote.ssh import SshConnector
from vgpuctl.remote.target import Target


@pytest.mark.parametrize("greeting", [b"SSH-2.0-OpenSSH_9.9\r\n", b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_server_that_never_agrees_on_a_session_cannot_be_reached(greeting):
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            taken, _ = server.accept()
            with taken:
                taken.sendall(greeting)
                over.wait(60)

        threading.Thread(target=greet, daemon=True).start()
        try:
            target = Target("gpu-01", "127.0.0.1", server.getsockname()[1], "root")
            with pytest.raises(Unreachable) as failed:
                SshConnector()(target, time.monotonic() + 0.5)
        finally:
            over.set()
    assert "gpu-01: 127.0.0.1 port" in failed.value.message


def test_short_messages_are_sent_at_once():
    """Without TCP_NODELAY each waits until the server's delayed acknowledgement of the one before it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = Target("gpu-01", "127.0.0.1", server.getsockname()[1], "root")
        with SshConnector()._socket(target, resolve_login(target, {}), time.monotonic() + 60, [], 1) as way:
            assert way.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
