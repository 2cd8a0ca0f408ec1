# SPDX-License-Identifier: Apache-2.0
"""The agent makes the changes of VMs that `set-vm --when-off` planned, as soon as such a VM is off.

A VM that another command has shut down for a moment (--drain) does not count as off. A change that fails because
somebody works on the VM is tried again, with longer and longer pauses. One that is not possible is published once; it
stays planned, and is tried again after the VM was changed or has run.
"""

from __future__ import annotations

import asyncio
import logging
from math import inf
from typing import NamedTuple

from vgpuctl.agent.events import EventLog, shorten_reason
from vgpuctl.agent.operation import failure_text, may_succeed_later, wait_for_end
from vgpuctl.agent.operations import ROOT, AgentOperations
from vgpuctl.agent.protocol import RequestOptions
from vgpuctl.agent.request import CallRequest
from vgpuctl.errors import VgpuctlError
from vgpuctl.library.call_table import CALLS
from vgpuctl.model.event import EventType
from vgpuctl.model.planned_fields import planned_fields
from vgpuctl.model.vm import RecordState, Vm, VmState
from vgpuctl.observe import ReadScope, observe
from vgpuctl.ports.host import Host, for_another_operation

log = logging.getLogger("vgpuctl.agent")

LOOK_SECONDS = 5.0
"""Between two looks, which use the agent's last snapshot if nothing has happened since."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 600.0
"""Between two tries for a VM; each pause is twice as long."""


class _Tries(NamedTuple):
    """How often a VM's change was tried at a generation of the VM, and when next, by the monotonic clock."""

    generation: int
    number: int = 0
    next_time: float = 0.0


class PlannedChanger:
    """Looks for VMs that are off and have a planned change, again and again, and makes it by an operation."""

    def __init__(self, host: Host, operations: AgentOperations, events: EventLog) -> None:
        self._host = host
        self._operations = operations
        self._events = events
        self._tries: dict[str, _Tries] = {}
        """The tries of each VM that is off, by its uuid."""

    async def run(self) -> None:
        """Look and change until cancelled."""
        while True:
            try:
                await self.check()
            except Exception as error:  # noqa: BLE001 - the next look may succeed
                log.warning("the planned changes of VMs are not known or not made: %s", error)
            await asyncio.sleep(LOOK_SECONDS)

    async def check(self) -> None:
        """Look once, and change the VMs that are off.

        Raises:
            VgpuctlError: the host cannot be read.
        """
        for vm in await asyncio.to_thread(self._select):
            await self._change(vm)

    def _select(self) -> tuple[Vm, ...]:
        """Return the VMs to change now."""
        host = for_another_operation(self._host)
        try:
            vms = observe(host, ReadScope(models=False)).vms
            drained = {note.vm_uuid for note in host.claims.drained_vms()}
        finally:
            host.operations.end()
        planned = [vm for vm in vms if vm.record and vm.record.state is RecordState.READY and planned_fields(vm.record)]
        off = {vm.uuid for vm in planned if vm.state is VmState.STOPPED and vm.uuid not in drained}
        self._tries = {uuid: tries for uuid, tries in self._tries.items() if uuid in off}
        now = self._host.clock.monotonic()
        return tuple(vm for vm in planned if vm.uuid in off and self._tries_of(vm).next_time <= now)

    def _tries_of(self, vm: Vm) -> _Tries:
        """Return the tries of a VM since it was changed last."""
        generation = -1 if vm.record is None else vm.record.generation
        tries = self._tries.get(vm.uuid)
        return tries if tries is not None and tries.generation == generation else _Tries(generation)

    async def _change(self, vm: Vm) -> None:
        """Make the change of a VM, unless its record has changed since the look."""
        if vm.record is None:
            return
        tries = self._tries_of(vm)
        pause = min(FIRST_PAUSE_SECONDS * 2**tries.number, LONGEST_PAUSE_SECONDS)
        next_time = self._host.clock.monotonic() + pause
        self._tries[vm.uuid] = tries._replace(number=tries.number + 1, next_time=next_time)
        arguments = {"name": vm.uuid, "when_off": True, **planned_fields(vm.record)}
        options = RequestOptions(if_generation=vm.record.generation, override_controller=True)
        try:
            request = CallRequest(CALLS["set-vm"], arguments, options, ROOT, vm_name=vm.name)
            operation = self._operations.begin(request)
        except (OSError, VgpuctlError) as error:
            log.warning("VM %s is not changed yet: %s", vm.name, error)
            return
        await wait_for_end(operation)
        document = operation.stored.document
        reason = failure_text(document)
        if reason is not None and not may_succeed_later(document):
            self._tries[vm.uuid] = tries._replace(next_time=inf)
            text = f"{shorten_reason(reason)}; to plan nothing any more: vgpuctl set-vm {vm.name} --when-off"
            self._events.publish(EventType.PLANNED_CHANGE_FAILED, vm=vm.name, vm_uuid=vm.uuid, reason=text)
