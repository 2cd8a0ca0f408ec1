# SPDX-License-Identifier: Apache-2.0
"""Record that this process works on VMs without a claim: those that reserve nothing while they are off.

reconcile leaves such a VM alone while the process is alive. For every other VM its claims have that effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vgpuctl.errors import FileFailed
from vgpuctl.model.vm import VmInProgress
from vgpuctl.steps.claims import report_unreadable

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


@contextmanager
def vm_in_progress(host: Host, uuids: Iterable[str]) -> Iterator[None]:
    """Keep a note that this process works on these VMs until the work has ended, including its undo.

    Raises:
        FileFailed: the note cannot be written; nothing was done.
    """
    noted_uuids: list[str] = []
    try:
        for uuid in uuids:
            noted_uuids.append(uuid)
            _note(host, uuid)
        yield
    finally:
        for uuid in noted_uuids:
            host.claims.remove_vm_in_progress(uuid)


def _note(host: Host, uuid: str) -> None:
    try:
        host.claims.add_vm_in_progress(VmInProgress(uuid, host.processes.current_process()))
    except OSError as error:
        raise FileFailed(
            f"that this command works on the VM cannot be noted: {error.strerror or error}",
            hint="is /run full, or mounted read-only? df -h /run; df -i /run",
            vm=uuid,
            errno=error.errno,
            path=error.filename,
        ) from error


def read_vms_in_progress(host: Host) -> frozenset[str]:
    """Return the uuids of VMs that a live process works on; an empty set without root.

    Raises:
        FileFailed: the notes cannot be read.
    """
    with report_unreadable("what other commands work on"):
        try:
            return host.claims.vms_in_progress()
        except PermissionError:
            return frozenset()
