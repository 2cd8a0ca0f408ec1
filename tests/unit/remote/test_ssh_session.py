# SPDX-License-Identifier: Apache-2.0
"""The line for a remote shell, and a remote command with endless output, on a fake connection."""

from __future__ import annotations

import os
import shlex
import subprocess
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.remote import ssh_session
from vgpuctl.remote.session import RemoteCommand, RunControl
from vgpuctl.remote.ssh_session import SshSession

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


@pytest.mark.parametrize("stream", ["out", "err"])
def test_output_without_an_end_hinders_no_stop(stream):
    played = Endless(stream, 1000)
    session = SshSession("gpu-01", "root", played, time.monotonic() + 60, lambda: None)
    try:
        ran = session.run(
            RemoteCommand(("list-gpus",)),
            RunControl(time.monotonic() + 60, lambda line: None, lambda: 3 if played.reads > 9 else 0),
        )
    finally:
        session.close()
    assert ran.abandon_reason == "it was not waited for"


@pytest.mark.parametrize("line", [b"x" * PIECE, b"y\n" * (PIECE // 2)])
def test_endless_stderr_is_reported_up_to_a_limit(line):
    played = Endless("err", 10_000, line)
    reported: list[str] = []
    session = SshSession("gpu-01", "root", played, time.monotonic() + 60, lambda: None)
    try:
        session.run(
            RemoteCommand(("list-gpus",)),
            RunControl(time.monotonic() + 60, reported.append, lambda: 3 if played.reads > 200 else 0),
        )
    finally:
        session.close()
    assert played.reads > 200
    assert len(reported) <= 10_001
    assert PIECE < sum(map(len, reported)) <= (1 << 20) + 100 or len(reported) == 10_001
    assert reported[-1] == "further output on stderr is not shown"


@pytest.mark.parametrize(
    ("begun", "reads", "why"),
    [(b"", 18, "it printed more than 1 MiB before vgpuctl started"), (BEGUN, 300, "it printed more than 16 MiB")],
)
def test_output_without_an_end_is_given_up_before_it_fills_the_memory(begun, reads, why):
    played = Endless("out", reads, begun=begun)
    session = SshSession("gpu-01", "root", played, time.monotonic() + 60, lambda: None)
    try:
        ran = session.run(
            RemoteCommand(("list-gpus",)), RunControl(time.monotonic() + 60, lambda line: None, lambda: 0)
        )
    finally:
        session.close()
    assert (ran.status, ran.abandon_reason) == (None, why)


def test_a_process_id_that_is_none_does_not_begin_the_answer():
    assert ssh_session.split_output(b"vgpuctl-over-ssh " + b"1" * 5000 + b"\n") is None
    assert ssh_session.split_output(BEGUN + b"{}") == (b"", 1234, b"{}")


def test_unread_stdin_does_not_block_a_stop_and_progress_is_reported():
    played = Endless("none", 1)
    sent: list[int] = []
    observations: list[int] = []

    def stops() -> int:
        observations.append(1)
        return 3 if len(observations) > 10 else 0

    session = SshSession("gpu-01", "root", played, time.monotonic() + 60, lambda: None)
    try:
        ran = session.run(
            RemoteCommand((), b"y" * 5000, 10), RunControl(time.monotonic() + 60, lambda line: None, stops, sent.append)
        )
    finally:
        session.close()
    assert (ran.abandon_reason, sent, played.taken, played.shut) == (
        "it was not waited for",
        [1000],
        b"y" * 1000,
        False,
    )


def test_all_of_standard_input_is_sent_and_then_closed():
    played = Endless("none", 1)
    played.window = 5000
    session = SshSession("gpu-01", "root", played, time.monotonic() + 5, lambda: None)
    try:
        session.run(
            RemoteCommand(("apply",), b"z" * 5000),
            RunControl(time.monotonic() + 5, lambda line: None, lambda: 3 if played.shut else 0),
        )
    finally:
        session.close()
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
