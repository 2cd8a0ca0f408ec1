# SPDX-License-Identifier: Apache-2.0
"""Files that appear whole or not at all, and what a killed process leaves of them.

A file is written beside its place, and then gets its own name: in place of the former file (rename(2)), or only where
there is none (link(2)). The name that it has until then says for what it is and who writes it: the pid, and the start
time in clock ticks, so that a later process of that pid is not mistaken for the writer (`.NAME.vgpuctl-PID-START`).
A process writes a file once at a time: callers with threads hold a lock, or do without a file that is being written.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from vgpuctl.host.processes import HostProcesses
from vgpuctl.model.vm import ProcessId, UnfinishedFile

if TYPE_CHECKING:
    from vgpuctl.model.seams import Processes

SYSTEM_DIRECTORIES = (
    "/etc/vgpuctl",
    "/etc/modprobe.d",
    "/etc/systemd/system",
    "/etc/libvirt/hooks",
    "/etc/libvirt/hooks/qemu.d",
    "/usr/share/bash-completion/completions",
    "/etc/bash_completion.d",
    "/usr/share/zsh/vendor-completions",
    "/usr/share/zsh/site-functions",
    "/usr/share/fish/vendor_completions.d",
)
"""Where vgpuctl writes files outside its run directory."""
RUN_DIRECTORIES = ("claims", "drained", "working", "stuck", "scratch")
"""Where it writes below its run directory."""

_UNFINISHED = re.compile(r"\.(.+)\.vgpuctl-([1-9][0-9]{0,9})-([0-9]{1,20})", re.ASCII)
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


@contextmanager
def written(
    path: Path, data: bytes, *, mode: int = 0o600, owner: tuple[int, int] | None = None, durable: bool = True
) -> Iterator[Path]:
    """Write what is to be a file, and give the name that it has until the block renames it; else it goes again.

    `durable`: it is on the disk then, so that a power cut leaves the former file or the new one; without it, for files
    that a boot takes away anyway, nothing waits for the disk.

    Raises:
        OSError: with the path of the file itself, which is the one that people know.
    """
    me = HostProcesses().this()
    temporary = path.with_name(f".{path.name}.vgpuctl-{me.pid}-{me.start_ticks}")
    try:
        descriptor = os.open(temporary, _FLAGS, 0o600)
    except OSError as error:
        raise _of(path, error) from None
    try:
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                if owner is not None:
                    os.fchown(descriptor, *owner)
                os.fchmod(descriptor, mode)
                if durable:
                    os.fsync(descriptor)
        except OSError as error:
            raise _of(path, error) from None
        yield temporary
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


def write(
    path: Path,
    data: bytes,
    *,
    mode: int = 0o600,
    owner: tuple[int, int] | None = None,
    over: bool = True,
    durable: bool = True,
) -> None:
    """Make a whole file; nobody ever sees half of it. `over`: in place of the one that is there. More as `written`.

    Raises:
        FileExistsError: it is there, and `over` is False.
        OSError: as `written`.
    """
    with written(path, data, mode=mode, owner=owner, durable=durable) as new:
        try:
            (os.replace if over else os.link)(new, path)
        except OSError as error:
            raise _of(path, error) from None
    if durable:
        sync(path.parent)


def _of(path: Path, error: OSError) -> OSError:
    return OSError(error.errno, error.strerror, str(path))


def sync(directory: Path) -> None:
    """Have the names in a directory on the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class UnfinishedFiles:
    """What processes that are gone left in these directories, as `seams.Unfinished`."""

    def __init__(self, directories: Sequence[Path], processes: Processes) -> None:
        self._directories = tuple(dict.fromkeys(Path(os.path.realpath(directory)) for directory in directories))
        self._processes = processes

    def all(self) -> tuple[UnfinishedFile, ...]:
        """Return the files whose writer is gone; a directory that is not there, or is root's alone, has none."""
        return tuple(file for directory in self._directories for file in self._in(directory))

    def _in(self, directory: Path) -> Iterator[UnfinishedFile]:
        try:
            names = sorted(os.listdir(directory))
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return
        for name in names:
            match = _UNFINISHED.fullmatch(name)
            if match is not None:
                file = UnfinishedFile(str(directory / name), ProcessId(int(match[2]), int(match[3])))
                if self._is_left(file):
                    yield file

    def _is_left(self, file: UnfinishedFile) -> bool:
        """Say whether it is a regular file of this user's, or of the owner it was given, and its writer is gone."""
        try:
            seen = os.lstat(file.path)
        except FileNotFoundError:
            return False
        ours = stat.S_ISREG(seen.st_mode) and seen.st_uid in (os.geteuid(), *_owners_before(file.path))
        return ours and not self._processes.alive(file.process)

    def remove(self, file: UnfinishedFile) -> None:
        """Remove one of them; a missing one is no error."""
        if self._is_left(file):
            with suppress(FileNotFoundError):
                os.unlink(file.path)


def _owners_before(path: str) -> Iterator[int]:
    """Return who owns the file that one was to replace: `written` gives that owner before the file has its name.

    A version that is kept, as host.yaml.1, has the owner of host.yaml.
    """
    directory, name = os.path.split(path)
    match = _UNFINISHED.fullmatch(name)
    for known in {match[1], re.sub(r"\.[0-9]+$", "", match[1])} if match is not None else ():
        with suppress(OSError):
            yield os.stat(os.path.join(directory, known)).st_uid


def unfinished_below(root: Path, run_dir: Path, host_file: Path, processes: Processes) -> UnfinishedFiles:
    """Return what may be unfinished on a host: below its run directory, beside host.yaml, and in the system's own."""
    run = [run_dir / name for name in RUN_DIRECTORIES]
    beside = [host_file.parent, Path(os.path.realpath(host_file)).parent]
    return UnfinishedFiles([*run, *beside, *(root / name.lstrip("/") for name in SYSTEM_DIRECTORIES)], processes)
