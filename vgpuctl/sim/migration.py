# SPDX-License-Identifier: Apache-2.0
"""Moving running domains between simulated hosts, and saving them, with libvirt's checks and error numbers.

A move takes no time, and reports as if it took seconds. It ends when the downtime that its devices need fits the limit:
`BASE_DOWNTIME_MS`, and as long as the state of its vGPUs takes at the speed that NVML names for writing it; without a
limit, QEMU's 300 ms. A guest that never fits rests after `MAX_ROUNDS` reports, so that no test hangs.

While it lasts, the target has the domain, paused and with its devices, but without its definition; that comes at the
end (VIR_MIGRATE_PERSIST_DEST). No lock is held while the caller's `report` runs. In one respect it is not like libvirt,
whose daemon goes on when vgpuctl is killed: here, the domain then stays on the source, and half on the target.

Which devices migrate: NVIDIA's and Moore Threads' vGPUs. Of the others nobody has seen it: QEMU (hw/vfio/migration.c)
refuses a device whose VFIO driver does not offer it, which is so for vfio-pci.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vgpuctl.errors import HostCannot
from vgpuctl.model.migration import MigrationProgress, MigrationRequest
from vgpuctl.sim import domain_xml, migration_checks, starting
from vgpuctl.sim.core import Core, FaultInjected, StateChange, serialize_calls
from vgpuctl.sim.machine import version_number
from vgpuctl.sim.migration_checks import (
    Guest,
    find_blockers,
    read_guest,
    require_movable,
    require_same_domain,
    require_same_guest,
)
from vgpuctl.sim.peers import opened_target
from vgpuctl.sim.refusals import (
    VirError,
    VirErrorNumber,
    read_call,
    require_libvirt,
    translate_error,
    write_call,
)
from vgpuctl.sim.vgpu_moves import STATE_SHARE, WRITE_MB_PER_SECOND
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.sim.objects import RunningDomain, SimFile
    from vgpuctl.sim.state import State

Report = Callable[[MigrationProgress], int | None]

BASE_DOWNTIME_MS = 40
DEFAULT_LIMIT_MS = 300
MAX_ROUNDS = 600
_MIN_ROUNDS = 2
_BANDWIDTH = 1 << 30
_NAMES_BLOCKERS_SINCE = 6_000_000


class _Leaving(Value):
    """A domain that is to leave its host: the process that it is there, and what moves."""

    name: str
    pid: int
    guest: Guest
    files: dict[str, SimFile]
    types: dict[int, str]
    device_mib: int
    ends_unknown: bool


@serialize_calls
class SimMigration:
    """The part of `ports.Hypervisor` about moves of which each call ends at once."""

    _core: Core

    def _domain_name(self, uuid: str) -> str:
        raise NotImplementedError

    def migration_blockers(self, uuid: str) -> tuple[str, ...] | None:
        """Return why QEMU cannot move or save a running domain now; None: it is too old to say."""
        with read_call(self._core, "migration-blockers", self._domain_name(uuid)) as state:
            running = _require_running(state, uuid)
            if version_number(state.machine.scenario["libvirt"]["qemu"]) < _NAMES_BLOCKERS_SINCE:
                return None
            return find_blockers(state, running)

    def definition_on(self, target_uri: str, uuid: str) -> str | None:
        """Return the stored definition of a domain of another simulated host; None: it has no such domain."""
        with _translated_errors(uuid), opened_target(self._core, target_uri) as target:
            domain = target.read_state().domains.get(uuid)
            return None if domain is None else domain_xml.strip_passwords(domain.xml)

    def migration_xml(self, uuid: str) -> str:
        """Return a running domain's definition as another host takes it, with its passwords."""
        with read_call(self._core, "migration-xml", self._domain_name(uuid)) as state:
            return _require_running(state, uuid).xml

    def is_migrating(self, uuid: str) -> bool:
        """Return whether a domain is being moved away now; a process that was killed moves nothing."""
        with read_call(self._core, "is-migrating", self._domain_name(uuid)) as state:
            _require_domain(state, uuid)
            running = state.running.get(uuid)
            return running is not None and _is_moved(running)

    def pause(self, uuid: str) -> None:
        """Do what `virsh suspend` does: stop a guest whose domain stays."""
        with self._core.operation("pause", self._domain_name(uuid)) as change:
            if uuid in self._core.state.running:
                change.add("halt", uuid, "paused", "paused")

    def resume(self, uuid: str) -> None:
        """Have a paused domain run. One that runs is no error."""
        with write_call(self._core, "resume", self._domain_name(uuid)) as change:
            if _require_running(self._core.state, uuid).state != "running":
                change.add("halt", uuid, "running")


