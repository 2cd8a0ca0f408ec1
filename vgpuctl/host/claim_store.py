# SPDX-License-Identifier: Apache-2.0
"""Claims, stuck writes, drained VMs and VMs in progress: one small JSON file each in /run/vgpuctl.

The reboot that removes the devices also empties /run, so nothing here is stale after a boot. Files are written
atomically (`host/atomic_files.py`), and a new claim never overwrites an existing one. Removing a claim first compares,
then unlinks, under a lock on the directory; so it never removes a claim that another VM got meanwhile.

Two versions of vgpuctl may share these files: unknown keys are ignored, so a field that is added to `Claim`,
`ProcessId` or `StuckWrite` needs a default. A claim or note names its operation (`host/operation_files.py`); one
without, as version 0.1 wrote it, is held by no living operation. All claims are read in one pass, because a read under
the host lock spends its time on this.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from vgpuctl.errors import Locked
from vgpuctl.host.atomic_files import write_file
from vgpuctl.host.file_lock import FileLock, lock_directory, make_private_directories
from vgpuctl.host.processes import HostClock
from vgpuctl.model.gpu import Backend
from vgpuctl.model.json_yaml import parse_json
from vgpuctl.model.port_values import ClaimList
from vgpuctl.model.vm import Claim, DrainedVm, ProcessId, StuckWrite, VmInProgress
from vgpuctl.value import Value, as_dict, field_names

if TYPE_CHECKING:
    from vgpuctl.host.processes import ProcessTable
    from vgpuctl.ports.run_directory import Operations
    from vgpuctl.ports.system import Clock

RUN_DIR = Path("/run/vgpuctl")
_MAX_FILE_BYTES = 65536
_HOUR_SECONDS = 3600.0
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_FIELD_TYPES: tuple[tuple[str, type | tuple[type, ...]], ...] = (
    *((key, str) for key in ("gpu", "function", "vm", "vm_uuid", "command")),
    ("profile", (str, type(None))),
    ("framebuffer_mib", (int, type(None))),
)
_CLAIM_FIELDS, _PROCESS_FIELDS = frozenset(field_names(Claim)), frozenset(field_names(ProcessId))

AnyNote = TypeVar("AnyNote", bound=Value)


class ClaimStore:
    """The directory /run/vgpuctl; implements `ports.Claims`, and also stores the stuck writes.

    `read_only`: a captured tree. Nothing in it is created, changed or removed. The lock exists only in this process,
    because nobody else changes a capture.
    """

    def __init__(
        self,
        run_dir: Path,
        processes: ProcessTable,
        operations: Operations,
        *,
        clock: Clock | None = None,
        read_only: bool = False,
        wait_seconds: float = 60.0,
    ) -> None:
        """`wait_seconds`: for the lock of a directory, which other processes hold for microseconds."""
        self._run_dir = run_dir
        self._claims = run_dir / "claims"
        self._stuck = run_dir / "stuck"
        self._drained = run_dir / "drained"
        self._in_progress = run_dir / "working"
        self._removals = run_dir / "removals"
        self._processes = processes
        self._operations = operations
        self._read_only = read_only
        self._parsed_claims: dict[str, tuple[bytes, Claim | None]] = {}
        self._clock = clock or HostClock()
        self._lock = self._make_lock("lock")
        self._wait_seconds = wait_seconds
        self._has_waited = False

    @property
    def is_locked(self) -> bool:
        """Whether the calling thread holds the host lock now."""
        return self._lock.is_locked

    def lock(self, wait_seconds: float) -> AbstractContextManager[None]:
        """Take the host lock; raises Locked after `wait_seconds`."""
        return self._lock.hold(wait_seconds)

    def gpu_creation_lock(self, gpu: str, wait_seconds: float) -> AbstractContextManager[None]:
        """Take the GPU's own lock for creating a vGPU; raises Locked after `wait_seconds`."""
        _require_file_name(gpu)
        return self._make_lock(f"turn-{gpu}", description=f"GPU {gpu} for a new vGPU").hold(wait_seconds)

    def of_operation(self, operations: Operations) -> ClaimStore:
        """Return this store for another operation. Both share the host lock, which sysfs and libvirt ask about."""
        store = copy(self)
        store._operations = operations
        return store

    def _make_lock(self, name: str, description: str = "the host lock") -> FileLock:
        path = None if self._read_only else self._run_dir / name
        return FileLock(path, self._operations, self._clock, description)

    def all(self) -> tuple[Claim, ...]:
        """Return every readable claim, sorted by carrier."""
        return self.read().claims

    def read(self, carriers: frozenset[str] | None = None) -> ClaimList:
        """Read every claim once, in one pass, or only those on `carriers`."""
        claims: list[Claim] = []
        unreadable: list[str] = []
        for name, text in _read_files(self._claims, carriers):
            claim = self._parse_cached(name, text)
            if claim is not None:
                claims.append(claim)
            else:
                unreadable.append(name)
        return ClaimList(tuple(claims), tuple(unreadable))

    def _parse_cached(self, name: str, text: bytes) -> Claim | None:
        """Return the claim in a file; an unchanged text is not parsed again."""
        cached = self._parsed_claims.get(name)
        if cached is None or cached[0] != text:
            cached = self._parsed_claims[name] = (text, _parse_claim(name, text))
        return cached[1]

    def add(self, claim: Claim) -> None:
        """Write a claim; FileExistsError, with the file's path, when the carrier is already claimed."""
        _require_file_name(claim.carrier)
        self._prepare_write()
        with self._lock_directory(self._claims):
            _write_json(self._claims / claim.carrier, _claim_fields(claim))

    def replace(self, claim: Claim) -> None:
        """Replace the VM's own claim, or write a missing one; FileExistsError as `add`."""
        _require_file_name(claim.carrier)
        self._prepare_write()
        path = self._claims / claim.carrier
        with self._lock_directory(self._claims):
            if path.exists():
                current = _parse_claim(claim.carrier, _read_or_empty(path))
                if current is None or current.vm_uuid != claim.vm_uuid:
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            _write_json(path, _claim_fields(claim), overwrite=True)

    def set_permissions(self, mode: int) -> None:
        """Set the permission bits of the directory itself."""
        self._require_writable()
        os.chmod(self._run_dir, mode)

    def remove(self, carrier: str, vm_uuid: str) -> None:
        """Remove a claim if it still belongs to this VM; never remove an unreadable one."""
        _require_file_name(carrier)
        self._require_writable()
        if not self._claims.is_dir():
            return
        with self._lock_directory(self._claims):
            claim = _parse_claim(carrier, _read_or_empty(self._claims / carrier))
            if claim is not None and claim.vm_uuid == vm_uuid:
                os.unlink(self._claims / carrier)

    def drained_vms(self) -> tuple[DrainedVm, ...]:
        """Return the VMs that were shut down temporarily and not started again; unreadable entries are left out.

        Raises:
            OSError: they cannot be listed.
        """
        return tuple(vm for _, text in _read_files(self._drained) if (vm := _parse_note(DrainedVm, text)) is not None)

    def add_drained_vm(self, vm: DrainedVm) -> None:
        """Record that a VM is about to be shut down temporarily."""
        self._prepare_write()
        self._write_note(self._drained, vm.vm_uuid, vm)

    def remove_drained_vm(self, vm_uuid: str, expected: DrainedVm | None = None) -> None:
        """Remove a drained VM's entry; with `expected`, only if the entry equals it."""
        self._remove_note(self._drained, vm_uuid, expected)

    def vms_in_progress(self) -> tuple[VmInProgress, ...]:
        """Return the notes on VMs that have no claim; unreadable ones are left out.

        Raises:
            OSError: they cannot be listed.
        """
        notes = (_parse_note(VmInProgress, text) for _, text in _read_files(self._in_progress))
        return tuple(note for note in notes if note is not None)

    def add_vm_in_progress(self, work: VmInProgress) -> None:
        """Record that an operation works on a VM; overwrites an earlier operation's entry."""
        self._prepare_write()
        self._write_note(self._in_progress, work.vm_uuid, work)

    def remove_vm_in_progress(self, vm_uuid: str, expected: VmInProgress | None = None) -> None:
        """Remove the entry that an operation works on a VM; with `expected`, only if the entry equals it."""
        self._remove_note(self._in_progress, vm_uuid, expected)

    def stuck_writes(self) -> tuple[StuckWrite, ...]:
        """Return the writes that still wait in the kernel; removes the entries whose process has ended.

        Raises:
            OSError: the entries cannot be listed.
        """
        writes: list[StuckWrite] = []
        for name, text in _read_files(self._stuck):
            write = _parse_note(StuckWrite, text)
            if write is not None and self._processes.is_alive(write.process):
                writes.append(write)
            elif write is not None:
                self._remove_note(self._stuck, name, write)
        return tuple(writes)

    def add_stuck_write(self, write: StuckWrite) -> None:
        """Record a write that has not returned; overwrites the entry of an earlier process with that pid.

        The entry names the process that writes, and no operation.
        """
        self._require_writable()
        self._write_note(self._stuck, str(write.process.pid), write)

    def remove_stuck_write(self, write: StuckWrite) -> None:
        """Remove the entry of a write that has returned."""
        self._remove_note(self._stuck, str(write.process.pid))

    def count_removal(self, uid: int, limit: int, now: float) -> bool:
        """Count that a user removes a VM now; False after `limit` in an hour. One file for each user has the times."""
        self._require_writable()
        path = self._removals / str(uid)
        with self._lock_directory(self._removals):
            text = _read_or_empty(path)
            times = parse_json(text) if text else []
            if not isinstance(times, list):
                return False  # unknown is not zero
            recent = [time for time in times if isinstance(time, float | int) and now - _HOUR_SECONDS < time <= now]
            if len(recent) >= limit:
                return False
            write_file(path, json.dumps([*recent, now]).encode(), overwrite=True, durable=False)
        return True

    def _write_note(self, directory: Path, name: str, note: DrainedVm | VmInProgress | StuckWrite) -> None:
        """Write an entry atomically, over an earlier one."""
        _require_file_name(name)
        with self._lock_directory(directory):
            _write_json(directory / name, as_dict(note), overwrite=True)

    def _remove_note(
        self, directory: Path, name: str, expected: DrainedVm | VmInProgress | StuckWrite | None = None
    ) -> None:
        """Remove an entry; with `expected`, only if it equals that: another process may have written a new one."""
        if self._read_only or not directory.is_dir():
            return
        try:
            with self._lock_directory(directory):
                if expected is None or _parse_note(type(expected), _read_or_empty(directory / name)) == expected:
                    os.unlink(directory / name)
        except (OSError, Locked):  # gone, locked or no permission: readers check again whether the process is alive
            return

    @contextmanager
    def _lock_directory(self, directory: Path) -> Iterator[None]:
        """Keep other writers out of a directory. After one lock that was not free in time, the next is tried once."""
        make_private_directories(directory.parent, directory)
        try:
            with lock_directory(directory, self._clock, 0 if self._has_waited else self._wait_seconds):
                self._has_waited = False
                yield
        except Locked as error:
            self._has_waited = True
            error.facts["waited_seconds"] = self._wait_seconds
            raise

    def _prepare_write(self) -> None:
        """Begin the operation that what is about to be written names."""
        self._require_writable()
        self._operations.begin()

    def _require_writable(self) -> None:
        if self._read_only:
            raise PermissionError(errno.EROFS, "this host is read-only", str(self._claims.parent))


