# SPDX-License-Identifier: Apache-2.0
"""Claims and stuck writes: one small JSON file each below /run/vgpuctl.

/run is emptied by the same reboot that empties the devices, so nothing here goes stale across boots. A file
appears whole or not at all (`host/atomic.py`), and a claim is not made where there is one. Removing first compares
and then unlinks; a lock on the directory keeps the two together, so that a claim which was given to another VM
meanwhile is never taken from it.

Two versions of vgpuctl may meet here: keys that this one does not know are passed over, so a field that is added
to `Claim`, `ProcessId` or `StuckWrite` needs a default there. All claims are read in one pass, because this is
what a look under the host lock spends its time on.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from vgpuctl.host.atomic import write
from vgpuctl.host.clock import HostClock
from vgpuctl.host.lock import HostLock, make_private
from vgpuctl.model.gpu import Backend
from vgpuctl.model.json_text import parsed
from vgpuctl.model.records import ClaimsRead
from vgpuctl.model.vm import Claim, DrainedVm, ProcessId, StuckWrite, WorkedOn
from vgpuctl.value import Value, as_dict, field_names

if TYPE_CHECKING:
    from vgpuctl.model.seams import Clock, Processes

RUN_DIR = Path("/run/vgpuctl")
_LONGEST_FILE = 65536
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_KINDS: tuple[tuple[str, type | tuple[type, ...]], ...] = (
    *((key, str) for key in ("gpu", "function", "vm", "vm_uuid", "command")),
    ("profile", (str, type(None))),
    ("framebuffer_mib", (int, type(None))),
)
_CLAIM, _PROCESS = frozenset(field_names(Claim)), frozenset(field_names(ProcessId))

Note = TypeVar("Note", bound=Value)


class ClaimStore:
    """The directory /run/vgpuctl, as `seams.Claims`; also keeps the records of stuck writes.

    `read_only`: a captured tree. Nothing in it is made, changed or removed, and the lock is only noted: nobody else
    changes a capture.
    """

    def __init__(
        self,
        run_dir: Path,
        processes: Processes,
        command: str,
        *,
        clock: Clock | None = None,
        read_only: bool = False,
    ) -> None:
        self._run_dir = run_dir
        self._claims = run_dir / "claims"
        self._stuck = run_dir / "stuck"
        self._drained = run_dir / "drained"
        self._working = run_dir / "working"
        self._processes = processes
        self._read_only = read_only
        self._seen: dict[str, tuple[bytes, Claim | None]] = {}
        self._command = command
        self._clock = clock or HostClock()
        self._lock = self._lock_on("lock")

    @property
    def held(self) -> bool:
        """Whether this process holds the host lock now."""
        return self._lock.held

    def lock(self, wait_seconds: float) -> AbstractContextManager[None]:
        """Take the host lock; raises Locked after `wait_seconds`."""
        return self._lock.hold(wait_seconds)

    def turn(self, gpu: str, wait_seconds: float) -> AbstractContextManager[None]:
        """Wait for the turn to make a vGPU on a GPU; raises Locked after `wait_seconds`."""
        _check_name(gpu)
        return self._lock_on(f"turn-{gpu}", what=f"GPU {gpu} for a new vGPU").hold(wait_seconds)

    def _lock_on(self, name: str, what: str = "the host lock") -> HostLock:
        path = None if self._read_only else self._run_dir / name
        return HostLock(path, self._processes, self._command, self._clock, what)

    def all(self) -> tuple[Claim, ...]:
        """Return every readable claim, sorted by carrier."""
        return self.read().claims

    def read(self, carriers: frozenset[str] | None = None) -> ClaimsRead:
        """Read every claim once, in one pass, or those on some carriers alone."""
        claims: list[Claim] = []
        unreadable: list[str] = []
        for name, text in _files(self._claims, carriers):
            claim = self._understood(name, text)
            if claim is not None:
                claims.append(claim)
            else:
                unreadable.append(name)
        return ClaimsRead(tuple(claims), tuple(unreadable))

    def _understood(self, name: str, text: bytes) -> Claim | None:
        """Return the claim in a file; a text that was understood before is not parsed again."""
        seen = self._seen.get(name)
        if seen is None or seen[0] != text:
            seen = self._seen[name] = (text, _claim(name, text))
        return seen[1]

    def add(self, claim: Claim) -> None:
        """Write a claim; FileExistsError, with the file's path, when the carrier is claimed already."""
        _check_name(claim.carrier)
        self._refuse_capture()
        with _directory_locked(self._claims):
            _write_new(self._claims / claim.carrier, as_dict(claim))

    def renew(self, claim: Claim) -> None:
        """Write a claim in the place of its VM's own, or where there is none; FileExistsError as `add`."""
        _check_name(claim.carrier)
        self._refuse_capture()
        path = self._claims / claim.carrier
        with _directory_locked(self._claims):
            if path.exists():
                there = _claim(claim.carrier, _text(path))
                if there is None or there.vm_uuid != claim.vm_uuid:
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            _write_new(path, as_dict(claim), over=True)

    def set_mode(self, mode: int) -> None:
        """Set the permission bits of the directory itself."""
        self._refuse_capture()
        os.chmod(self._run_dir, mode)

    def remove(self, carrier: str, vm_uuid: str) -> None:
        """Remove a claim if it still is this VM's; one that cannot be read is nobody's to remove."""
        _check_name(carrier)
        self._refuse_capture()
        if not self._claims.is_dir():
            return
        with _directory_locked(self._claims):
            claim = _claim(carrier, _text(self._claims / carrier))
            if claim is not None and claim.vm_uuid == vm_uuid:
                os.unlink(self._claims / carrier)

    def drained(self) -> tuple[DrainedVm, ...]:
        """Return the VMs that were shut down for a while and not started again; what cannot be understood is left out.

        Raises:
            OSError: they cannot be listed.
        """
        return tuple(vm for _, text in _files(self._drained) if (vm := _note(DrainedVm, text)) is not None)

    def note_drained(self, vm: DrainedVm) -> None:
        """Keep that a VM is about to be shut down for a while."""
        self._keep(self._drained, vm.vm_uuid, vm)

    def forget_drained(self, vm_uuid: str, was: DrainedVm | None = None) -> None:
        """Drop that it is to be started again; with `was`, only while the note still is that one."""
        self._drop(self._drained, vm_uuid, was)

    def working(self) -> frozenset[str]:
        """Return the uuids of the VMs that a living process works on, after dropping what others left.

        Raises:
            OSError: they cannot be listed.
        """
        found = set()
        for name, text in _files(self._working):
            work = _note(WorkedOn, text)
            if work is not None and self._processes.alive(work.process):
                found.add(work.vm_uuid)
            elif work is not None:
                self._drop(self._working, name, work)
        return frozenset(found)

    def note_working(self, work: WorkedOn) -> None:
        """Keep that a process works on a VM; what an earlier one left gives way."""
        self._keep(self._working, work.vm_uuid, work)

    def forget_working(self, vm_uuid: str) -> None:
        """Drop that a process works on a VM."""
        self._drop(self._working, vm_uuid)

    def stuck(self) -> tuple[StuckWrite, ...]:
        """Return the writes that still wait in the kernel, after dropping those whose process is gone.

        Raises:
            OSError: the records cannot be listed.
        """
        found: list[StuckWrite] = []
        for name, text in _files(self._stuck):
            write = _note(StuckWrite, text)
            if write is not None and self._processes.alive(write.process):
                found.append(write)
            elif write is not None:
                self._drop(self._stuck, name, write)
        return tuple(found)

    def record_stuck(self, write: StuckWrite) -> None:
        """Keep a write that has not come back; a record of an earlier process of that pid gives way."""
        self._keep(self._stuck, str(write.process.pid), write)

    def forget_stuck(self, write: StuckWrite) -> None:
        """Drop the record of a write that came back after all."""
        self._drop(self._stuck, str(write.process.pid))

    def _keep(self, directory: Path, name: str, note: DrainedVm | WorkedOn | StuckWrite) -> None:
        """Write a note in the place of an earlier one, in one step."""
        _check_name(name)
        self._refuse_capture()
        with _directory_locked(directory):
            _write_new(directory / name, as_dict(note), over=True)

    def _drop(self, directory: Path, name: str, was: DrainedVm | WorkedOn | StuckWrite | None = None) -> None:
        """Remove a note; with `was`, only while it still says that: another process may have written a new one."""
        if self._read_only or not directory.is_dir():
            return
        try:
            with _directory_locked(directory):
                if was is None or _note(type(was), _text(directory / name)) == was:
                    os.unlink(directory / name)
        except OSError:  # gone, or not ours to remove: who reads it checks the process again
            return

    def _refuse_capture(self) -> None:
        if self._read_only:
            raise PermissionError(errno.EROFS, "nothing is written here", str(self._claims.parent))


