# SPDX-License-Identifier: Apache-2.0
"""Record that this operation works on VMs without a claim: those that reserve nothing while they are off.

reconcile leaves such a VM alone while the operation is alive. For every other VM its claims have that effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.errors import FileFailed
from vgpuctl.model.vm import VmInProgress
from vgpuctl.observe.claims import living_operations, report_unreadable

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def note_vm_in_progress(host: Host, uuid: str) -> None:
    """Note that this operation works on a VM.

    Raises:
        FileFailed: the note cannot be written; nothing was done.
    """
    try:
        operation = host.operations.current()
        host.claims.add_vm_in_progress(VmInProgress(uuid, operation.process, operation.id))
    except OSError as error:
        raise FileFailed(
            f"cannot record that this command works on the VM: {error.strerror or error}",
            hint="df -h /run; df -i /run; findmnt /run",
            vm=uuid,
            errno=error.errno,
            path=error.filename,
        ) from error


def read_vms_in_progress(host: Host) -> frozenset[str]:
    """Return the uuids of VMs that a live operation works on; an empty set without root.

    Raises:
        FileFailed: the notes cannot be read.
    """
    notes = _read_notes(host)
    living = living_operations(host, (note.operation for note in notes))
    return frozenset(note.vm_uuid for note in notes if note.operation in living)


def drop_ended_work(host: Host) -> None:
    """Drop the notes of operations that have ended; none without root.

    Raises:
        FileFailed: the notes cannot be read.
    """
    notes = _read_notes(host)
    living = living_operations(host, (note.operation for note in notes))
    for note in notes:
        if note.operation not in living:
            host.claims.remove_vm_in_progress(note.vm_uuid, note)


def _read_notes(host: Host) -> tuple[VmInProgress, ...]:
    with report_unreadable("what other commands work on"):
        try:
            return host.claims.vms_in_progress()
        except PermissionError:
            return ()
