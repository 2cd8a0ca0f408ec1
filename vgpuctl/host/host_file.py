# SPDX-License-Identifier: Apache-2.0
"""/etc/vgpuctl/host.yaml, as `seams.HostFile`: replaced at once, never half written, and only by who read it last.

A lock on its directory keeps two vgpuctl apart while one compares and renames. An editor takes no such lock: that is
what the comparison is for.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from vgpuctl.errors import Busy

PATH = Path("/etc/vgpuctl/host.yaml")
NEW_MODE = 0o644


class HostFileOnDisk:
    """The file at `path`. Nothing is written while `lock_held()`."""

    def __init__(self, path: Path = PATH, *, lock_held: Callable[[], bool]) -> None:
        self._path = path
        self._lock_held = lock_held

    def read(self) -> str | None:
        """Return the file's text, None when there is none."""
        try:
            return self._path.read_text(encoding="utf-8", errors="surrogateescape")
        except FileNotFoundError:
            return None

    def replace(self, text: str, was: str | None) -> None:
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
            swap(target, text)


def swap(target: Path, text: str) -> None:
    """Write beside the file, with its owner and mode, and rename over it: a power cut leaves the old or the new.

    One that is new may be read by everybody.
    """
    try:
        known = target.stat()
    except FileNotFoundError:
        known = None
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with open(os.open(temporary, flags, 0o600), "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
            file.flush()
            if known is not None and (known.st_uid, known.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(file.fileno(), known.st_uid, known.st_gid)
            os.fchmod(file.fileno(), NEW_MODE if known is None else known.st_mode & 0o7777)
            os.fsync(file.fileno())
        os.rename(temporary, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


@contextlib.contextmanager
def _directory_locked(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
