# SPDX-License-Identifier: Apache-2.0
"""Desktops of pools: a controller decides about them, and their records say who and what was decided last.

Its changes come with a fence, which must still hold when nothing was done yet that cannot be undone. Changes by anybody
else are refused; root may override that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.errors import Controlled, InvalidInput, RecordNewer, Refused
from vgpuctl.model.desktop import DesktopMark, check_fleet
from vgpuctl.model.vm import Vm, VmRecord
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.config.vm_request import VmRequest
    from vgpuctl.model.outcome import Context


def check_fence(context: Context) -> bool:
    """Return whether records of other incarnations may be changed: the caller's adopted the host.

    Raises:
        Refused: as `HostFence.check`.
    """
    if context.fleet is None or context.fence is None:  # without an agent, which has the fence, only root changes VMs
        return True
    return context.fence.check(context.fleet.fence)


def refuse_controlled(context: Context, vm: Vm) -> None:
    """Refuse a change of a desktop that its controller did not ask for.

    Raises:
        Controlled: it is a desktop of a pool, and no controller asks.
        RecordNewer: another database's controller made its mark.
        Refused: as `HostFence.check`.
    """
    may_be_others = check_fence(context)
    mark = None if vm.record is None else vm.record.desktop
    if mark is None:
        return
    if context.fleet is None:
        if not context.protects_desktops:
            return
        raise Controlled(
            f"{vm.name} is a desktop of the pool {mark.pool}, and its controller decides about it",
            hint="on the controller: vgpuctl controller list-desktops; as root, on the host, against the controller: "
            "add --override-controller",
            vm=vm.name,
            pool=mark.pool,
            desktop=mark.id,
            incarnation=mark.incarnation,
        )
    if mark.incarnation != context.fleet.fence.incarnation and not may_be_others:
        raise _newer(
            vm, f"its record has a mark of the controller {mark.incarnation}", mark, context.fleet.fence.incarnation
        )


def mark_of(context: Context) -> DesktopMark | None:
    """Return the mark that a change is to write; None: it leaves the mark as it is.

    Raises:
        InvalidInput: no record may have it.
    """
    if context.fleet is None or context.fleet.mark is None:
        return None
    try:
        check_fleet(context.fleet)
    except ValueError as error:
        raise InvalidInput(f"fleet: {error}") from error
    return context.fleet.mark


def with_desktop(request: VmRequest, context: Context) -> VmRequest:
    """Return the request for a new VM with the desktop that it is to be.

    Raises:
        Refused: this desktop was deleted on this host.
    """
    mark = mark_of(context)
    if mark is not None and context.fence is not None:
        context.fence.refuse_deleted(mark.id)
    return replace(request, desktop=mark)


def refuse_other_desktop(context: Context, vm: Vm, *, is_refreshed: bool = False) -> None:
    """Refuse a VM that exists and is not the desktop that the caller means, or a later one of it.

    A generation has one user. Before he is let in it is nobody's, and after a refresh (`is_refreshed`) again.

    Raises:
        Refused: it is another VM.
        RecordNewer: its mark is newer than the caller's.
    """
    mark = mark_of(context)
    if mark is None:
        return
    recorded = None if vm.record is None else vm.record.desktop
    if vm.uuid != mark.id:
        raise Refused(
            f"the VM {vm.name} is {vm.uuid}, and not the desktop {mark.id}",
            hint="vgpuctl list-vms shows the VMs; give the desktop another name",
            vm=vm.name,
            uuid=vm.uuid,
            desktop=mark.id,
        )
    if recorded is None:
        return
    if mark.generation < recorded.generation:
        raise _newer(vm, f"its mark has the generation {recorded.generation}", recorded, str(mark.generation))
    is_freed = is_refreshed and mark.user is None
    if mark.generation == recorded.generation and recorded.user not in (None, mark.user) and not is_freed:
        raise _newer(
            vm,
            f"its mark of this generation is for {recorded.user or 'nobody'}",
            recorded,
            f"{mark.generation} for {mark.user or 'nobody'}",
        )


def with_mark(context: Context, vm: Vm, record: VmRecord, *, is_refreshed: bool = False) -> VmRecord:
    """Return the record with the caller's mark. `is_refreshed`: its disk is made again, so it may become clean.

    Raises:
        Refused: it would become clean without a refresh.
        RecordNewer, Refused: as `refuse_other_desktop`.
    """
    mark = mark_of(context)
    if mark is None:
        return record
    refuse_other_desktop(context, vm, is_refreshed=is_refreshed)
    if record.desktop is not None and record.desktop.dirty and not mark.dirty and not is_refreshed:
        raise Refused(
            f"a user was let into {vm.name}: only a refresh makes it clean",
            hint="send the mark with dirty, or with refresh-vm",
            vm=vm.name,
            desktop=mark.id,
        )
    return replace(record, desktop=mark)


def _newer(vm: Vm, what: str, recorded: DesktopMark, asked: str) -> RecordNewer:
    return RecordNewer(
        f"{vm.name}: {what}, and the caller asks for {asked}",
        hint="is the controller's database an old one? nothing was changed; only its admin decides what to do",
        vm=vm.name,
        desktop=recorded.id,
        incarnation=recorded.incarnation,
        generation=recorded.generation,
        user=recorded.user,
    )