def _claim_fields(claim: Claim) -> dict[str, object]:
    """Return what a claim's file has; `account` and `adopted` only where they say something."""
    return {name: value for name, value in as_dict(claim).items() if name not in ("account", "adopted") or value}


def _parse_claim(name: str, text: bytes) -> Claim | None:
    """Return the claim in a file of that name, or None: a claim is never parsed in part."""
    data = parse_json(text)
    if not isinstance(data, dict) or data.get("carrier") != name:
        return None
    try:
        data = _known_fields(data, _CLAIM_FIELDS)
        if not all(isinstance(data[key], kinds) for key, kinds in _FIELD_TYPES):
            return None
        if not (isinstance(data.get("type_id"), str | None) and isinstance(data.get("placement_id"), int | None)):
            return None
        texts = (data.get("spread_group"), data.get("account"))
        if not all(isinstance(t, str | None) for t in texts):
            return None
        if not all(isinstance(data.get(flag, False), bool) for flag in ("leaving", "adopted")):
            return None
        if not isinstance(data.get("operation"), str | None):
            return None
        return Claim(**{**data, "backend": Backend(data["backend"]), "process": _parse_process(data["process"])})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _parse_note(kind: type[AnyNote], text: bytes) -> AnyNote | None:
    """Return the entry in a file, or None when it cannot be parsed."""
    data = parse_json(text)
    if not isinstance(data, dict):
        return None
    try:
        return kind(**{**_known_fields(data, frozenset(field_names(kind))), "process": _parse_process(data["process"])})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _parse_process(data: dict[str, Any]) -> ProcessId:
    process = ProcessId(**_known_fields(data, _PROCESS_FIELDS))
    if not (isinstance(process.pid, int) and isinstance(process.start_ticks, int)):
        raise TypeError("a process is two numbers")
    return process


