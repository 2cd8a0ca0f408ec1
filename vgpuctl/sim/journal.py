# SPDX-License-Identifier: Apache-2.0
"""One append-only file of JSON lines: what the simulated host did, and whose replay is what it is now.

A line is one operation: a list of records that hold together or not at all. A line is written in one call
before the operation returns, so a process that is killed leaves what a real host would keep; a last line
without its newline never happened, and the next writer cuts it. Processes take turns by a lock on a file of
its own, because compacting replaces the journal by a rename and a lock on the old file would guard nothing.

Reading takes no lock: only whole lines count, and they never change.

The lock's file says how long the journal is at least; it is written after each line. So a journal that somebody made
shorter is told from one whose last line was never finished, or of a host on which nothing happened yet.
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

Record = list[object]
"""The operation's name and its arguments, as JSON values."""


class Damaged(Exception):
    """A whole line of the journal is not what the simulator writes, or lines that it wrote are gone."""


def encode(value: object) -> bytes:
    """Return one journal line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


class Journal:
    """The file, and how far this process has read it.

    `restart` is called with the first line (the header) when the file is new to this process or was
    replaced, `apply` with each line after it.
    """

    def __init__(
        self, directory: Path, restart: Callable[[object], None], apply: Callable[[list[Record]], None]
    ) -> None:
        self.path = directory / "journal"
        self._restart = restart
        self._apply = apply
        self._turn = threading.RLock()
        self._depth = 0
        self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._file = -1
        self._inode = -1
        self._offset = 0
        self.lines = 0

    def close(self) -> None:
        """Close the files."""
        for number in (self._file, self._lock):
            if number >= 0:
                os.close(number)
        self._file = self._lock = -1

    def forget(self) -> None:
        """Remove the journal, damaged or not."""
        self._note(0)
        self.path.unlink(missing_ok=True)

    def refresh(self) -> None:
        """Apply what other processes appended since the last look."""
        with self._turn:
            seen = os.stat(self.path)
            if seen.st_ino != self._inode:
                self._reopen()
                seen = os.fstat(self._file)
            if seen.st_size < self._offset:
                raise Damaged(f"{self.path} is {seen.st_size} bytes long, and was {self._offset}")
            if seen.st_size > self._offset:
                self._read_tail(seen.st_size)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the journal against other processes, with everything applied and a torn last line cut."""
        with self._turn:
            self._depth += 1
            try:
                if self._depth == 1:
                    fcntl.flock(self._lock, fcntl.LOCK_EX)
                    self._require_whole()
                    if self._file >= 0 and os.fstat(self._file).st_size > self._offset:
                        os.ftruncate(self._file, self._offset)
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    fcntl.flock(self._lock, fcntl.LOCK_UN)

    def append(self, records: list[Record]) -> None:
        """Write one operation and apply it. Only inside `locked`."""
        assert self._depth, "append needs the lock"
        line = encode(records)
        written = os.write(self._file, line)
        if written != len(line):
            os.ftruncate(self._file, self._offset)
            raise OSError(28, "the journal of the simulated host could not be written", str(self.path))
        self._offset += written
        self._note(self._offset)
        self.lines += 1
        self._apply(records)

    def replace(self, header: object, records: list[Record]) -> None:
        """Begin again with this header and these records, atomically. Only inside `locked`."""
        assert self._depth, "replace needs the lock"
        fresh = self.path.with_name("journal.new")
        fresh.unlink(missing_ok=True)
        number = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(number, "wb") as file:
            file.write(encode(header))
            if records:
                file.write(encode(records))
        self._note(0)  # until the new one is there and its length is written
        os.replace(fresh, self.path)
        self.refresh()
        self._note(self._offset)

    def _note(self, length: int) -> None:
        os.pwrite(self._lock, b"%020d\n" % length, 0)

    def _require_whole(self) -> None:
        """Apply what is there, and see that nothing is missing. Only inside the lock."""
        there = self._file >= 0 or self.path.exists()
        if there:
            self.refresh()
        text = os.pread(self._lock, 21, 0).strip()
        least = int(text) if text.isdigit() else 0
        if self._offset < least:
            raise Damaged(f"{self.path} is {f'{self._offset} bytes long' if there else 'gone'}; it was {least} bytes")
        if there and self.lines == 0:
            raise Damaged(f"{self.path} is there without its first line")

    def _reopen(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        self._inode = os.fstat(self._file).st_ino
        self._offset = 0
        self.lines = 0

    def _read_tail(self, size: int) -> None:
        data = os.pread(self._file, size - self._offset, self._offset)
        end = data.rfind(b"\n") + 1
        try:
            for value in _values(data[:end]):
                if self.lines == 0:
                    self._restart(value)
                else:
                    self._apply(value)
                self.lines += 1
            self._offset += end
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as exc:
            raise Damaged(f"{self.path}, line {self.lines + 1}: {exc}") from exc


def _values(text: bytes) -> Iterator[Any]:
    """Parse whole lines: all at once, which is four times as fast; one by one when that fails, to find which."""
    try:
        values = json.loads(b"[" + text.rstrip(b"\n").replace(b"\n", b",") + b"]")
    except ValueError:
        values = []
    if len(values) == text.count(b"\n"):
        yield from values
    else:
        for line in text.splitlines():
            yield json.loads(line)
