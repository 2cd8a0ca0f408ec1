# SPDX-License-Identifier: Apache-2.0
"""The agent takes the blob of a domain out of a VM's seed once its guest has joined: no secret lies there longer.

The seed's script installs the helper in the guest after Windows' setup has joined the domain, so a report of the helper
says that it has. It must be a report of the guest that has this blob: one that comes after the VM was seen running with
the record that it has now, which each refresh changes. A guest with a license keeps all of its seed until it has that
(`license_seeds`).
"""

from __future__ import annotations

import asyncio
import logging

from vgpuctl.agent.guest_helpers import AgentGuestHelpers
from vgpuctl.agent.operations import AgentOperations
from vgpuctl.agent.seed_clearing import clear_seed
from vgpuctl.agent.watcher import SCOPE
from vgpuctl.config.vm_request import request_of_record, secret_names
from vgpuctl.domain.guest_setup import is_unread, secrets_in
from vgpuctl.errors import VgpuctlError
from vgpuctl.model.vm import NOT_RUNNING_STATES, Vm
from vgpuctl.observe import observe
from vgpuctl.operations.guest_setup import read_setup_of_vm
from vgpuctl.ports.host import Host

log = logging.getLogger("vgpuctl.agent")

LOOK_SECONDS = 15.0
MARGIN_SECONDS = 10.0
"""A former guest's last report is gone so soon after its end."""


class JoinSeeds:
    """Looks at the reports of helpers in guests that join a domain."""

    def __init__(self, host: Host, helpers: AgentGuestHelpers, operations: AgentOperations) -> None:
        self._host = host
        self._helpers = helpers
        self._operations = operations
        self._running: dict[str, tuple[int, float]] = {}
        """By uuid: the generation of the VM's record, and when it was first seen running with that."""
        self._done: set[tuple[str, int]] = set()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self.check()
            except Exception as error:  # noqa: BLE001 - the next look may succeed
                log.warning("blobs of domains stay in the seeds of VMs: %s", error)
            await asyncio.sleep(LOOK_SECONDS)

    async def check(self) -> None:
        """Clear the seeds of guests that have joined."""
        snapshot = await asyncio.to_thread(observe, self._host, SCOPE)
        joining = {vm.uuid: vm for vm in snapshot.vms if vm.state not in NOT_RUNNING_STATES and _joins(vm)}
        self._running = {uuid: times for uuid, times in self._running.items() if uuid in joining}
        self._done = {done for done in self._done if done[0] in joining}
        reports = self._helpers.read()
        for uuid, vm in joining.items():
            generation = -1 if vm.record is None else vm.record.generation
            known, since = self._running.get(uuid, (None, 0.0))
            if known != generation:
                self._running[uuid] = (generation, self._host.clock.now())
                continue
            report = reports.get(uuid)
            is_new = report is not None and report.seen > since + MARGIN_SECONDS
            if is_new and (uuid, generation) not in self._done and await self._is_done(vm):
                self._done.add((uuid, generation))

    async def _is_done(self, vm: Vm) -> bool:
        try:
            script = await asyncio.to_thread(read_setup_of_vm, self._host, vm)
        except VgpuctlError as error:
            log.warning("whether the seed of VM %s has a blob is not known: %s", vm.name, error)
            return True
        if "domain_join" not in secrets_in(script) or is_unread(script):
            return True
        return await clear_seed(self._operations, vm, "blob of the domain")


def _joins(vm: Vm) -> bool:
    if vm.record is None or not vm.record.created_vm:
        return False
    names = secret_names(request_of_record(vm.record.request_fields))
    return "domain_join" in names and "license" not in names
