# SPDX-License-Identifier: Apache-2.0
"""The last known state of each VM, and what libvirt's events and lists say about it. It reads nothing by itself.

libvirt sends no event for what happened while nobody was connected, and may send one for what a list already contains.
So an event counts if it changes what is known, and a list is compared with it.
"""

from __future__ import annotations

from collections.abc import Iterator

from vgpuctl.model.event import EventType
from vgpuctl.model.port_values import DomainEvent, DomainEventKind, DomainStatus
from vgpuctl.model.vm import VmState
from vgpuctl.value import Value, replace

_CRASH_REASONS = frozenset({"crashed", "failed"})
"""The details of libvirt's STOPPED that are a crash: QEMU that died without SHUTDOWN is `failed`."""
_CRASHED_OFF = "crashed"
"""The shutoff reason that is a crash; `failed` there is a start that failed."""


class VmStep(Value):
    """Something that happened to a VM."""

    type: EventType
    vm: str
    vm_uuid: str
    reason: str | None = None


class _KnownVm(Value):
    """`is_defined`: it stays when it stops. `has_crashed`: its guest panicked, and QEMU still runs."""

    name: str
    is_running: bool = False
    run_id: int | None = None
    is_defined: bool = True
    has_crashed: bool = False


class KnownVms:
    """Every VM by its uuid, as far as libvirt reported it."""

    def __init__(self) -> None:
        self._vms: dict[str, _KnownVm] = {}
        self._has_list = False

    def is_running(self, uuid: str) -> bool | None:
        """Return whether a VM runs; None if it is not known."""
        vm = self._vms.get(uuid)
        return None if vm is None else vm.is_running

    def read_event(self, event: DomainEvent) -> VmStep | None:
        """Return what an event says that was not known."""
        uuid = event.uuid
        vm = self._vms.get(uuid) or _KnownVm(event.name, is_defined=event.kind is DomainEventKind.DEFINED)
        event_type: EventType | None = None
        match event.kind:
            case DomainEventKind.DEFINED:
                event_type = EventType.VM_DEFINED
                vm = replace(vm, name=event.name, is_defined=True)
            case DomainEventKind.UNDEFINED:
                event_type = EventType.VM_UNDEFINED
                vm = replace(vm, is_defined=event.reason == "renamed")  # its new name comes with the next event
            case DomainEventKind.STARTED if not (vm.is_running and event.run_id in (None, vm.run_id)):
                event_type = EventType.VM_STARTED
                vm = replace(vm, is_running=True, run_id=event.run_id, has_crashed=False)
            case DomainEventKind.STOPPED if vm.is_running or uuid not in self._vms:
                is_crash = event.reason in _CRASH_REASONS and not vm.has_crashed
                event_type = EventType.VM_CRASHED if is_crash else EventType.VM_STOPPED
                vm = replace(vm, is_running=False, run_id=None, has_crashed=False)
            case DomainEventKind.CRASHED:
                event_type = EventType.VM_CRASHED
                vm = replace(vm, is_running=True, has_crashed=True)
            case DomainEventKind.RESUMED:
                vm = replace(vm, has_crashed=False)
        if event_type is None and uuid not in self._vms:
            return None
        self._remember(uuid, vm)
        return None if event_type is None else VmStep(event_type, event.name, uuid, event.reason)

    def read_list(self, statuses: tuple[DomainStatus, ...]) -> list[VmStep]:
        """Return what a list of all VMs says that was not known; nothing for the first list."""
        steps: list[VmStep] = []
        listed = {status.uuid for status in statuses}
        for uuid, vm in list(self._vms.items()):
            if uuid not in listed:
                if vm.is_running:
                    steps.append(VmStep(EventType.VM_STOPPED, vm.name, uuid))
                if vm.is_defined:
                    steps.append(VmStep(EventType.VM_UNDEFINED, vm.name, uuid, "removed"))
                del self._vms[uuid]
        for status in statuses:
            if self._has_list:
                steps += self._compare(self._vms.get(status.uuid), status)
            self._vms[status.uuid] = _KnownVm(
                status.name,
                is_running=status.state is not VmState.STOPPED,
                run_id=status.run_id,
                has_crashed=status.state is VmState.CRASHED,
            )
        self._has_list = True
        return steps

    def _remember(self, uuid: str, vm: _KnownVm) -> None:
        if vm.is_running or vm.is_defined:
            self._vms[uuid] = vm
        else:
            self._vms.pop(uuid, None)

    @staticmethod
    def _compare(known: _KnownVm | None, status: DomainStatus) -> Iterator[VmStep]:
        """Yield what happened to one VM between what is known and the list."""

        def step(event_type: EventType, reason: str | None = None) -> VmStep:
            return VmStep(event_type, status.name, status.uuid, reason)

        if known is None or known.name != status.name:
            yield step(EventType.VM_DEFINED, "added" if known is None else "renamed")
        known = known or _KnownVm(status.name)
        runs = status.state is not VmState.STOPPED
        is_new_run = runs and known.is_running and None not in (known.run_id, status.run_id)
        is_new_run = is_new_run and known.run_id != status.run_id
        if known.is_running and (not runs or is_new_run):
            is_crash = status.off_reason == _CRASHED_OFF and not known.has_crashed
            yield step(EventType.VM_CRASHED if is_crash else EventType.VM_STOPPED, status.off_reason)
        if runs and (not known.is_running or is_new_run):
            yield step(EventType.VM_STARTED)
        if status.state is VmState.CRASHED and (is_new_run or not known.has_crashed):
            yield step(EventType.VM_CRASHED, "panicked")
