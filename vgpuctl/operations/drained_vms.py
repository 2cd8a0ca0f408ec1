# SPDX-License-Identifier: Apache-2.0
"""VMs that a command shuts down and starts again: noted before, so that a command killed in between leaves a trace.

start-vm, stop-vm and delete-vm drop the note in any case; a boot drops all notes with /run. If the operation
that wrote the note is dead, reconcile also drops it once the VM was started again or is gone: a later shutdown is then
intended. A VM that is still in the run in which it was noted may be about to power off, because it was asked to. After
the time allowed for that, it counts as running.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vgpuctl.domain.domain_xml import parse_domain_id
from vgpuctl.errors import FileFailed, Interrupted, PartlyApplied, VgpuctlError
from vgpuctl.model.outcome import Context
from vgpuctl.model.port_values import DomainInfo
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import DrainedVm, RecordState, Vm
from vgpuctl.observe.claims import living_operations, report_unreadable
from vgpuctl.observe.definition import refuse_changed_definition
from vgpuctl.operations.gpu_transaction import try_start_vm
from vgpuctl.operations.guards import refuse_unresponsive_vm
from vgpuctl.operations.power import stop_for_restart
from vgpuctl.operations.steps.domain import STOPPED_STATES
from vgpuctl.operations.transaction import Transaction

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


def with_vm_stopped(host: Host, context: Context, vm: Vm, action: Callable[[], object], outcome_word: str) -> None:
    """Run `action` on a stopped VM; a running one is shut down first, within `wait_seconds`.

    `outcome_word`: the VM's state after the action, such as "moved", for messages.

    Raises:
        PartlyApplied: the action is done, but the VM could not be started again.
        VgpuctlError: why the action failed; the VM runs again, or `left` says why not.
    """
    stop_and_run(host, context, vm, action)
    start_again(host, context, vm, outcome_word)


def stop_and_run(host: Host, context: Context, vm: Vm, action: Callable[[], object]) -> None:
    """Run `action` on a stopped VM, which stays off; a running one is noted as to be started again, and shut down.

    Raises:
        VgpuctlError: why it failed; a VM that ran runs again, or `left` says why not.
    """
    was_running = vm.state not in STOPPED_STATES
    refuse_unresponsive_vm(vm)
    with Transaction(host, context) as tx:
        if was_running:
            tx.on_failure(lambda failure: _start_after_failure(host, context, vm, failure))
            note_drained_vms(host, context, None, (vm,))
            stop_for_restart(host, context, vm.uuid, force=False)
        action()


def start_again(host: Host, context: Context, vm: Vm, outcome_word: str) -> None:
    """Start a VM again if it ran when `vm` was read.

    Raises:
        PartlyApplied: it could not be started.
    """
    if vm.state in STOPPED_STATES:
        return
    start_failure = try_start_vm(host, context, vm, frozenset())
    if start_failure is not None:
        partly_applied = PartlyApplied(
            f"{vm.name} is {outcome_word} and stays off: {start_failure}", hint=f"vgpuctl start-vm {vm.name}"
        )
        partly_applied.left.append(f"VM {vm.name} is not started again")
        raise partly_applied


def _start_after_failure(host: Host, context: Context, vm: Vm, failure: VgpuctlError) -> None:
    """Start the VM again after a failure; if that fails too, add it to `left`."""
    undone_steps = frozenset(failure.undone) if isinstance(failure, Interrupted) else frozenset()
    start_failure = try_start_vm(host, context, vm, undone_steps)
    if start_failure is not None:
        failure.left.append(f"VM {vm.name} is not started again: {start_failure}")
        failure.hint = "; ".join(filter(None, (failure.hint, f"vgpuctl start-vm {vm.name}")))
