# SPDX-License-Identifier: Apache-2.0
"""The events that two samples of the use of GPUs make: a guest's driver, a licence, errors of memory, lowered clocks.

What one of the two samples does not know makes no event. Where many vGPUs lose their licence at once, as when the
licence server is away, that is one event, not five hundred.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vgpuctl.agent.host_changes import HostStep
from vgpuctl.model.event import EventType
from vgpuctl.model.results.usage import UsageResult, VgpuUsageResult
from vgpuctl.model.usage import GpuUse

MANY_VGPUS = 5
"""So many changes of a licence to one state in one sample are one event."""
THROTTLE_REASONS = frozenset({"hw-slowdown", "hw-thermal", "sw-thermal", "hw-power-brake"})
"""Reasons for lowered clocks that somebody should look at; a power cap alone is normal."""


def compare_usage(before: UsageResult, after: UsageResult) -> Iterator[HostStep]:
    """Yield what happened between two samples of a host that all sources answered."""
    old_gpus = {row.address: row.use for row in before.gpus}
    for gpu in after.gpus:
        old = old_gpus.get(gpu.address)
        if old is not None and gpu.use is not None:
            yield from _compare_gpu(old, gpu.use)
    old_vgpus = {_key(row): row for row in before.vgpus}
    pairs = [(old_vgpus[_key(row)], row) for row in after.vgpus if _key(row) in old_vgpus]
    for old_row, row in pairs:
        if row.use is not None and row.use.guest_driver is not None and _driver(old_row) != row.use.guest_driver:
            yield _step(EventType.GUEST_DRIVER_UP, row, f"driver {row.use.guest_driver}")
    yield from _compare_licenses(pairs)


def _key(row: VgpuUsageResult) -> tuple[str | None, str]:
    return row.vm_uuid, row.carrier


def _driver(row: VgpuUsageResult) -> str | None:
    return None if row.use is None else row.use.guest_driver


def _compare_gpu(old: GpuUse, new: GpuUse) -> Iterator[HostStep]:
    for kind in ("uncorrected", "corrected"):
        more = _growth(old.ecc_errors, new.ecc_errors, kind)
        if more:
            yield HostStep(EventType.ECC, new.address, reason=f"{more} more {kind} errors of memory")
    for name, word in (("row_remap_pending", "is pending"), ("row_remap_failed", "failed")):
        if getattr(new, name) and getattr(old, name) is False:
            yield HostStep(EventType.ROW_REMAP, new.address, reason=f"remapping a row of memory {word}")
    if old.clock_event_reasons is None or new.clock_event_reasons is None:
        return
    was, now = (THROTTLE_REASONS.intersection(use.clock_event_reasons or ()) for use in (old, new))
    if now and not was:
        yield HostStep(EventType.THROTTLE_BEGIN, new.address, reason=", ".join(sorted(now)))
    elif was and not now:
        yield HostStep(EventType.THROTTLE_END, new.address, reason=", ".join(sorted(was)))


def _growth(old: Mapping[str, int], new: Mapping[str, int], kind: str) -> int:
    """Return how much a count grew; 0 where it is unknown, or began again."""
    return max(0, new[kind] - old[kind]) if kind in old and kind in new else 0


def _compare_licenses(pairs: list[tuple[VgpuUsageResult, VgpuUsageResult]]) -> Iterator[HostStep]:
    changed: dict[str, list[VgpuUsageResult]] = {}
    for old, new in pairs:
        was = None if old.use is None else old.use.license_state
        state = None if new.use is None else new.use.license_state
        if state is not None and was is not None and state != was:
            changed.setdefault(state, []).append(new)
    for state, rows in sorted(changed.items()):
        if len(rows) < MANY_VGPUS:
            yield from (_step(EventType.LICENSE_CHANGED, row, state) for row in rows)
        else:
            yield HostStep(EventType.LICENSE_CHANGED, None, reason=f"{state}: {len(rows)} vGPUs at once")


def _step(event_type: EventType, row: VgpuUsageResult, reason: str) -> HostStep:
    vgpu = row.carrier if row.index is None else str(row.index)
    return HostStep(event_type, row.gpu, row.vm, row.vm_uuid, vgpu, reason)