def _known_fields(data: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """Return the fields that this version knows; another version may have written the file."""
    return data if data.keys() == names else {key: data[key] for key in data.keys() & names}


def _require_file_name(carrier: str) -> None:
    """Refuse a carrier that is not a plain file name, because it becomes part of a path."""
    if not carrier or carrier.startswith(".") or "/" in carrier or "\0" in carrier:
        raise ValueError(f"not a carrier: {carrier!r}")


def _read_files(directory: Path, names: frozenset[str] | None = None) -> Iterator[tuple[str, bytes]]:
    """Yield each file's name and text, sorted; the text is empty if unreadable. A file that vanishes is left out.

    The directory itself must not be a link: in a captured root it would lead to the files of the machine running this.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        for name in sorted(os.listdir(descriptor) if names is None else names):
            if name.startswith(".") or "/" in name:
                continue
            try:
                yield name, _read_bytes(name, descriptor)
            except FileNotFoundError:
                continue
            except OSError:
                yield name, b""
    finally:
        os.close(descriptor)


def _read_bytes(path: str | Path, directory: int | None = None) -> bytes:
    descriptor = os.open(path, _READ_FLAGS, dir_fd=directory)
    try:
        return os.read(descriptor, _MAX_FILE_BYTES)
    finally:
        os.close(descriptor)


def _read_or_empty(path: Path) -> bytes:
    try:
        return _read_bytes(path)
    except OSError:
        return b""


def _write_json(path: Path, data: dict[str, object], *, overwrite: bool = False) -> None:
    """Write a whole file, under the directory's lock; `overwrite`: replace an existing one."""
    write_file(path, json.dumps(data).encode(), overwrite=overwrite, durable=False)
