# SPDX-License-Identifier: Apache-2.0
"""Write a controller's mark into the record of a desktop's VM; its guest, its disks and its vGPUs stay as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.errors import InvalidInput
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.results.vms import VmReport
from vgpuctl.model.vm import VmRecord
from vgpuctl.observe import observe, scope_of_vm
from vgpuctl.operations.change import change_record
from vgpuctl.operations.controlled import mark_of, with_mark
from vgpuctl.operations.guards import find_vm, require_writable

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def mark_desktop(host: Host, context: Context, name: str) -> Outcome[VmReport]:
    """Write the mark of the caller's fleet request into the record of a VM; the same mark again changes nothing.

    Raises:
        InvalidInput: the request has no mark.
        RecordNewer: the record's mark is newer.
        Refused: it would make a desktop clean that a user was let into, or it is another VM's.
    """
    require_writable(host, context)
    mark = mark_of(context)
    if mark is None:
        raise InvalidInput(
            "mark-desktop writes the mark of the request, and there is none",
            hint='send request: {"fleet": {"fence": {...}, "mark": {...}}}',
        )
    snapshot = observe(host, scope_of_vm(name))
    vm = find_vm(snapshot, name)

    def build(record: VmRecord) -> tuple[VmRecord, str]:
        whose = "nobody's" if mark.user is None else f"{mark.user}'s"
        what = f"record that {vm.name} is {whose}, as generation {mark.generation} of the pool {mark.pool}"
        return with_mark(context, vm, record), what

    return change_record(host, context, snapshot, name, build)
