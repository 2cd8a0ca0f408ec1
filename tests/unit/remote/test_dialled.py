# SPDX-License-Identifier: Apache-2.0
"""The connection to another host's agent as a socket: what ends a read, what comes before an answer, when it closes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from http.client import HTTPResponse
from typing import Any

import pytest

from vgpuctl.errors import DeadlineExceeded, Interrupted
from vgpuctl.remote.dialled import GRACE_SECONDS, DialledSocket
from vgpuctl.remote.session import RunControl

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


class Channel:
    """A channel that gives these pieces, and then nothing: the read times out, or the end is reached."""

    def __init__(self, *pieces: bytes, ends: bool = True, errors: bytes = b"") -> None:
        self.pieces = list(pieces)
        self.ends = ends
        self.errors = errors
        self.closed = False
        self.sent: list[bytes] = []

    def settimeout(self, seconds: float | None) -> None:
        self.seconds = seconds

    def recv(self, limit: int) -> bytes:
        assert not self.closed
        if self.pieces:
            return self.pieces.pop(0)
        if self.ends:
            return b""
        raise TimeoutError

    def send(self, data: bytes) -> int:
        self.sent.append(data[:40_000])
        return len(data[:40_000])

    def shutdown(self, how: int) -> None:
        self.ends = True

    def recv_stderr_ready(self) -> bool:
        return bool(self.errors)

    def recv_stderr(self, limit: int) -> bytes:
        errors, self.errors = self.errors, b""
        return errors

    def close(self) -> None:
        self.closed = True


def dialled(channel: Channel, control: RunControl | None = None) -> DialledSocket:
    return DialledSocket("gpu-01", channel, control, lambda: None)


def control(seconds: float, stops: list[int]) -> RunControl:
    return RunControl(time.monotonic() + seconds, print, lambda: len(stops))


def read(one: Any) -> bytes:
    response = HTTPResponse(one)
    response.begin()
    return response.read()


@pytest.mark.parametrize(
    "pieces",
    [
        (ANSWER,),
        (ANSWER[:3], ANSWER[3:]),
        (b"Welcome\nto HTTP/1.1 hosts\n" + ANSWER,),
        (b"Welcome\nHTT", b"P/1.1 200 OK\r\n", ANSWER.partition(b"\n")[2]),
        tuple(bytes([one]) for one in b"Welcome\n" + ANSWER),
    ],
)
def test_what_a_shell_prints_before_an_answer_is_skipped(pieces: tuple[bytes, ...]) -> None:
    assert read(dialled(Channel(*pieces))) == b"{}"


def test_much_data_is_sent_in_pieces() -> None:
    """A channel of paramiko copies all that is left with each packet."""
    channel, data = Channel(), bytes(range(256)) * 4096 + b"end"
    dialled(channel).sendall(data)
    assert b"".join(channel.sent) == data
    assert max(map(len, channel.sent)) <= 1 << 16


def test_a_peer_that_does_not_read_for_a_while_loses_nothing() -> None:
    """A read in another thread sets a short time for both directions."""

    class Slow(Channel):
        is_full = False

        def send(self, data: bytes) -> int:
            self.is_full = not self.is_full
            if self.is_full:
                raise TimeoutError
            return super().send(data)

    channel, data = Slow(), bytes(range(256)) * 1024
    dialled(channel).sendall(data)
    assert b"".join(channel.sent) == data
    late = dialled(Slow())
    late.settimeout(0)
    with pytest.raises(TimeoutError):
        late.sendall(data)


def test_after_a_shutdown_nothing_arrives() -> None:
    one = dialled(Channel())
    one.shutdown(2)
    assert one.receive(1) == b""


def test_endless_output_before_an_answer_is_an_error() -> None:
    class Endless(Channel):
        def recv(self, limit: int) -> bytes:
            return b"y\n" * 10_000

    with pytest.raises(OSError, match="more than 1 MiB before an answer"):
        read(dialled(Endless()))


def test_a_read_ends_at_a_stop_once() -> None:
    stops: list[int] = []
    first = dialled(Channel(ends=False), control(60, stops))
    stops.append(2)
    with pytest.raises(Interrupted):
        read(first)
    second = dialled(Channel(ends=False), control(60, stops))
    second.settimeout(0)
    with pytest.raises(TimeoutError, match="nothing came within 0 s"):
        read(second)


def test_a_read_ends_at_the_deadline_and_one_after_it_when_the_undo_takes_too_long() -> None:
    first = dialled(Channel(ends=False), control(0.001, []))
    time.sleep(0.002)
    with pytest.raises(DeadlineExceeded):
        read(first)
    late = control(-GRACE_SECONDS - 1, [])
    with pytest.raises(TimeoutError, match="was signalled to stop, but did not"):
        read(dialled(Channel(ends=False), late))
    assert read(dialled(Channel(ANSWER), late)) == b"{}"


def closings(one: DialledSocket, channel: Channel) -> Iterator[bool]:
    """Yield whether the channel is closed after each step."""
    file = one.makefile("rb")
    one.close()
    yield channel.closed
    file.close()
    yield channel.closed


def test_a_connection_stays_until_its_files_are_closed_and_is_given_back_once() -> None:
    channel, given_back = Channel(ANSWER), []
    one = DialledSocket("gpu-01", channel, None, lambda: given_back.append(1))
    assert list(closings(one, channel)) == [False, True]
    one.close()
    assert given_back == [1]


@pytest.mark.parametrize(
    ("errors", "line"),
    [
        (b"hello\nvgpuctl: /run/x: No such file   [unreachable]\n  hint: look\n", "/run/x: No such file"),
        (b"sh: 1: exec: vgpuctl: not found\n", "sh: 1: exec: vgpuctl: not found"),
        (b"", ""),
    ],
)
def test_why_no_agent_answers_is_what_dial_says(errors: bytes, line: str) -> None:
    one = dialled(Channel(errors=errors))
    one.close()
    assert one.error_line() == line