def _claim(name: str, text: bytes) -> Claim | None:
    """Return the claim in a file of that name, or None: what cannot be understood is never half believed."""
    data = parsed(text)
    if not isinstance(data, dict) or data.get("carrier") != name:
        return None
    try:
        data = _known(data, _CLAIM)
        if not all(isinstance(data[key], kinds) for key, kinds in _KINDS):
            return None
        if not (isinstance(data.get("type_id"), str | None) and isinstance(data.get("placement_id"), int | None)):
            return None
        if not isinstance(data.get("leaving", False), bool) or not isinstance(data.get("spread_group"), str | None):
            return None
        return Claim(**{**data, "backend": Backend(data["backend"]), "process": _process(data["process"])})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _note(kind: type[Note], text: bytes) -> Note | None:
    """Return the record of a process's work in a file, or None when it cannot be understood."""
    data = parsed(text)
    if not isinstance(data, dict):
        return None
    try:
        return kind(**{**_known(data, frozenset(field_names(kind))), "process": _process(data["process"])})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _process(data: dict[str, Any]) -> ProcessId:
    process = ProcessId(**_known(data, _PROCESS))
    if not (isinstance(process.pid, int) and isinstance(process.start_ticks, int)):
        raise TypeError("a process is two numbers")
    return process


def _known(data: dict[str, Any], wanted: frozenset[str]) -> dict[str, Any]:
    """Return what this version knows of a record that another one may have written."""
    return data if data.keys() == wanted else {key: data[key] for key in data.keys() & wanted}


