# SPDX-License-Identifier: Apache-2.0
r"""What the kernel logs, as it logs it; implements `ports.KernelMessages`.

/dev/kmsg gives one record for each read(2), and each reader has its own place in the kernel's ring. A record is
`PRIORITY,SEQUENCE,MICROSECONDS,FLAGS;MESSAGE`, a newline, and lines ` KEY=value`; bytes that are not printable are
`\xNN`. The kernel returns EPIPE when it overwrote records before they were read; the next read continues with the
oldest one that is left (Documentation/ABI/testing/dev-kmsg).
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

KMSG = "/dev/kmsg"
_RECORD_BYTES = 8192
"""The longest record that the kernel gives (CONSOLE_EXT_LOG_MAX in kernel/printk)."""
_CLOSE_SECONDS = 5.0
_OVERWRITTEN = "the kernel overwrote messages before they were read"


class HostKernelMessages:
    """The kernel's log. `open_log` returns a descriptor that does not block, at the log's end; tests have their own."""

    def __init__(self, open_log: Callable[[], int] | None = None) -> None:
        self._open_log = open_log or _open_kmsg

    def watch(
        self, containing: str, *, on_message: Callable[[str], None], on_lost: Callable[[str], None]
    ) -> KernelWatch:
        """Watch the messages that contain a text, from now on, until `close`."""
        return KernelWatch(self._open_log, containing.encode(), on_message, on_lost)


def _open_kmsg() -> int:
    descriptor = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.lseek(descriptor, 0, os.SEEK_END)
    return descriptor


def parse_record(record: bytes) -> str | None:
    """Return a record's message; None if it is not the kernel's (a program may write to /dev/kmsg) or malformed.

    The priority holds the facility: that of the kernel is 0, and programs cannot write with it.
    """
    prefix, separator, rest = record.partition(b";")
    priority = prefix.partition(b",")[0]
    if not separator or not priority.isdigit() or len(priority) > 1:
        return None
    return rest.partition(b"\n")[0].decode("utf-8", "replace")


class KernelWatch:
    """A thread that reads the kernel's log; implements `ports.Watch`. It keeps nothing but the record that it reads."""

    def __init__(
        self,
        open_log: Callable[[], int],
        containing: bytes,
        on_message: Callable[[str], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._containing = containing
        self._on_message, self._on_lost = on_message, on_lost
        self._wake_reader, self._wake_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._log: int | None = open_log()
        except OSError as error:
            self._log = None
            on_lost(f"the kernel's log cannot be read: {error.strerror}")
        self._thread = Thread(target=self._run, name="kernel-messages", daemon=True)
        self._thread.start()

    def answers(self) -> bool:
        """Return whether the thread lives; without a readable log there is nothing that could hang."""
        return self._log is None or self._thread.is_alive()

    def close(self) -> None:
        """End the thread and close its files."""
        if self._wake_writer < 0:
            return
        os.close(self._wake_writer)
        self._wake_writer = -1
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        log = self._log
        try:
            if log is not None:
                self._follow(log)
        except OSError as error:
            self._on_lost(f"the kernel's log cannot be read any more: {error.strerror}")
        finally:
            os.close(self._wake_reader)
            if log is not None:
                os.close(log)

    def _follow(self, log: int) -> None:
        poll = select.poll()
        poll.register(log, select.POLLIN)
        poll.register(self._wake_reader, 0)  # it reports the end that `close` causes, whatever is asked for
        while not any(descriptor == self._wake_reader for descriptor, _ in poll.poll()):
            with suppress(BlockingIOError):
                record = self._read(log)
                if record == b"":
                    raise OSError(errno.EIO, "it ended")
                message = parse_record(record) if record and self._containing in record else None
                if message is not None:
                    self._on_message(message)

    def _read(self, log: int) -> bytes | None:
        """Return one record; None when the kernel gave none. A record that is too long is skipped (EINVAL)."""
        try:
            return os.read(log, _RECORD_BYTES)
        except OSError as error:
            if error.errno == errno.EPIPE:
                self._on_lost(_OVERWRITTEN)
            elif error.errno != errno.EINVAL:
                raise
            return None