class SimMoves:
    """The part of `ports.Hypervisor` whose calls report while they last: no lock is held then."""

    _core: Core

    def _domain_name(self, uuid: str) -> str:
        raise NotImplementedError

    def migrate(self, uuid: str, request: MigrationRequest, report: Report) -> None:
        """Move a running domain to another simulated host, where it stays paused."""
        name = self._domain_name(uuid)
        leaving = self._begin_move(uuid, name, request)
        if leaving is None:
            return
        try:
            with _translated_errors(name), opened_target(self._core, request.target_uri) as target:
                if target.machine_id == self._core.machine_id:
                    text = f"internal error: Attempt to migrate guest to the same host {target.machine_id}"
                    raise VirError(VirErrorNumber.INTERNAL_ERROR, text)
                incoming_pid = _receive(target, uuid, leaving, request)
                try:
                    _report_rounds(report, leaving, request.max_downtime_ms)
                    self._require_still_there(uuid, leaving.pid)
                except BaseException:
                    _drop_incoming(target, uuid, incoming_pid)
                    raise
                _settle(target, uuid, incoming_pid, leaving, request)
                self._leave(uuid, leaving)
        finally:
            self._end_move(uuid, leaving.pid)

    def save(self, uuid: str, report: Report) -> None:
        """Write a running domain's memory to libvirt's own file; it is off then."""
        name = self._domain_name(uuid)
        with self._core.call_lock, write_call(self._core, "save", name) as change:
            state = self._core.state
            running = _require_running(state, uuid)
            if not state.domains[uuid].persistent:
                text = "Requested operation is not valid: cannot do managed save for transient domain"
                raise VirError(VirErrorNumber.OPERATION_INVALID, text)
            require_movable(state, running)
            migration_checks.require_ready_to_be_saved(state, running)
            if change.is_lost:
                return
            pid, guest, device_mib = running.pid, read_guest(running.xml), migration_checks.device_mib(state, running)
        for progress in _rounds(guest, device_mib, 0)[:_MIN_ROUNDS]:
            report(progress)
        with _translated_errors(name, "save"), self._changed("save-end", name) as change:
            running = _require_running(self._core.state, uuid, pid)
            change.add("saved", uuid, running.xml, running.state)
            change.records += self._core.state.stop_records(uuid, "saved")

    @contextmanager
    def _changed(self, step: str, name: str) -> Iterator[StateChange]:
        """Change the state in a step of a call, which is no call of its own: no fault of a scenario meets it."""
        with self._core.call_lock, self._core.operation(step, name) as change:
            yield change

    def _begin_move(self, uuid: str, name: str, request: MigrationRequest) -> _Leaving | None:
        """Check what the source's libvirt checks, and mark the domain as moving. None: the request is lost."""
        with self._core.call_lock, write_call(self._core, "migrate", name) as change:
            state = self._core.state
            running = _require_running(state, uuid)
            if _is_moved(running):
                text = f"Requested operation is not valid: another migration job is already running for domain '{name}'"
                raise VirError(VirErrorNumber.OPERATION_INVALID, text)
            require_movable(state, running)
            guest = read_guest(running.xml)
            require_same_guest(guest, read_guest(request.live_xml))
            require_same_domain(guest, read_guest(request.config_xml))
            migration_checks.require_disks(guest, request.copied_disks)
            change.add("moving", uuid, os.getpid())
            if change.is_lost:
                return None
            copied = {disk: state.find_file(guest.disks[disk]) for disk in request.copied_disks}
            files = {disk: file for disk, file in copied.items() if file is not None}
            return _Leaving(
                name,
                running.pid,
                guest,
                files,
                migration_checks.carrier_types(state, guest.carriers),
                migration_checks.device_mib(state, running),
                change.fault is not None and change.fault.kind == "unknown",
            )

    def _require_still_there(self, uuid: str, pid: int) -> None:
        with self._core.call_lock:
            _require_running(self._core.read_state(), uuid, pid)

    def _leave(self, uuid: str, leaving: _Leaving) -> None:
        """End the domain on its source; or leave it paused, where libvirt dies before it knows of the target."""
        with self._changed("migrate-end", leaving.name) as change:
            state = self._core.state
            if uuid not in state.running:
                return
            if not leaving.ends_unknown:
                change.records += state.stop_records(uuid, "migrated")
                return
            change.add("halt", uuid, "paused", "migrated")
        raise HostCannot(
            f"cannot move VM {leaving.name}: the connection to libvirt broke: End of file while reading data",
            hint="systemctl start libvirtd",
            check="libvirt",
            call="virDomainMigrateToURI3",
        )

    def _end_move(self, uuid: str, pid: int) -> None:
        with self._changed("migrate-end", uuid) as change:
            running = self._core.state.running.get(uuid)
            if running is not None and running.pid == pid:
                change.add("moving", uuid, 0)


@contextmanager
def _translated_errors(name: str, call: str = "migrate") -> Iterator[None]:
    try:
        yield
    except (VirError, FaultInjected) as exc:
        raise translate_error(exc, call, name) from exc