def _check_name(carrier: str) -> None:
    """Refuse a carrier that is no file name: the name is made into a path."""
    if not carrier or carrier.startswith(".") or "/" in carrier or "\0" in carrier:
        raise ValueError(f"not a carrier: {carrier!r}")


def _files(directory: Path, wanted: frozenset[str] | None = None) -> Iterator[tuple[str, bytes]]:
    """Yield name and text of each file, sorted; of one that cannot be read, no text. One that has gone is left out.

    The directory itself is no link: below a captured root it would lead to the files of the machine that looks.
    """
    try:
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        for name in sorted(os.listdir(opened) if wanted is None else wanted):
            if name.startswith(".") or "/" in name:
                continue
            try:
                yield name, _bytes(name, opened)
            except FileNotFoundError:
                continue
            except OSError:
                yield name, b""
    finally:
        os.close(opened)


def _bytes(path: str | Path, directory: int | None = None) -> bytes:
    descriptor = os.open(path, _READ, dir_fd=directory)
    try:
        return os.read(descriptor, _LONGEST_FILE)
    finally:
        os.close(descriptor)


def _text(path: Path) -> bytes:
    try:
        return _bytes(path)
    except OSError:
        return b""


def _write_new(path: Path, data: dict[str, object], *, over: bool = False) -> None:
    """Make a whole file, under the directory's lock; `over`: in the place of the one that is there."""
    write(path, json.dumps(data).encode(), over=over, durable=False)


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
