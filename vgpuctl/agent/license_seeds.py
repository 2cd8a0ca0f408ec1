# SPDX-License-Identifier: Apache-2.0
"""The agent takes a license out of a VM's seed once the guest is licensed: no secret lies there longer than needed.

Licensed is not enough: a license that was written while the guest ran waits for its next boot. So the agent looks for
guests that had no driver a while ago, which means that they booted, and are licensed now. When it starts it does not
know who has booted; then it leaves seeds alone that say that the guest has not read them.
"""

from __future__ import annotations

import asyncio
import logging

from vgpuctl.agent.operations import AgentOperations
from vgpuctl.agent.seed_clearing import clear_seed
from vgpuctl.agent.usage_sampler import UsageSampler
from vgpuctl.domain.guest_setup import is_unread, secrets_in
from vgpuctl.errors import VgpuctlError
from vgpuctl.model.vm import Vm
from vgpuctl.operations.guest_setup import read_setup_of_vm
from vgpuctl.ports.host import Host

log = logging.getLogger("vgpuctl.agent")

LOOK_SECONDS = 15.0


class LicenseSeeds:
    """Looks at each of the agent's samples."""

    def __init__(self, host: Host, sampler: UsageSampler, operations: AgentOperations) -> None:
        self._host = host
        self._sampler = sampler
        self._operations = operations
        self._last_time = 0.0
        self._booting: set[str] = set()
        """The uuids of VMs whose guest had no driver when they were seen last."""
        self._done: set[str] = set()
        """The uuids of licensed guests with whose seeds nothing is left to do before their next boot."""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self.check()
            except Exception as error:  # noqa: BLE001 - the next look may succeed
                log.warning("licenses stay in the seeds of VMs: %s", error)
            await asyncio.sleep(LOOK_SECONDS)

    async def check(self) -> None:
        """Look at the last sample, if it is a new one, and clear the seeds of the guests that need them no more."""
        time, guests = self._sampler.read_licenses()
        if time <= self._last_time:
            return
        self._last_time = time
        known = {guest.vm.uuid for guest in guests}
        self._done &= known
        self._booting &= known
        for guest in guests:
            if not guest.has_driver:
                self._booting.add(guest.vm.uuid)
                self._done.discard(guest.vm.uuid)
            elif guest.is_licensed and guest.vm.uuid not in self._done:
                await self._handle(guest.vm)

    async def _handle(self, vm: Vm) -> None:
        try:
            script = await asyncio.to_thread(read_setup_of_vm, self._host, vm)
        except VgpuctlError as error:
            log.warning("whether the seed of VM %s has a license is not known: %s", vm.name, error)
            self._done.add(vm.uuid)
            return
        waits = is_unread(script) and vm.uuid not in self._booting
        if not secrets_in(script) or waits or await clear_seed(self._operations, vm, "license"):
            self._done.add(vm.uuid)
            self._booting.discard(vm.uuid)
