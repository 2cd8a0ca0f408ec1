# SPDX-License-Identifier: Apache-2.0
"""VMs that a command shuts down and starts again: noted before, so that a command killed in between leaves a trace.

start-vm, stop-vm and delete-vm drop the note in any case; a boot drops all notes with /run. If the operation
that wrote the note is dead, reconcile also drops it once the VM was started again or is gone: a later shutdown is then
intended. A VM that is still in the run in which it was noted may be about to power off, because it was asked to. After
the time allowed for that, it counts as running.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.domain.domain_xml import parse_domain_id
from vgpuctl.errors import FileFailed, VgpuctlError
from vgpuctl.model.outcome import Context
from vgpuctl.model.port_values import DomainInfo
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import DrainedVm, RecordState, Vm
from vgpuctl.observe.claims import living_operations, report_unreadable
from vgpuctl.observe.definition import refuse_changed_definition
from vgpuctl.operations.steps.domain import STOPPED_STATES

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def note_drained_vms(host: Host, context: Context, gpu: str | None, vms: tuple[Vm, ...]) -> None:
    """Note which VMs this operation shuts down, each within `wait_seconds`.

    `gpu`: the GPU that is set up meanwhile; None: the VMs themselves are changed.

    Raises:
        FileFailed: a note cannot be written; then none of them is noted.
        Refused: the definition of one was changed so that it could not be started again.
    """
    for vm in vms:
        if vm.record is not None:
            refuse_changed_definition(vm, vm.record)
    for vm in vms:
        context.subjects.add_vm(vm.name, vm.uuid)
    operation = host.operations.current()
    deadline = host.clock.monotonic() + context.wait_seconds * len(vms)
    domains = [(vm, host.hypervisor.find_domain(vm.uuid)) for vm in vms]
    for number, (vm, domain) in enumerate(domains):
        run_id = None if domain is None else _run_id(domain)
        try:
            host.claims.add_drained_vm(DrainedVm(vm.uuid, gpu, operation.process, run_id, deadline, operation.id))
        except OSError as error:
            for noted in vms[: number + 1]:
                host.claims.remove_drained_vm(noted.uuid)
            raise FileFailed(
                f"cannot record that {vm.name} must be started again: {error.strerror or error}",
                hint="df /run; findmnt /run",
                vm=vm.name,
                errno=error.errno,
                path=error.filename,
            ) from error


def find_abandoned_vms(host: Host, snapshot: Snapshot) -> tuple[tuple[str | None, Vm], ...]:
    """Return (GPU, VM) of each VM that was shut down, is off, and has no operation to start it; nothing without root.

    Raises:
        FileFailed: the notes cannot be read.
    """
    vms = (
        (note.gpu, vm) for note, vm in _abandoned_notes(host, snapshot) if vm is not None and vm.state in STOPPED_STATES
    )
    return tuple((gpu, vm) for gpu, vm in vms if vm.record is not None and vm.record.state is RecordState.READY)


def drop_stale_notes(host: Host, snapshot: Snapshot) -> None:
    """Drop the notes of dead operations for VMs that run again or are gone; none without root.

    Raises:
        FileFailed: the notes cannot be read.
    """
    for note, vm in _abandoned_notes(host, snapshot):
        if vm is None or vm.state not in STOPPED_STATES:
            _drop_if_stale(host, snapshot, note)


def is_drained(host: Host, vm: Vm) -> bool:
    """Return whether a command shut this VM down temporarily, also a killed one; False if unknown, without root."""
    return any(note.vm_uuid == vm.uuid for note in _read_notes(host))


def _read_notes(host: Host) -> tuple[DrainedVm, ...]:
    with report_unreadable("which VMs must be started again"):
        try:
            return host.claims.drained_vms()
        except PermissionError:
            return ()


def _abandoned_notes(host: Host, snapshot: Snapshot) -> list[tuple[DrainedVm, Vm | None]]:
    """Return the notes of dead operations, each with its VM; nothing without root."""
    notes = _read_notes(host)
    living = living_operations(host, (note.operation for note in notes))
    return [(note, snapshot.vm(note.vm_uuid)) for note in notes if note.operation not in living]


def _drop_if_stale(host: Host, snapshot: Snapshot, note: DrainedVm) -> None:
    """Drop the note of a VM that runs again or is gone; reads the VM after the note: the snapshot may be older."""
    if not snapshot.hypervisor.available:
        return
    try:
        domain = host.hypervisor.find_domain(note.vm_uuid)
    except VgpuctlError:
        return  # the next command that reads the note tries again
    if domain is not None:
        may_go_off = _run_id(domain) == note.run and host.clock.monotonic() < note.until
        if domain.state in STOPPED_STATES or (note.run is not None and may_go_off):
            return
    host.claims.remove_drained_vm(note.vm_uuid, note)


def _run_id(domain: DomainInfo) -> str | None:
    return None if domain.live_xml is None else parse_domain_id(domain.live_xml)
