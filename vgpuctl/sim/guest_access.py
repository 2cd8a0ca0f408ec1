# SPDX-License-Identifier: Apache-2.0
"""What libvirt does with a running guest on the simulated host: reboot, reset, and its serial console.

A guest that boots a system shows a login prompt on its console, and nobody can log in; any other guest is silent. Like
libvirt, one session at a time has a console: "Active console session exists for this domain" (qemu_driver.c). Sessions
of several processes find each other by files that they lock (flock), so a killed one holds nothing.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from vgpuctl.model.port_values import RebootOutcome
from vgpuctl.sim import domain_xml
from vgpuctl.sim.core import Core, serialize_calls
from vgpuctl.sim.libvirt_errors import VirError, VirErrorNumber, read_call, require_libvirt, write_call

if TYPE_CHECKING:
    from vgpuctl.sim.objects import RunningDomain
    from vgpuctl.sim.state import State

CONSOLE_DIRECTORY = "consoles"
_BOOTABLE_FIRMWARE = ("bios", "uefi", "both")
_ERASE, _ENTER = (0x08, 0x7F), (0x0A, 0x0D)


@serialize_calls
class SimGuestAccess:
    """The part of `ports.Hypervisor` about a running guest."""

    _core: Core

    def _domain_name(self, uuid: str) -> str:
        raise NotImplementedError

    def reboot(self, uuid: str) -> None:
        """Ask the guest to reboot. It does at once, unless a fault of the scenario makes it ignore the request."""
        self._reset(uuid, "reboot")

    def reset(self, uuid: str) -> None:
        """Reset a running domain."""
        self._reset(uuid, "reset")

    def _reset(self, uuid: str, call: str) -> None:
        with write_call(self._core, call, self._domain_name(uuid)) as change:
            change.add("resets", uuid, _require_running(self._core.state, uuid).resets + 1)

    def watch_reboot(self, uuid: str) -> SimReboot:
        """Watch whether a domain reboots inside the `with` block."""
        with read_call(self._core, "find-domain", uuid) as state:
            _require_domain(state, uuid)
            running = state.running.get(uuid)
        return SimReboot(self._core, uuid, None if running is None else (running.pid, running.resets))

    @contextmanager
    def open_console(self, uuid: str, *, force: bool) -> Iterator[SimConsole]:
        """Open a running domain's serial console; one session at a time has it."""
        name = self._domain_name(uuid)
        with read_call(self._core, "open-console", name) as state:
            running = _require_running(state, uuid)
            devices = domain_xml.parse(running.xml)
            if not any(devices.findall(f"devices/{kind}[@type='pty']") for kind in ("console", "serial")):
                raise VirError(VirErrorNumber.INTERNAL_ERROR, "internal error: cannot find character device (null)")
            file, descriptor = _open_session(self._core.directory / CONSOLE_DIRECTORY, uuid, force=force)
        console = SimConsole(self._core, running, file, f"{name} login: " if boots_a_system(state, running) else None)
        try:
            yield console
        finally:
            console.close()
            os.close(descriptor)


def _require_domain(state: State, uuid: str) -> None:
    if uuid not in state.domains:
        raise VirError(VirErrorNumber.NO_DOMAIN, f"Domain not found: no domain with matching uuid '{uuid}'")


def _require_running(state: State, uuid: str) -> RunningDomain:
    _require_domain(state, uuid)
    running = state.running.get(uuid)
    if running is None:
        raise VirError(VirErrorNumber.OPERATION_INVALID, "Requested operation is not valid: domain is not running")
    return running


def boots_a_system(state: State, running: RunningDomain) -> bool:
    """Say whether one of a running domain's disks has a system."""
    paths = domain_xml.find_disk_paths(domain_xml.parse(running.xml))
    return any(file is not None and file.firmware in _BOOTABLE_FIRMWARE for file in map(state.find_file, paths))


def _open_session(directory: Path, uuid: str, *, force: bool) -> tuple[Path, int]:
    """Return a new session's file and its locked descriptor; with `force`, the other session's file is removed."""
    directory.mkdir(mode=0o700, exist_ok=True)
    for other in directory.glob(f"{uuid}.*"):
        if _is_locked(other) and not force:
            text = "operation failed: Active console session exists for this domain"
            raise VirError(VirErrorNumber.OPERATION_FAILED, text)
        other.unlink(missing_ok=True)
    file = directory / f"{uuid}.{os.urandom(8).hex()}"
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return file, descriptor


def _is_locked(file: Path) -> bool:
    with suppress(FileNotFoundError), file.open("rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class SimReboot:
    """Whether a guest rebooted: it does at once or never, so there is nothing to wait for."""

    def __init__(self, core: Core, uuid: str, before: tuple[int, int] | None) -> None:
        self._core = core
        self._uuid = uuid
        self._before = before

    def __enter__(self) -> SimReboot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def wait(self, deadline_seconds: float) -> RebootOutcome:
        """Return what libvirt reported."""
        with self._core.call_lock:
            require_libvirt(self._core, "watch-reboot")
            running = self._core.read_state().running.get(self._uuid)
        if running is None:
            return RebootOutcome.OFF
        return RebootOutcome.UNKNOWN if (running.pid, running.resets) == self._before else RebootOutcome.REBOOTED


class SimConsole:
    """A serial console with a login prompt, or a silent one. It ends with its file: another session removed it."""

    def __init__(self, core: Core, running: RunningDomain, file: Path, prompt: str | None) -> None:
        self._core = core
        self._uuid, self._pid = running.uuid, running.pid
        self._file = file
        self._prompt = None if prompt is None else f"\r\n{prompt}".encode()
        self._typed = 0
        self._output = bytearray()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._write(self._prompt or b"")

    def fileno(self) -> int:
        """Return a descriptor that is readable when there is output."""
        return self._event

    def receive(self) -> bytes | None:
        """Return the guest's output; None when the domain is off or another session has the console."""
        with self._core.call_lock:
            require_libvirt(self._core, "open-console")
            running = self._core.read_state().running.get(self._uuid)
        if running is None or running.pid != self._pid or not self._file.exists():
            return None
        with suppress(BlockingIOError):
            os.eventfd_read(self._event)
        output = bytes(self._output)
        self._output.clear()
        return output

    def send(self, data: bytes) -> int:
        """Echo what is typed; every line is a login that fails."""
        for byte in data if self._prompt is not None else b"":
            if byte in _ENTER:
                self._write((b"\r\n\r\nLogin incorrect" if self._typed else b"") + (self._prompt or b""))
                self._typed = 0
            elif byte in _ERASE and self._typed:
                self._typed -= 1
                self._write(b"\b \b")
            elif byte >= 0x20 and byte not in _ERASE:
                self._typed += 1
                self._write(bytes((byte,)))
        return 0

    def _write(self, data: bytes) -> None:
        if data:
            self._output += data
            os.eventfd_write(self._event, 1)

    def close(self) -> None:
        """End the session."""
        self._file.unlink(missing_ok=True)
        os.close(self._event)
