# SPDX-License-Identifier: Apache-2.0
"""/etc/vgpuctl/host.yaml, as `seams.HostFile`: replaced at once, never half written, and only by who read it last.

The versions before stay beside it, host.yaml.1 being the newest. A power cut while they are renamed leaves a number
without a file, and never a version too few: the next replacement fills the gap.

A lock on its directory keeps two vgpuctl apart while one compares and renames. An editor takes no such lock: that is
what the comparison is for.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypedDict

from vgpuctl.errors import Busy
from vgpuctl.host.atomic import sync, write, written
from vgpuctl.regular_file import read_regular

PATH = Path("/etc/vgpuctl/host.yaml")
NEW_MODE = 0o644
KEPT = 10


class _Like(TypedDict):
    mode: int
    owner: tuple[int, int] | None


class HostFileOnDisk:
    """The file at `path`. Nothing is written while `lock_held()`."""

    def __init__(self, path: Path = PATH, *, lock_held: Callable[[], bool]) -> None:
        self._path = path
        self._lock_held = lock_held

    def read(self) -> str | None:
        """Return the file's text, None when there is none."""
        return _text(self._path)

    def kept(self, number: int) -> str | None:
        """Return the text of a version before, 1 being the newest; None when there is none."""
        return _text(self._version(number))

    def replace(self, text: str, was: str | None, *, taken_back: bool = False) -> None:
        """Put `text` in the place of `was`; a link is followed, so that the file it names is replaced."""
        if self._lock_held():
            raise AssertionError(f"a write to {self._path} under the host lock")
        self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        target = Path(os.path.realpath(self._path))
        with _directory_locked(target.parent):
            if self.read() != was:
                raise Busy(
                    f"{self._path} was changed by somebody else meanwhile",
                    hint="run the command again",
                    path=str(self._path),
                )
            if was is None or taken_back or text == was:
                swap(target, text)
            else:
                known = _status(target)
                with written(target, _bytes(text), **_like(known)) as new:
                    self._keep(was, known)
                    os.rename(new, target)
                sync(target.parent)
            if taken_back and self.kept(1) == text:
                self._drop_newest()

    def _version(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _keep(self, text: str, status: os.stat_result | None) -> None:
        """Make a text the newest of the versions before, unless it is; the oldest of ten goes."""
        if self.kept(1) == text:
            return
        with written(self._version(1), _bytes(text), **_like(status)) as new:
            last = next((n for n in range(1, KEPT) if not os.path.lexists(self._version(n))), KEPT)
            for number in range(last, 1, -1):
                os.rename(self._version(number - 1), self._version(number))
            os.rename(new, self._version(1))
        sync(self._path.parent)

    def _drop_newest(self) -> None:
        """Forget the newest version: it is the file itself again."""
        os.unlink(self._version(1))
        for number in range(2, KEPT + 1):
            if os.path.lexists(self._version(number)):
                os.rename(self._version(number), self._version(number - 1))
        sync(self._path.parent)


def _text(path: Path) -> str | None:
    try:
        return read_regular(path).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return None


def swap(target: Path, text: str) -> None:
    """Write beside the file, with its owner and mode, and rename over it: a power cut leaves the old or the new.

    One that is new may be read by everybody.
    """
    write(target, _bytes(text), **_like(_status(target)))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _like(known: os.stat_result | None) -> _Like:
    """Return owner and mode of the file that another one replaces."""
    if known is None:
        return {"mode": NEW_MODE, "owner": None}
    return {"mode": known.st_mode & 0o7777, "owner": (known.st_uid, known.st_gid)}


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def _directory_locked(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
