# SPDX-License-Identifier: Apache-2.0
"""The agent deletes for good, once an hour, the disks that have waited in the bin for as long as they must."""

from __future__ import annotations

import asyncio
import logging

from vgpuctl.agent.operation import wait_for_end
from vgpuctl.agent.operations import ROOT, AgentOperations
from vgpuctl.agent.protocol import RequestOptions
from vgpuctl.agent.request import CallRequest
from vgpuctl.library.call_table import CALLS
from vgpuctl.operations.deleted_disks import list_deleted
from vgpuctl.ports.host import Host

log = logging.getLogger("vgpuctl.agent")

FIRST_SECONDS = 300.0
"""After the agent's start, when libvirt has started its pools."""
ROUND_SECONDS = 3600.0


class BinPurger:
    """Looks into the bins of a host again and again."""

    def __init__(self, host: Host, operations: AgentOperations) -> None:
        self._host = host
        self._operations = operations

    async def run(self) -> None:
        """Look and purge until cancelled."""
        await asyncio.sleep(FIRST_SECONDS)
        while True:
            await self.purge()
            await asyncio.sleep(ROUND_SECONDS)

    async def purge(self) -> None:
        """Purge what has expired, by an operation; none begins where nothing has."""
        try:
            if await asyncio.to_thread(self._has_expired):
                arguments = {"expired": True}
                request = CallRequest(CALLS["purge-deleted"], arguments, RequestOptions(), ROOT)
                await wait_for_end(self._operations.begin(request))
        except Exception as error:  # noqa: BLE001 - the next look may succeed
            log.warning("the bins of deleted disks cannot be purged: %s", error)

    def _has_expired(self) -> bool:
        return any(disk.expired for disk in list_deleted(self._host).data)
