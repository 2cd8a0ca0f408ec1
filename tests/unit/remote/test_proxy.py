# SPDX-License-Identifier: Apache-2.0
"""ProxyCommand's program as a connection."""

from __future__ import annotations

import os

import pytest

from vgpuctl.remote.proxy import Proxy


def said(line: str) -> bytes:
    proxy = Proxy(line)
    try:
        proxy.way.settimeout(10)
        found = b""
        while piece := proxy.way.recv(1000):
            found += piece
        return found
    finally:
        proxy.close()


def test_bytes_go_there_and_back():
    proxy = Proxy("cat")
    try:
        proxy.way.settimeout(10)
        proxy.way.sendall(b"SSH-2.0-x\r\n")
        assert proxy.way.recv(100) == b"SSH-2.0-x\r\n"
    finally:
        proxy.close()


def test_ctrl_c_at_the_terminal_does_not_reach_it():
    session = int(said("""sh -c 'cut -d" " -f6 /proc/$$/stat'"""))
    assert session != os.getsid(0)


def test_its_end_is_the_connections_end_whatever_it_complains():
    assert said("sh -c 'yes no-such-host | head -c 1000000 >&2; exit 1'") == b""


@pytest.mark.parametrize("line", ["/nowhere/at-all %h", "nc 'open quote"])
def test_what_cannot_be_started_says_so(line):
    with pytest.raises((OSError, ValueError)):
        Proxy(line)
