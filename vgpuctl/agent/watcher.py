# SPDX-License-Identifier: Apache-2.0
"""Keeps the agent's looks at its host fresh: after each event, and every minute, it looks at the whole host again.

What a look shows that no source told becomes events, too (`host_changes`).
"""

from __future__ import annotations

import asyncio
import logging

from vgpuctl.agent.event_sources import EventSources
from vgpuctl.agent.events import EventLog
from vgpuctl.agent.host_changes import HostChanges
from vgpuctl.agent.looks import Looks
from vgpuctl.errors import VgpuctlError
from vgpuctl.observe import ReadScope, observe
from vgpuctl.ports.host import Host

log = logging.getLogger("vgpuctl.agent")

LOOK_SECONDS = 60.0
"""At least so often it looks at the whole host."""
PAUSE_SECONDS = 2.0
"""Between two looks, so that a storm of events costs few of them."""
SCOPE = ReadScope(models=False)
"""What list-vms and show-vm read, which are asked most."""


class HostWatcher:
    """The sources of events of one host, and its regular looks."""

    def __init__(self, host: Host, looks: Looks, events: EventLog) -> None:
        self._host = host
        self._looks = looks
        self._changes = HostChanges(events)
        self._sources = EventSources(host, events, on_change=self._note_change)
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    def start(self) -> None:
        """Start the sources: before the first call to libvirt, whose event loop comes before any connection."""
        self._sources.start()

    def answers(self) -> bool:
        """Return whether the sources can still report something."""
        return self._sources.answers()

    def close(self) -> None:
        """End the sources; it may take seconds."""
        self._sources.close()

    async def run(self) -> None:
        """Look at the host until cancelled."""
        while True:
            self._changed.clear()
            await asyncio.to_thread(self._look)
            await asyncio.sleep(PAUSE_SECONDS)
            try:
                await asyncio.wait_for(self._changed.wait(), LOOK_SECONDS - PAUSE_SECONDS)
            except TimeoutError:
                self._looks.drop()

    def _look(self) -> None:
        try:
            self._changes.read(observe(self._host, SCOPE))
        except (VgpuctlError, OSError) as error:
            log.warning("the look at the host failed: %s", error)

    def _note_change(self) -> None:
        self._looks.drop()
        self._loop.call_soon_threadsafe(self._changed.set)
