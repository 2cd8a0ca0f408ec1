# SPDX-License-Identifier: Apache-2.0
"""/etc/vgpuctl/host.yaml; implements `ports.HostFile`. Replaced atomically, and only if unchanged since it was read.

The previous versions stay in its directory, host.yaml.1 being the newest. A power cut while they are renamed leaves a
gap in the numbers but loses no version; the next replacement fills the gap.

A lock on the directory excludes other vgpuctl processes during the comparison and the rename. An editor takes no such
lock: the comparison detects its changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from vgpuctl.errors import Busy
from vgpuctl.host.atomic_files import sync_directory, temporary_file, write_file
from vgpuctl.host.file_lock import lock_directory
from vgpuctl.host.processes import HostClock
from vgpuctl.ports.system import EMPTY_HOST_FILE
from vgpuctl.regular_file import read_regular_file

if TYPE_CHECKING:
    from vgpuctl.ports.system import Clock

HOST_FILE_PATH = Path("/etc/vgpuctl/host.yaml")
NEW_MODE = 0o644
KEPT_VERSIONS = 10


class _ModeAndOwner(TypedDict):
    mode: int
    owner: tuple[int, int] | None


class HostFileOnDisk:
    """The file at `path`. Writing while `lock_held()` raises AssertionError."""

    def __init__(
        self,
        path: Path = HOST_FILE_PATH,
        *,
        lock_held: Callable[[], bool],
        clock: Clock | None = None,
        wait_seconds: float = 60.0,
    ) -> None:
        """`wait_seconds`: for another process that writes to the file's directory."""
        self._path = path
        self._lock_held = lock_held
        self._clock = clock or HostClock()
        self._wait_seconds = wait_seconds

    def read(self) -> str | None:
        """Return the file's text, None when there is none."""
        return _read_text(self._path)

    def previous_version(self, number: int) -> str | None:
        """Return the text of a previous version, 1 being the newest; None when there is none."""
        return _read_text(self._version_path(number))

    def replace(self, text: str, expected: str | None, *, is_undo: bool = False) -> None:
        """Replace `expected` by `text`, and save it as a version; if the path is a link, its target is replaced."""
        if self._lock_held():
            raise AssertionError(f"a write to {self._path} under the host lock")
        self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        target = Path(os.path.realpath(self._path))
        with lock_directory(target.parent, self._clock, self._wait_seconds):
            if self.read() != expected:
                raise Busy(
                    f"{self._path} was changed by another program in the meantime",
                    hint="run the command again",
                    path=str(self._path),
                )
            before = EMPTY_HOST_FILE if expected is None else expected
            if is_undo or text == before:
                replace_keeping_owner(target, text)
            else:
                status = _status(target)
                with temporary_file(target, _encode(text), **_mode_and_owner(status)) as temporary:
                    self._save_version(before, status)
                    os.rename(temporary, target)
                sync_directory(target.parent)
            if is_undo and self.previous_version(1) == text:
                self._remove_newest_version()

    def _version_path(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _save_version(self, text: str, status: os.stat_result | None) -> None:
        """Make a text the newest previous version, unless it already is; the oldest of ten is dropped."""
        if self.previous_version(1) == text:
            return
        with temporary_file(self._version_path(1), _encode(text), **_mode_and_owner(status)) as temporary:
            last = next(
                (n for n in range(1, KEPT_VERSIONS) if not os.path.lexists(self._version_path(n))), KEPT_VERSIONS
            )
            for number in range(last, 1, -1):
                os.rename(self._version_path(number - 1), self._version_path(number))
            os.rename(temporary, self._version_path(1))
        sync_directory(self._path.parent)

    def _remove_newest_version(self) -> None:
        """Remove the newest previous version: it is the current file again."""
        os.unlink(self._version_path(1))
        for number in range(2, KEPT_VERSIONS + 1):
            if os.path.lexists(self._version_path(number)):
                os.rename(self._version_path(number), self._version_path(number - 1))
        sync_directory(self._path.parent)


def _read_text(path: Path) -> str | None:
    try:
        return read_regular_file(path).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return None


def replace_keeping_owner(target: Path, text: str) -> None:
    """Replace a file atomically, with its owner and mode: a power cut leaves the old file or the new one.

    A file that did not exist gets a mode that everybody can read.
    """
    write_file(target, _encode(text), **_mode_and_owner(_status(target)))


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _mode_and_owner(status: os.stat_result | None) -> _ModeAndOwner:
    """Return owner and mode of the file to replace, or the defaults for a new file."""
    if status is None:
        return {"mode": NEW_MODE, "owner": None}
    return {"mode": status.st_mode & 0o7777, "owner": (status.st_uid, status.st_gid)}


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None
