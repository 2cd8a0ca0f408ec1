# SPDX-License-Identifier: Apache-2.0
"""The agent makes the changes of VMs that `set-vm --when-off` planned, as soon as such a VM is off.

A VM that another command has shut down for a moment (--drain) is not off. A change that fails for now, because somebody
works on the VM, is tried again, ever more rarely. One that is not possible is published
once; it stays planned, and is tried again when the VM was changed or has run in between.
"""

from __future__ import annotations

import asyncio
import logging

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


class PlannedChanger:
    """Looks for VMs that are off and have a planned change, again and again, and makes it by an operation."""

    def __init__(self, host: Host, operations: AgentOperations, events: EventLog) -> None:
        self._host = host
        self._operations = operations
        self._events = events
        self._failed: dict[str, int] = {}
        """The generation of each VM at which its change was not possible."""
        self._tries: dict[str, tuple[int, float]] = {}
        """How often each change was tried, and when it may be tried again, by the monotonic clock."""

    async def run(self) -> None:
        """Look and change until cancelled."""
        while True:
            try:
                await self.check()
            except Exception as error:  # noqa: BLE001 - the next look may succeed
                log.warning("the planned changes of VMs are not known or not made: %s", error)
            await asyncio.sleep(LOOK_SECONDS)

    async def check(self) -> None:
        """Look once, and make what is due.

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
        self._failed = {uuid: generation for uuid, generation in self._failed.items() if uuid in off}
        self._tries = {uuid: tries for uuid, tries in self._tries.items() if uuid in off}
        now = self._host.clock.monotonic()
        return tuple(
            vm
            for vm in planned
            if vm.uuid in off
            and vm.record is not None
            and self._failed.get(vm.uuid) != vm.record.generation
            and self._tries.get(vm.uuid, (0, now))[1] <= now
        )

    async def _change(self, vm: Vm) -> None:
        """Make the change of a VM, unless its record has changed since the look."""
        if vm.record is None:
            return
        tries, _ = self._tries.get(vm.uuid, (0, 0.0))
        pause = min(FIRST_PAUSE_SECONDS * 2**tries, LONGEST_PAUSE_SECONDS)
        self._tries[vm.uuid] = (tries + 1, self._host.clock.monotonic() + pause)
        arguments = {"name": vm.uuid, "when_off": True, **planned_fields(vm.record)}
        options = RequestOptions(if_generation=vm.record.generation)
        try:
            operation = self._operations.begin(CallRequest(CALLS["set-vm"], arguments, options, ROOT))
        except (OSError, VgpuctlError) as error:
            log.warning("VM %s is not changed yet: %s", vm.name, error)
            return
        await wait_for_end(operation)
        document = operation.stored.document
        reason = failure_text(document)
        if reason is not None and not may_succeed_later(document):
            self._failed[vm.uuid] = vm.record.generation
            text = f"{shorten_reason(reason)}; to plan nothing any more: vgpuctl set-vm {vm.name} --when-off"
            self._events.publish(EventType.PLANNED_CHANGE_FAILED, vm=vm.name, vm_uuid=vm.uuid, reason=text)
