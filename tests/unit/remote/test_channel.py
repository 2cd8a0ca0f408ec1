# SPDX-License-Identifier: Apache-2.0
"""A command at another host that says more than anybody can take, with a connection that is played."""

from __future__ import annotations

import os
import time

import pytest

from vgpuctl.remote.channel import SshSession
from vgpuctl.remote.ran import Asked, Watch

PIECE = 1 << 16


class Endless:
    """A transport and its channel: the command there prints for ever, without a line's end."""

    def __init__(self, stream: str, fail_at: int) -> None:
        self.stream = stream
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
        return b"x" * min(size, PIECE)

    recv_stderr = recv


@pytest.mark.parametrize("stream", ["out", "err"])
def test_output_without_an_end_hinders_no_stop(stream):
    played = Endless(stream, 1000)
    session = SshSession("gpu-01", "root", played, time.monotonic() + 60, lambda: None)
    try:
        ran = session.run(
            Asked(("list-gpus",)), Watch(time.monotonic() + 60, lambda line: None, lambda: 3 if played.reads > 9 else 0)
        )
    finally:
        session.close()
    assert ran.gave_up == "it was not waited for"


def test_a_line_without_an_end_on_stderr_is_told_in_pieces_and_not_kept():
    played = Endless("err", 10_000)
    told: list[int] = []
    session = SshSession("gpu-01", "root", played, time.monotonic() + 60, lambda: None)
    try:
        session.run(
            Asked(("list-gpus",)),
            Watch(time.monotonic() + 60, lambda line: told.append(len(line)), lambda: 3 if played.reads > 200 else 0),
        )
    finally:
        session.close()
    assert max(told) <= 4 * PIECE
    assert sum(told) == played.reads * PIECE


def test_standard_input_that_nobody_reads_hinders_no_stop_and_what_is_sent_is_told():
    played = Endless("none", 1)
    sent: list[int] = []
    looks: list[int] = []

    def stops() -> int:
        looks.append(1)
        return 3 if len(looks) > 10 else 0

    session = SshSession("gpu-01", "root", played, time.monotonic() + 60, lambda: None)
    try:
        ran = session.run(
            Asked((), b"y" * 5000, 10), Watch(time.monotonic() + 60, lambda line: None, stops, sent.append)
        )
    finally:
        session.close()
    assert (ran.gave_up, sent, played.taken, played.shut) == ("it was not waited for", [1000], b"y" * 1000, False)


def test_all_of_standard_input_is_sent_and_then_closed():
    played = Endless("none", 1)
    played.window = 5000
    session = SshSession("gpu-01", "root", played, time.monotonic() + 5, lambda: None)
    try:
        session.run(
            Asked(("apply",), b"z" * 5000),
            Watch(time.monotonic() + 5, lambda line: None, lambda: 3 if played.shut else 0),
        )
    finally:
        session.close()
    assert (played.taken, played.shut) == (b"z" * 5000, True)
