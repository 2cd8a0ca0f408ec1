# SPDX-License-Identifier: Apache-2.0
"""The console on a stream that answers as libvirt's does: -2 for "not now", b"" for its end, or an error."""

from __future__ import annotations

import select
from collections.abc import Callable

import pytest

from vgpuctl.errors import HostCannot
from vgpuctl.host.virt import constants
from vgpuctl.host.virt.console import MAX_WAITING_BYTES, LibvirtConsole

READABLE, WRITABLE = constants.VIR_STREAM_EVENT_READABLE, constants.VIR_STREAM_EVENT_WRITABLE
NOT_NOW = -2


class Failed(Exception):
    """libvirt's error."""


class Stream:
    """A stream whose guest writes `output`; `accepts`: how many bytes it takes, in turn."""

    def __init__(self, *output: bytes | int | Failed, accepts: tuple[int, ...] = ()) -> None:
        self.output = list(output)
        self.accepts = list(accepts)
        self.sent = b""
        self.events = 0
        self.callback: Callable[..., None] | None = None
        self.ended_by = ""

    def eventAddCallback(self, events: int, callback: Callable[..., None], opaque: object) -> None:
        self.events, self.callback = events, callback

    def eventUpdateCallback(self, events: int) -> None:
        self.events = events

    def eventRemoveCallback(self) -> None:
        self.callback = None

    def recv(self, size: int) -> bytes | int:
        answer = self.output.pop(0) if self.output else NOT_NOW
        if isinstance(answer, Failed):
            raise answer
        return answer

    def send(self, data: bytes) -> int:
        count = self.accepts.pop(0) if self.accepts else len(data)
        self.sent += data[: max(count, 0)]
        return min(count, len(data))

    def finish(self) -> None:
        self.ended_by = "finish"

    def abort(self) -> None:
        self.ended_by = "abort"

    def report(self, events: int) -> None:
        assert self.callback is not None
        self.callback(self, events, None)


def attempt(allowed: object, do: Callable[[], object]) -> int | None:
    try:
        do()
    except Failed:
        return 38
    return None


def opened(stream: Stream, *, broken: bool = False) -> LibvirtConsole:
    console = LibvirtConsole(stream, attempt, lambda: broken)
    console.start()
    return console


def is_ready(console: LibvirtConsole) -> bool:
    return bool(select.select([console], [], [], 0)[0])


def test_what_the_guest_writes_is_received_once() -> None:
    console = opened(stream := Stream(b"log", b"in: "))
    assert (is_ready(console), console.receive()) == (False, b"")
    stream.report(READABLE)
    assert (is_ready(console), console.receive(), is_ready(console), console.receive()) == (
        True,
        b"login: ",
        False,
        b"",
    )
    console.close()
    assert (stream.ended_by, stream.callback) == ("finish", None)


@pytest.mark.parametrize("end", [b"", Failed("aborted by another session")])
def test_the_end_comes_after_what_was_written_before(end: bytes | Failed) -> None:
    console = opened(stream := Stream(b"bye", end))
    stream.report(READABLE | constants.VIR_STREAM_EVENT_HANGUP)
    assert (console.receive(), console.receive(), stream.callback) == (b"bye", None, None)
    console.close()
    assert stream.ended_by == "abort"


def test_a_hangup_without_anything_to_read_is_the_end() -> None:
    console = opened(stream := Stream())
    stream.report(constants.VIR_STREAM_EVENT_ERROR)
    assert console.receive() is None
    console.close()


def test_what_is_not_accepted_at_once_is_sent_later() -> None:
    console = opened(stream := Stream(accepts=(2, NOT_NOW)))
    assert console.send(b"abcd") == 2
    assert stream.events & WRITABLE
    assert console.send(b"") == 2
    stream.report(WRITABLE)
    assert (stream.sent, console.send(b""), stream.events & WRITABLE) == (b"abcd", 0, 0)
    console.close()


def test_a_flood_is_not_read_until_somebody_takes_it() -> None:
    console = opened(stream := Stream(*[b"x" * (1 << 16)] * 20))
    stream.report(READABLE)
    assert (len(stream.output), stream.events & READABLE) == (4, 0)
    assert len(console.receive() or b"") == MAX_WAITING_BYTES
    assert stream.events & READABLE
    console.close()


def test_a_connection_that_broke_is_an_error() -> None:
    console = opened(Stream(), broken=True)
    with pytest.raises(HostCannot, match="the connection to libvirt broke; the VM runs on"):
        console.receive()
    console.close()


def test_an_event_after_the_close_writes_to_no_descriptor() -> None:
    console = opened(stream := Stream())
    callback = stream.callback
    assert callback is not None
    console.close()
    callback(stream, READABLE, None)
