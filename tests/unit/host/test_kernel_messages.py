# SPDX-License-Identifier: Apache-2.0
"""The kernel's log, as a pair of sockets that keeps the records apart, as /dev/kmsg does."""

from __future__ import annotations

import os
import queue
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.host.kernel_messages import HostKernelMessages, KernelWatch, parse_record

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
WAIT_SECONDS = 30


class Log:
    """A log whose end the test holds, and what its watch reports."""

    def __init__(self) -> None:
        reader, self.writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.descriptor = reader.detach()
        os.set_blocking(self.descriptor, False)
        self.reports: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()

    def watch(self, containing: str = "NVRM: Xid") -> KernelWatch:
        return HostKernelMessages(lambda: self.descriptor).watch(
            containing,
            on_message=lambda text: self.reports.put(("message", text)),
            on_lost=lambda reason: self.reports.put(("lost", reason)),
        )

    def next(self) -> tuple[str, str]:
        return self.reports.get(timeout=WAIT_SECONDS)


@pytest.fixture
def log() -> Iterator[Log]:
    made = Log()
    yield made
    made.writer.close()


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (f"4,1234,98765432,-;{XID}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n".encode(), XID),
        (b"6,339,5140900,-,caller=T1;NET: Registered protocol family 10\n", "NET: Registered protocol family 10"),
        (b"4,1,2,c;continued; with a semicolon\n", "continued; with a semicolon"),
        (b"12,1,2,-;a program wrote this (facility 1)\n", None),
        (b"no prefix at all\n", None),
        (b";\n", None),
        (b"", None),
    ],
)
def test_a_record_is_parsed(record: bytes, message: str | None) -> None:
    assert parse_record(record) == message


@given(st.binary(max_size=300))
def test_no_record_breaks_it(record: bytes) -> None:
    message = parse_record(record)
    assert message is None or "\n" not in message


def test_it_reports_what_contains_the_text(log: Log) -> None:
    watch = log.watch()
    for text in ("usb 1-1: new device", XID, "NVRM: loading", XID.replace("79", "31")):
        log.writer.send(f"4,1,2,-;{text}\n".encode())
    assert [log.next(), log.next()] == [("message", XID), ("message", XID.replace("79", "31"))]
    assert watch.answers()
    watch.close()
    watch.close()
    assert not watch.answers()
    assert log.reports.empty()


def test_a_log_that_ends_is_reported(log: Log) -> None:
    watch = log.watch()
    log.writer.close()
    kind, reason = log.next()
    assert (kind, "cannot be read any more" in reason) == ("lost", True)
    watch.close()


def test_a_log_that_cannot_be_opened_is_reported_and_is_no_reason_to_restart(log: Log) -> None:
    def refuse() -> int:
        raise PermissionError(1, "Operation not permitted", "/dev/kmsg")

    reasons: list[str] = []
    watch = HostKernelMessages(refuse).watch("x", on_message=reasons.append, on_lost=reasons.append)
    assert reasons == ["the kernel's log cannot be read: Operation not permitted"]
    watch.close()
    assert watch.answers()
    os.close(log.descriptor)


def test_a_closed_watch_keeps_no_file_open(log: Log) -> None:
    log.watch().close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(log.descriptor)
