# SPDX-License-Identifier: Apache-2.0
"""The agent takes a license out of a VM's seed once the guest is licensed: no secret lies there longer than needed.

It does so when a guest becomes licensed, and for those that are licensed when the agent starts. Where that fails, it
tries again at the next look.
"""

from __future__ import annotations

import asyncio
import logging

from vgpuctl.agent.operation import failure_text, wait_for_end
from vgpuctl.agent.operations import ROOT, AgentOperations
from vgpuctl.agent.protocol import RequestOptions
from vgpuctl.agent.request import CallRequest
from vgpuctl.agent.usage_sampler import UsageSampler
from vgpuctl.errors import VgpuctlError
from vgpuctl.library.call_table import CALLS

log = logging.getLogger("vgpuctl.agent")

LOOK_SECONDS = 15.0


class LicenseSeeds:
    """Looks at the agent's last sample again and again."""

    def __init__(self, sampler: UsageSampler, operations: AgentOperations) -> None:
        self._sampler = sampler
        self._operations = operations
        self._done: frozenset[str] = frozenset()
        """The uuids of licensed guests with whose seeds nothing is left to do."""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self.check()
            except Exception as error:  # noqa: BLE001 - the next look may succeed
                log.warning("licenses stay in the seeds of VMs: %s", error)
            await asyncio.sleep(LOOK_SECONDS)

    async def check(self) -> None:
        """Look once, and take the licenses of guests that are licensed now out of their seeds."""
        licensed = self._sampler.licensed_vms()
        self._done &= licensed.keys()
        for uuid in sorted(licensed.keys() - self._done):
            if await self._clear(uuid, licensed[uuid]):
                self._done |= {uuid}

    async def _clear(self, uuid: str, name: str) -> bool:
        request = CallRequest(
            CALLS["refresh-license"], {"name": uuid, "clear": True}, RequestOptions(), ROOT, vm_name=name
        )
        try:
            operation = self._operations.begin(request)
        except (OSError, VgpuctlError) as error:
            log.warning("the license stays in the seed of VM %s: %s", name, error)
            return False
        await wait_for_end(operation)
        failure = failure_text(operation.stored.document)
        if failure is not None:
            log.warning("the license stays in the seed of VM %s: %s", name, failure)
        return failure is None
