# SPDX-License-Identifier: Apache-2.0
"""Find VMs whose move to or from another host was interrupted, and end it where this host alone can know how."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.errors import NotFound
from vgpuctl.model.hint_commands import end_migration_command
from vgpuctl.model.migration import SOURCE_ROLES, MigrationMark, MigrationRole
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import Claim, RecordState, Vm, VmRecord, VmState
from vgpuctl.operations.migration_end import leave_plan
from vgpuctl.operations.steps.attach import WriteRecord
from vgpuctl.operations.steps.domain import STOPPED_STATES
from vgpuctl.operations.unowned import ReconcileFinding
from vgpuctl.ports.step import Plan
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def check_moving(
    host: Host, snapshot: Snapshot, vm: Vm, record: VmRecord, mark: MigrationMark, claims: tuple[Claim, ...]
) -> list[ReconcileFinding]:
    """Return the finding for a VM on whose move no vgpuctl works any more.

    Where it runs, it stays: nobody lets it run on the target before it is off on the source. What was made ready for a
    VM of which nothing has come can go; its move then fails, and it runs on. Everything else both hosts decide: also of
    a VM that moves while it is off, whose disks may all be here.
    """
    way = "to" if mark.role in SOURCE_ROLES else "from"
    text = f"the move of VM {vm.name} {way} {mark.peer} was interrupted; here it is {vm.state}"
    if vm.state not in STOPPED_STATES and host.hypervisor.is_migrating(vm.uuid):
        return [ReconcileFinding("moving", text, "nothing while libvirt is moving it", vm=vm)]
    if vm.state is VmState.RUNNING:
        action = f"record that {vm.name} is a VM of this host"
        ready = replace(record, state=RecordState.READY, migration=None)
        plan = Plan((WriteRecord(vm.name, vm.uuid, ready, record, action),), undo_on_failure=False)
        return [ReconcileFinding("moving", text, action, plan, claims, vm)]
    if mark.role is MigrationRole.ARRIVING and vm.state in STOPPED_STATES and not mark.is_offline:
        try:
            plan = leave_plan(host, None, snapshot, vm, record, mark)
        except NotFound:
            return []
        action = f"remove what was made ready for VM {vm.name}: it has not come"
        return [ReconcileFinding("moving", text, action, plan, claims, vm)]
    action = f"nothing: only both hosts together can tell where it goes on: {end_migration_command(vm.name, mark.peer)}"
    return [ReconcileFinding("moving", text, action, vm=vm)]
