# SPDX-License-Identifier: Apache-2.0
"""Servers that begin like SSH servers and then stop responding, and the program of ProxyCommand as a connection."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time

import pytest

from vgpuctl.errors import InvalidInput, Unreachable
from vgpuctl.remote.session import Target
from vgpuctl.remote.ssh import ProxyProcess, SshConnector, load_key, open_socket
from vgpuctl.remote.ssh_config import resolve_login

GREETING = b"SSH-2.0-OpenSSH_9.9\r\n"
KEXINIT = b"\x14" + bytes(16) + b"\x00\x00\x00\x02\xff\xff"
"""Message 20 of RFC 4253, with a list of algorithms that is not text."""
PADDED = bytes([4]) + KEXINIT + bytes(4)


@pytest.mark.parametrize(
    "greeting",
    [GREETING, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", GREETING + len(PADDED).to_bytes(4, "big") + PADDED],
)
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


@pytest.mark.parametrize("host", ["fe80::1%nowhere", "gpu..example", "a" * 64])
def test_an_unknown_name_is_told_apart_from_a_host_that_is_off(host):
    target = Target("gpu-01", host, 22, "root")
    with pytest.raises(Unreachable, match="port 22 cannot be reached") as failed:
        open_socket(target, resolve_login(target, {}), 10)
    assert failed.value.hint == f"getent hosts {host}; check the name"


@pytest.mark.parametrize("line", ['Match host "gpu', 'Host "gpu', "Match host", "Port"])
def test_an_ssh_config_that_cannot_be_parsed_is_refused(tmp_path, monkeypatch, line):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text(f"{line}\n")
    with pytest.raises(InvalidInput, match="ssh_config cannot be parsed"):
        SshConnector()


@pytest.mark.parametrize(
    ("key_type", "form"), [("ed25519", "RFC4716"), ("ecdsa", "RFC4716"), ("ecdsa", "PEM"), ("ecdsa", "PKCS8")]
)
def test_a_key_file_with_a_passphrase_is_told_apart_from_a_damaged_one(tmp_path, key_type, form):
    for name, passphrase in (("locked", "secret"), ("open", "")):
        words = ["-t", key_type, "-m", form, "-N", passphrase, "-f", tmp_path / name]
        subprocess.run(["ssh-keygen", "-q", *words], check=True)
    assert load_key(str(tmp_path / "locked")) == "has a passphrase: add it to the agent with ssh-add"
    assert isinstance(load_key(str(tmp_path / "open")), str) is (form == "PKCS8")  # paramiko does not read PKCS8
    (tmp_path / "damaged").write_bytes((tmp_path / "open").read_bytes()[:100])
    assert load_key(str(tmp_path / "damaged")).startswith("is not a key that paramiko can read: ")
    assert load_key(str(tmp_path / "missing")) is None


def test_short_messages_are_sent_at_once():
    """Without TCP_NODELAY each waits until the server's delayed acknowledgement of the one before it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = Target("gpu-01", "127.0.0.1", server.getsockname()[1], "root")
        with open_socket(target, resolve_login(target, {}), 60) as way:
            assert way.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


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