def _receive(target: Core, uuid: str, leaving: _Leaving, request: MigrationRequest) -> int:
    """Check what the target's libvirt checks, and make the domain there, paused. Return its process."""
    require_libvirt(target, "migrate-in")
    with target.operation("migrate-in", leaving.name) as change:
        state, name = target.state, leaving.name
        if uuid in state.running:
            text = f"Requested operation is not valid: domain is already active as '{state.running[uuid].name}'"
            raise VirError(VirErrorNumber.OPERATION_INVALID, text)
        other_name, other_uuid = state.domains.get(uuid), state.uuids_by_name.get(name, uuid)
        if other_name is not None and other_name.name != name:
            text = f"operation failed: domain '{other_name.name}' is already defined with uuid {uuid}"
            raise VirError(VirErrorNumber.OPERATION_FAILED, text)
        if other_uuid != uuid:
            text = f"operation failed: domain '{name}' already exists with uuid {other_uuid}"
            raise VirError(VirErrorNumber.OPERATION_FAILED, text)
        element = domain_xml.parse(request.live_xml)
        element.attrib.pop("id", "")
        domain_xml.check_architecture(element, domain_xml.host_arch(state.machine.scenario))
        domain_xml.normalise(element)
        domain_xml.add_live_aliases(element)
        guest = read_guest(request.live_xml)
        copied = [guest.disks[disk] for disk in request.copied_disks]
        carriers, taken = starting.check_start(state, name, element, absent_disks=copied)
        migration_checks.require_room_for_copies(state, guest, leaving.files, top_only=request.copies_top_only)
        migration_checks.require_same_types(leaving.types, migration_checks.carrier_types(state, guest.carriers))
        live_xml, pid = domain_xml.unparse(element), state.next_pid
        if uuid not in state.domains:
            change.add("domain", uuid, name, live_xml, False)
        change.add("run", uuid, pid, carriers, taken, live_xml, "migrated")
        change.add("halt", uuid, "paused", "migrated")
    return pid


def _drop_incoming(target: Core, uuid: str, pid: int) -> None:
    """End the target's half of a move that failed."""
    with target.operation("migrate-end", uuid) as change:
        running = target.state.running.get(uuid)
        if running is not None and running.pid == pid:
            change.records += target.state.stop_records(uuid, "failed")


def _settle(target: Core, uuid: str, pid: int, leaving: _Leaving, request: MigrationRequest) -> None:
    """Keep the domain on its target: its definition, and what was copied into its disks.

    Raises:
        VirError: somebody ended it there meanwhile.
    """
    with target.operation("migrate-end", leaving.name) as change:
        running = target.state.running.get(uuid)
        if running is None or running.pid != pid:
            text = "operation failed: job 'migration out' failed: Unable to write to socket: Broken pipe"
            raise VirError(VirErrorNumber.OPERATION_FAILED, text)
        element = domain_xml.parse(request.config_xml)
        element.attrib.pop("id", "")
        domain_xml.normalise(element)
        change.add("domain", uuid, leaving.name, domain_xml.unparse(element))
        change.add("halt", uuid, "paused", "paused")
        disks = read_guest(request.live_xml).disks
        for name, file in leaving.files.items():
            change.records.append(migration_checks.copied_file(target.state, file, disks[name]))


def _report_rounds(report: Report, leaving: _Leaving, max_downtime_ms: int | None) -> None:
    limit = DEFAULT_LIMIT_MS if max_downtime_ms is None else max_downtime_ms
    disk_bytes = sum(file.size for file in leaving.files.values())
    for number, progress in enumerate(_rounds(leaving.guest, leaving.device_mib, disk_bytes), 1):
        wanted = report(progress)
        limit = limit if wanted is None else wanted
        if number >= _MIN_ROUNDS and (progress.expected_downtime_ms or 0) <= limit:
            return


def _rounds(guest: Guest, device_mib: int, disk_bytes: int) -> list[MigrationProgress]:
    """Return what is reported, once a second: less memory is left each time, but what the guest writes."""
    total, state_bytes = guest.memory_kib << 10, (device_mib << 20) // STATE_SHARE
    return [
        MigrationProgress(
            elapsed_ms=number * 1000,
            memory_total_bytes=total,
            memory_remaining_bytes=max(total >> number, min(total, 1 << 24)),
            disk_total_bytes=disk_bytes,
            disk_remaining_bytes=disk_bytes >> number,
            dirty_bytes_per_second=1 << 24,
            bandwidth_bytes_per_second=_BANDWIDTH,
            device_bytes=state_bytes,
            expected_downtime_ms=BASE_DOWNTIME_MS + state_bytes // (WRITE_MB_PER_SECOND * 1000),
            iteration=number,
        )
        for number in range(1, MAX_ROUNDS + 1)
    ]


def _is_moved(running: RunningDomain) -> bool:
    if not running.moved_by:
        return False
    try:
        os.kill(running.moved_by, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _require_domain(state: State, uuid: str) -> None:
    if uuid not in state.domains:
        raise VirError(VirErrorNumber.NO_DOMAIN, f"Domain not found: no domain with matching uuid '{uuid}'")


def _require_running(state: State, uuid: str, pid: int | None = None) -> RunningDomain:
    """Return a running domain. `pid`: it is still this process."""
    _require_domain(state, uuid)
    running = state.running.get(uuid)
    if running is None or pid not in (None, running.pid):
        raise VirError(VirErrorNumber.OPERATION_INVALID, "Requested operation is not valid: domain is not running")
    return running
