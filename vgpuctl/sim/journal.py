# SPDX-License-Identifier: Apache-2.0
"""One append-only file of JSON lines: what the simulated host did. Replaying it gives the host's current state.

A line is one operation: a list of records that apply all together or not at all. One call writes a line before
the operation returns, so a killed process leaves what a real host would keep. A last line without its newline does
not count, and the next writer truncates it. Processes lock a separate file, because compacting replaces the
journal by a rename, and a lock on the old file would protect nothing.

Readers take no lock: only whole lines count, and they never change.

The lock file holds the minimum length of the journal, updated after each line. It distinguishes a journal that
somebody truncated from one with an unfinished last line, or from a host on which nothing happened yet.

A signal may raise an exception between any two instructions here. The file decides what happened: a line is written
whole, or is cut. What this process has in memory is marked as stale while it changes, and a stale state is replayed
from the file before it is used again. So each line counts once, also in the undo that follows the signal.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

JournalRecord = list[object]
"""The operation's name and its arguments, as JSON values."""


class JournalDamaged(Exception):
    """A whole line of the journal is not one that the simulator writes, or lines that it wrote are missing."""


def encode_line(value: object) -> bytes:
    """Encode a value as one journal line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


class Journal:
    """The file, and how far this process has read it.

    It calls `load_header` with the first line (the header) when the file is new to this process or was
    replaced, and `apply_records` with each line after it.
    """

    def __init__(
        self,
        directory: Path,
        load_header: Callable[[object], None],
        apply_records: Callable[[list[JournalRecord]], None],
    ) -> None:
        self.path = directory / "journal"
        self._load_header = load_header
        self._apply_records = apply_records
        self._thread_lock = threading.RLock()
        self._is_locked = False
        self._stale = True
        self._file = self._lock = -1
        self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._inode = -1
        self._offset = 0
        self.lines = 0

    def __del__(self) -> None:
        """Close the files of a host that nobody closed: one process may open very many simulated hosts."""
        self.close()

    def close(self) -> None:
        """Close the files."""
        for fd in (self._file, self._lock):
            if fd >= 0:
                os.close(fd)
        self._file = self._lock = -1

    def remove(self) -> None:
        """Remove the journal, damaged or not."""
        self._write_length(0)
        self.path.unlink(missing_ok=True)

    def refresh(self) -> None:
        """Apply what other processes appended since the last read."""
        with self._thread_lock:
            stat = os.stat(self.path)
            if self._stale or stat.st_ino != self._inode:
                self._reopen()
                stat = os.fstat(self._file)
            if stat.st_size < self._offset:
                raise JournalDamaged(f"{self.path} is {stat.st_size} bytes long, and was {self._offset}")
            if stat.st_size > self._offset:
                self._read_tail(stat.st_size)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the journal against other processes. First apply every line and truncate an unfinished last one."""
        with self._thread_lock:
            is_outermost = not self._is_locked
            try:
                if is_outermost:
                    fcntl.flock(self._lock, fcntl.LOCK_EX)
                    self._is_locked = True
                    self._catch_up()
                yield
            finally:
                if is_outermost:
                    self._is_locked = False
                    fcntl.flock(self._lock, fcntl.LOCK_UN)

    def append(self, records: list[JournalRecord]) -> None:
        """Write one operation and apply it. Only inside `locked`."""
        assert self._is_locked, "append needs the lock"
        if self._stale:
            self._catch_up()
        line = encode_line(records)
        self._stale = True
        written = os.write(self._file, line)
        if written != len(line):
            os.ftruncate(self._file, self._offset)
            raise OSError(28, "the journal of the simulated host could not be written", str(self.path))
        self._apply_records(records)
        self._offset += written
        self.lines += 1
        self._stale = False
        self._write_length(self._offset)

    def replace(self, header: object, records: list[JournalRecord]) -> None:
        """Atomically replace the journal with this header and these records. Only inside `locked`."""
        assert self._is_locked, "replace needs the lock"
        new_path = self.path.with_name("journal.new")
        new_path.unlink(missing_ok=True)
        fd = os.open(new_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(encode_line(header))
            if records:
                file.write(encode_line(records))
        self._write_length(0)  # until the new file is in place and its length is written
        os.replace(new_path, self.path)
        self.refresh()
        self._write_length(self._offset)

    def _write_length(self, length: int) -> None:
        os.pwrite(self._lock, b"%020d\n" % length, 0)

    def _catch_up(self) -> None:
        """Apply every line, check that none is missing, and truncate an unfinished last one. Only inside the lock."""
        exists = self._file >= 0 or self.path.exists()
        if exists:
            self.refresh()
        text = os.pread(self._lock, 21, 0).strip()
        min_length = int(text) if text.isdigit() else 0
        if self._offset < min_length:
            raise JournalDamaged(
                f"{self.path} is {f'{self._offset} bytes long' if exists else 'gone'}; it was {min_length} bytes"
            )
        if exists and self.lines == 0:
            raise JournalDamaged(f"{self.path} has lost its first line")
        if exists and os.fstat(self._file).st_size > self._offset:
            os.ftruncate(self._file, self._offset)

    def _reopen(self) -> None:
        self._stale = True
        old_file, self._file = self._file, -1
        if old_file >= 0:
            os.close(old_file)
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        self._inode = os.fstat(self._file).st_ino
        self._offset = 0
        self.lines = 0
        self._stale = False

    def _read_tail(self, size: int) -> None:
        data = os.pread(self._file, size - self._offset, self._offset)
        end = data.rfind(b"\n") + 1
        self._stale = True
        try:
            for value in _parse_lines(data[:end]):
                if self.lines == 0:
                    self._load_header(value)
                else:
                    self._apply_records(value)
                self.lines += 1
            self._offset += end
            self._stale = False
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as exc:
            raise JournalDamaged(f"{self.path}, line {self.lines + 1}: {exc}") from exc


def _parse_lines(text: bytes) -> Iterator[Any]:
    """Parse whole lines: all at once, which is four times as fast, or one by one to find the line that fails."""
    try:
        values = json.loads(b"[" + text.rstrip(b"\n").replace(b"\n", b",") + b"]")
    except ValueError:
        values = []
    if len(values) == text.count(b"\n"):
        yield from values
    else:
        for line in text.splitlines():
            yield json.loads(line)
