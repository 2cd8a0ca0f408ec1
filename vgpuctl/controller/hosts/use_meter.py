# SPDX-License-Identifier: Apache-2.0
"""Adds up what the desktops of one host really use of its GPUs, as its agent measures it.

    meter = UseMeter(store)
    meter.read(link, desktops)      # at each look; it asks the host once a minute, and stores once in ten minutes
    meter.store()                   # at the end

A maker's library that does not say it (such as the cores under MIG) makes it unknown, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from vgpuctl.controller.database.store import Store
from vgpuctl.controller.hosts.link import HostLink
from vgpuctl.controller.model import Desktop, MeasuredUse
from vgpuctl.errors import VgpuctlError
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.model.results.usage import VgpuUsageResult

READ_SECONDS = 60.0
"""A host is asked this often."""
STORE_SECONDS = 600.0
"""What was added up is stored this often; a controller that is killed loses so much."""
MOST_SECONDS = 150.0
"""One reading says nothing of more time than this before it."""


class UseMeter:
    """The sums of one host since they were stored last."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read_at = self._stored_at = store.clock.monotonic()
        self._measured_at: float | None = None
        """When the agent made the last reading, by its host's clock."""
        self._sums: dict[tuple[str, str], MeasuredUse] = {}

    def read(self, link: HostLink, desktops: Sequence[Desktop]) -> None:
        """Add what a host's desktops with users used since the last reading; a host that cannot say it adds nothing."""
        now = self._store.clock.monotonic()
        if now - self._read_at < READ_SECONDS:
            return
        self._read_at = now
        try:
            usage = link.host().top().data
        except VgpuctlError:
            self._measured_at = None
            return
        seconds = 0.0 if self._measured_at is None else min(usage.time - self._measured_at, MOST_SECONDS)
        self._measured_at = usage.time
        if seconds > 0:
            for key, measured in measure(usage.vgpus, desktops, seconds).items():
                self._sums[key] = added(self._sums.get(key, MeasuredUse()), measured)
        if now - self._stored_at >= STORE_SECONDS:
            self.store()

    def store(self) -> None:
        """Store the sums, and begin new ones; what could not be stored is kept for the next time."""
        self._store.use.add_measured(self._sums)
        self._stored_at, self._sums = self._store.clock.monotonic(), {}


def measure(
    rows: Iterable[VgpuUsageResult], desktops: Sequence[Desktop], seconds: float
) -> Mapping[tuple[str, str], MeasuredUse]:
    """Return what desktops with users used in so many seconds, by desktop and user. `rows`: all vGPUs of their host."""
    uses: dict[str, list[VgpuUsageResult]] = {}
    for row in rows:
        uses.setdefault(row.vm_uuid or "", []).append(row)
    result: dict[tuple[str, str], MeasuredUse] = {}
    for one in desktops:
        vgpus = uses.get(one.id)
        if one.user is None or vgpus is None:
            continue
        cores = [None if row.use is None else row.use.engines.sm for row in vgpus]
        memory = [None if row.use is None else row.use.memory_used_bytes for row in vgpus]
        measured = MeasuredUse()
        if None not in cores:
            busy = sum(part or 0.0 for part in cores)
            measured = replace(measured, busy_known_seconds=seconds, busy_seconds=seconds * busy)
        if None not in memory:
            used = sum(part or 0 for part in memory) >> 20
            measured = replace(
                measured, memory_known_seconds=seconds, memory_mib_seconds=seconds * used, memory_peak_mib=used
            )
        result[one.id, one.user] = measured
    return result


def added(first: MeasuredUse, second: MeasuredUse) -> MeasuredUse:
    """Return the sum of two times."""
    peaks = [one.memory_peak_mib for one in (first, second) if one.memory_peak_mib is not None]
    return MeasuredUse(
        first.busy_known_seconds + second.busy_known_seconds,
        first.busy_seconds + second.busy_seconds,
        first.memory_known_seconds + second.memory_known_seconds,
        first.memory_mib_seconds + second.memory_mib_seconds,
        max(peaks, default=None),
    )
