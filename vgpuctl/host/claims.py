# SPDX-License-Identifier: Apache-2.0
"""Claims and stuck writes: one small JSON file each below /run/vgpuctl.

/run is emptied by the same reboot that empties the devices, so nothing here goes stale across boots. A file
appears whole or not at all: it is written under a name that starts with a dot and then linked to its own name,
which fails when that name exists (link(2)). Removing first compares and then unlinks; a lock on the directory
keeps the two together, so that a claim which was given to another VM meanwhile is never taken from it.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from vgpuctl.host.clock import HostClock
from vgpuctl.host.lock import HostLock, make_private
from vgpuctl.model.gpu import Backend
from vgpuctl.model.seams import Clock, Processes
from vgpuctl.model.vm import Claim, ProcessId, StuckWrite

_LONGEST_FILE = 65536
_counter = itertools.count()


class ClaimStore:
    """The directory /run/vgpuctl, as `seams.Claims`; also keeps the records of stuck writes."""

    def __init__(self, run_dir: Path, processes: Processes, command: str, *, clock: Clock | None = None) -> None:
        self._claims = run_dir / "claims"
        self._stuck = run_dir / "stuck"
        self._processes = processes
        self._lock = HostLock(run_dir / "lock", processes, command, clock or HostClock())

    @property
    def held(self) -> bool:
        """Whether this process holds the host lock now."""
        return self._lock.held

    def lock(self, wait_seconds: float) -> AbstractContextManager[None]:
        """Take the host lock; raises Locked after `wait_seconds`."""
        return self._lock.hold(wait_seconds)

    def all(self) -> tuple[Claim, ...]:
        """Return every readable claim, sorted by carrier."""
        found = (self._claim(name) for name in _names(self._claims))
        return tuple(claim for claim in found if claim is not None)

    def unreadable(self) -> tuple[str, ...]:
        """Return carriers whose claim cannot be read.

        A directory that cannot even be listed is itself the one entry: what is in it is not known.
        """
        try:
            names = sorted(n for n in os.listdir(self._claims) if not n.startswith("."))
        except FileNotFoundError:
            return ()
        except OSError:
            return (str(self._claims),)
        return tuple(name for name in names if self._claim(name) is None and _there(self._claims / name))

    def add(self, claim: Claim) -> None:
        """Write a claim; FileExistsError when the carrier is claimed already."""
        _check_name(claim.carrier)
        with _directory_locked(self._claims):
            _write_new(self._claims / claim.carrier, asdict(claim))

    def remove(self, carrier: str, vm_uuid: str) -> None:
        """Remove a claim if it still is this VM's; one that cannot be read is nobody's to remove."""
        _check_name(carrier)
        if not self._claims.is_dir():
            return
        with _directory_locked(self._claims):
            claim = self._claim(carrier)
            if claim is not None and claim.vm_uuid == vm_uuid:
                os.unlink(self._claims / carrier)

    def stuck(self) -> tuple[StuckWrite, ...]:
        """Return the writes that still wait in the kernel, after dropping those whose process is gone."""
        found: list[StuckWrite] = []
        for name in _names(self._stuck):
            write = _stuck_write(_loaded(self._stuck / name))
            if write is not None and self._processes.alive(write.process):
                found.append(write)
            elif write is not None:
                self._forget(name)
        return tuple(found)

    def record_stuck(self, write: StuckWrite) -> None:
        """Keep a write that has not come back; a record of an earlier process of that pid gives way."""
        make_private(self._stuck.parent, self._stuck)
        self._forget(str(write.process.pid))
        _write_new(self._stuck / str(write.process.pid), asdict(write))

    def forget_stuck(self, write: StuckWrite) -> None:
        """Drop the record of a write that came back after all."""
        self._forget(str(write.process.pid))

    def _forget(self, name: str) -> None:
        try:
            os.unlink(self._stuck / name)
        except OSError:  # gone, or not ours to remove: who reads it checks the process again
            return

    def _claim(self, name: str) -> Claim | None:
        data = _loaded(self._claims / name)
        if not isinstance(data, dict) or data.get("carrier") != name:
            return None
        try:
            process = ProcessId(**data.pop("process"))
            return Claim(**{**data, "backend": Backend(data["backend"]), "process": process})
        except (ValueError, KeyError, TypeError):
            return None


def _stuck_write(data: object) -> StuckWrite | None:
    if not isinstance(data, dict):
        return None
    try:
        return StuckWrite(**{**data, "process": ProcessId(**data["process"])})
    except (KeyError, TypeError):
        return None


def _check_name(carrier: str) -> None:
    """Refuse a carrier that is no file name: the name is made into a path."""
    if not carrier or carrier.startswith(".") or "/" in carrier or "\0" in carrier:
        raise ValueError(f"not a carrier: {carrier!r}")


def _names(directory: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if not name.startswith("."))
    except (FileNotFoundError, PermissionError):
        return []


def _there(path: Path) -> bool:
    """Say whether a file is still there: a claim that was removed meanwhile is not an unreadable one."""
    return os.path.lexists(path)


def _loaded(path: Path) -> object:
    """Return a file's JSON, or None when it cannot be read or is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            return json.loads(os.read(descriptor, _LONGEST_FILE))
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return None


def _write_new(path: Path, data: dict[str, object]) -> None:
    """Make a whole file, or raise FileExistsError; nobody ever sees half of it."""
    temporary = path.parent / f".{os.getpid()}-{next(_counter)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(temporary, flags, 0o600)
        try:
            text = json.dumps(data).encode()
            if os.write(descriptor, text) != len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        finally:
            os.close(descriptor)
        os.link(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


@contextmanager
def _directory_locked(directory: Path) -> Iterator[None]:
    """Keep other writers out of a directory for the microseconds of one change."""
    make_private(directory.parent, directory)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
