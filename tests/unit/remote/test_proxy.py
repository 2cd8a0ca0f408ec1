# SPDX-License-Identifier: Apache-2.0
"""The program of ProxyCommand as a connection."""

from __future__ import annotations

import os

import pytest

from vgpuctl.remote.proxy import ProxyProcess


def output_of(line: str) -> bytes:
    proxy = ProxyProcess(line)
    try:
        proxy.connection.settimeout(10)
        result = b""
        while piece := proxy.connection.recv(1000):
            result += piece
        return result
    finally:
        proxy.close()


def test_bytes_go_there_and_back():
    proxy = ProxyProcess("cat")
    try:
        proxy.connection.settimeout(10)
        proxy.connection.sendall(b"SSH-2.0-x\r\n")
        assert proxy.connection.recv(100) == b"SSH-2.0-x\r\n"
    finally:
        proxy.close()


def test_ctrl_c_at_the_terminal_does_not_reach_it():
    session = int(output_of("""sh -c 'cut -d" " -f6 /proc/$$/stat'"""))
    assert session != os.getsid(0)


def test_its_end_is_the_connections_end_whatever_it_complains():
    assert output_of("sh -c 'yes no-such-host | head -c 1000000 >&2; exit 1'") == b""


@pytest.mark.parametrize("line", ["/nowhere/at-all %h", "nc 'open quote"])
def test_what_cannot_be_started_says_so(line):
    with pytest.raises((OSError, ValueError)):
        ProxyProcess(line)
