# SPDX-License-Identifier: Apache-2.0
"""Keeps the agent's snapshots fresh: after each event, and every minute, it observes the whole host again.

What a snapshot shows and no source reported becomes events, too (`host_changes`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from vgpuctl.agent.event_sources import EventSources
from vgpuctl.agent.events import EventLog
from vgpuctl.agent.host_changes import HostChanges
from vgpuctl.agent.snapshot_cache import SnapshotCache
from vgpuctl.observe import ReadScope, observe
from vgpuctl.ports.host import Host

log = logging.getLogger("vgpuctl.agent")

OBSERVE_SECONDS = 60.0
"""At least so often it observes the whole host."""
PAUSE_SECONDS = 2.0
"""Between two snapshots, so that a storm of events costs few of them."""
SCOPE = ReadScope(models=False)
"""What list-vms and show-vm read, which are asked most."""


class HostWatcher:
    """The sources of events of one host, and its regular snapshots. `on_reboot`: as of `EventSources`."""

    def __init__(
        self, host: Host, snapshots: SnapshotCache, events: EventLog, on_reboot: Callable[[str], None] = lambda _: None
    ) -> None:
        self._host = host
        self._snapshots = snapshots
        self._changes = HostChanges(events)
        self._sources = EventSources(host, events, on_change=self._note_change, on_reboot=on_reboot)
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    def start(self) -> None:
        """Start the sources: before the first call to libvirt, whose event loop comes before any connection."""
        self._sources.start()

    def answers(self) -> bool:
        """Return whether the sources can still report something."""
        return self._sources.answers()

    def libvirt_returned(self) -> float | None:
        """Return when libvirtd came back the last time, see `EventSources`."""
        return self._sources.libvirt_returned()

    def close(self) -> None:
        """End the sources; it may take seconds."""
        self._sources.close()

    async def run(self) -> None:
        """Observe the host until cancelled."""
        while True:
            self._changed.clear()
            await asyncio.to_thread(self._observe)
            await asyncio.sleep(PAUSE_SECONDS)
            try:
                await asyncio.wait_for(self._changed.wait(), OBSERVE_SECONDS - PAUSE_SECONDS)
            except TimeoutError:
                self._snapshots.drop()

    def _observe(self) -> None:
        try:
            self._changes.read(observe(self._host, SCOPE))
        except Exception as error:  # noqa: BLE001 - the next one may succeed, and readers get the error themselves
            log.warning("the host cannot be observed: %s", error)

    def _note_change(self) -> None:
        self._snapshots.drop()
        self._loop.call_soon_threadsafe(self._changed.set)
