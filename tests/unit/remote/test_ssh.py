# SPDX-License-Identifier: Apache-2.0
"""SSH: servers that stop responding, ProxyCommand, the line for a remote shell, and endless output."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import threading
import time

import paramiko
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.errors import InvalidInput, Unreachable
from vgpuctl.remote import ssh_session
from vgpuctl.remote.session import RemoteCommand, RunControl, Target
from vgpuctl.remote.ssh import ProxyProcess, SshConnector, load_key, open_socket
from vgpuctl.remote.ssh_config import resolve_login
from vgpuctl.remote.ssh_session import SshSession

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


PIECE = 1 << 16
BEGUN = b"vgpuctl-over-ssh 1234\n"


class Endless:
    """A transport and its channel: the remote command prints forever, without a line end."""

    def __init__(self, stream: str, fail_at: int, piece: bytes = b"x" * PIECE, begun: bytes = b"") -> None:
        self.stream = stream
        self.piece = piece
        self.begun = begun
        self.reads = 0
        self.fail_at = fail_at
        self.window = 1000
        self.taken = b""
        self.shut = False
        self.eof_received = self.closed = False
        self.ends = os.pipe()

    def open_session(self) -> Endless:
        return self

    def is_active(self) -> bool:
        return True

    def exec_command(self, line: str) -> None:
        self.line = line

    def shutdown_write(self) -> None:
        self.shut = True

    def send_ready(self) -> bool:
        return self.window > 0

    def send(self, piece: bytes) -> int:
        assert self.window, "paramiko waits here, and hears no stop"
        taken = min(len(piece), self.window)
        self.window -= taken
        self.taken += piece[:taken]
        return taken

    def close(self) -> None:
        for end in self.ends:
            os.close(end)

    def fileno(self) -> int:
        return self.ends[0]

    def exit_status_ready(self) -> bool:
        return False

    def recv_ready(self) -> bool:
        return self.stream == "out"

    def recv_stderr_ready(self) -> bool:
        return self.stream == "err"

    def recv(self, size: int) -> bytes:
        self.reads += 1
        assert self.reads < self.fail_at, "it reads and reads, and hears no stop"
        begun, self.begun = self.begun, b""
        return begun or self.piece[:size]

    recv_stderr = recv


class Begun(Endless):
    """A connection whose command says that it has begun, and nothing else."""

    def recv_ready(self) -> bool:
        return self.reads == 0


LIST = RemoteCommand(("list-gpus",))


def run(played, command=LIST, stops=lambda: 0, report_line=lambda line: None, sent=None):
    """Run a command over a connection that is played, until `stops` gives a number."""
    until = time.monotonic() + 60
    session = SshSession("gpu-01", "root", played, until, lambda: None)
    try:
        return session.run(command, RunControl(until, report_line, stops, sent))
    finally:
        session.close()


@pytest.mark.parametrize("stream", ["out", "err"])
def test_output_without_an_end_hinders_no_stop(stream):
    played = Endless(stream, 1000)
    ran = run(played, stops=lambda: 3 if played.reads > 9 else 0)
    assert ran.abandon_reason == "it was not waited for"


@pytest.mark.parametrize("line", [b"x" * PIECE, b"y\n" * (PIECE // 2)])
def test_endless_stderr_is_reported_up_to_a_limit(line):
    played = Endless("err", 10_000, line)
    reported: list[str] = []
    run(played, stops=lambda: 3 if played.reads > 200 else 0, report_line=reported.append)
    assert played.reads > 200
    assert len(reported) <= 10_001
    assert PIECE < sum(map(len, reported)) <= (1 << 20) + 100 or len(reported) == 10_001
    assert reported[-1] == "further output on stderr is not shown"


@pytest.mark.parametrize(
    ("begun", "reads", "why"),
    [(b"", 18, "it printed more than 1 MiB before vgpuctl started"), (BEGUN, 300, "it printed more than 16 MiB")],
)
def test_output_without_an_end_is_given_up_before_it_fills_the_memory(begun, reads, why):
    ran = run(Endless("out", reads, begun=begun))
    assert (ran.status, ran.abandon_reason) == (None, why)


def test_a_process_id_that_is_none_does_not_begin_the_answer():
    assert ssh_session.split_output(b"vgpuctl-over-ssh " + b"1" * 5000 + b"\n") is None
    assert ssh_session.split_output(BEGUN + b"{}") == (b"", 1234, b"{}")


def test_unread_stdin_does_not_block_a_stop_and_progress_is_reported():
    played = Begun("none", 2, begun=BEGUN)
    sent: list[int] = []
    observations: list[int] = []

    def stops() -> int:
        observations.append(1)
        return 3 if len(observations) > 10 else 0

    ran = run(played, RemoteCommand((), b"y" * 5000, 10), stops, sent=sent.append)
    assert (ran.abandon_reason, sent) == ("it was not waited for", [1000])
    assert (played.taken, played.shut) == (b"y" * 1000, False)


def test_no_standard_input_is_sent_to_what_is_not_the_command():
    """A restricted key makes `vgpuctl agent dial` of it: the agent would take a file for a request."""
    played, observations = Endless("none", 1), []
    run(played, RemoteCommand(("apply",), b"DELETE /v1"), lambda: 3 * (observations.append(1) or len(observations) > 5))
    assert (played.taken, played.shut) == (b"", False)
    run(played := Endless("none", 1), LIST, lambda: 3 if played.shut else 0)
    assert played.shut


def test_all_of_standard_input_is_sent_and_then_closed():
    played = Begun("none", 2, begun=BEGUN)
    played.window = 5000
    run(played, RemoteCommand(("apply",), b"z" * 5000), lambda: 3 if played.shut else 0)
    assert (played.taken, played.shut) == (b"z" * 5000, True)


@given(st.lists(st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=12), max_size=4))
def test_every_word_reaches_the_program_there_as_it_was(words):
    """A shell reads the line as under sshd, with a program that prints its arguments in place of vgpuctl."""
    *before, script, sh = shlex.split(ssh_session.vgpuctl_line([], "root"))
    text = shlex.split(ssh_session.vgpuctl_line(words, "root"))
    assert text == [*before, script, sh, *words]


def test_the_line_says_its_process_and_runs_vgpuctl(tmp_path):
    program = tmp_path / "vgpuctl"
    program.write_text('#!/bin/sh\nfor word; do echo "<$word>"; done\n')
    program.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    words = ["a b", "'", "$(id)", "", "*"]
    ran = subprocess.run(
        ["sh", "-c", ssh_session.vgpuctl_line(words, "root")], env=env, capture_output=True, check=True
    )
    result = ssh_session.split_output(b"noise" + ran.stdout)
    assert result is not None
    assert (result[0], result[2].decode()) == (b"noise", "".join(f"<{word}>\n" for word in words))
    assert result[1] > 0
    assert ssh_session.split_output(b"vgpuctl-over-ssh ") is None


def test_a_non_root_login_uses_sudo_without_a_prompt():
    assert shlex.split(ssh_session.vgpuctl_line(["x"], "ops"))[:3] == ["sudo", "-n", "--"]
    assert shlex.split(ssh_session.stop_line(7, "ops"))[:3] == ["sudo", "-n", "--"]
    assert shlex.split(ssh_session.vgpuctl_line(["x"], "root"))[0] == "/bin/sh"


class Full(paramiko.ServerInterface):
    """A server whose logins have as many channels as they may."""

    def check_auth_none(self, username: str) -> int:
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_FAILED_CONNECT_FAILED


def test_each_of_many_threads_hears_that_there_are_no_more_channels():
    ours, theirs = socket.socketpair()
    server, client = paramiko.Transport(theirs), paramiko.Transport(ours)
    server.add_server_key(paramiko.ECDSAKey.generate())
    server.start_server(threading.Event(), Full())
    client.start_client(timeout=60)
    client.auth_none("ada")
    until = time.monotonic() + 60
    session = SshSession("gpu-01", "ada", client, until, client.close)
    control = RunControl(until, lambda line: None, lambda: 1)  # a stop: nobody tries again
    reasons: list[object] = []

    def dial() -> None:
        for _ in range(20):
            with pytest.raises(Unreachable) as refused:
                session.dial(control)
            reasons.append(getattr(refused.value.__cause__, "code", refused.value.message))

    threads = [threading.Thread(target=dial) for _ in range(8)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        session.close()
        server.close()
    assert reasons == [paramiko.OPEN_FAILED_CONNECT_FAILED] * 160
