# SPDX-License-Identifier: Apache-2.0
"""How long a VM will stand still when it moves, and how long it may: QEMU switches over when the rest is that small.

A driver stops a vGPU before it sends most of its state, so a VM with vGPUs stands still for longer than the 300 ms that
QEMU allows by default, also when its guest is idle, and would never come to its end. OpenStack Nova's example allows
500 s, in three steps (doc/source/admin/virtual-gpu.rst): the first that is enough ends the move.
"""

from __future__ import annotations

from collections.abc import Iterator

from vgpuctl.model.numbers import format_bytes, format_milliseconds
from vgpuctl.model.results.migration import (
    EstimateResult,
    MigratingVgpuResult,
    MigrationOfferResult,
    MigrationPlaceResult,
    PlacedVgpuResult,
)

LAST_PASS_MS = 300
"""QEMU's default for the last of the memory (`downtime-limit`); what a VM without vGPUs stands still at most."""
UNKNOWN_LIMIT_MS = 500_000
"""For a VM with vGPUs of which nothing is known: Nova's example."""
LEAST_LIMIT_MS = 500
_ROUNDED_TO_MS = 100
_STEP_FACTORS = (16, 4, 1)


def estimate_downtime(
    offer: MigrationOfferResult, place: MigrationPlaceResult, network_bytes_per_second: int | None
) -> EstimateResult:
    """Return how long the VM will stand still, by the slowest part for each vGPU, and the last pass over its memory.

    None if the state of a vGPU is not known, or no speed. A vGPU takes at least 1 ms.
    """
    placed = {vgpu.from_carrier: vgpu for vgpu in place.vgpus}
    times: list[int | None] = []
    parts: list[str] = []
    for vgpu in offer.vgpus:
        what = f"{vgpu.profile or 'device'} on {vgpu.carrier} of {offer.host.name}"
        time, text = _vgpu_time(what, vgpu, placed.get(vgpu.carrier), network_bytes_per_second)
        times.append(time)
        parts.append(text)
    parts.append(f"last pass over the memory: up to {format_milliseconds(LAST_PASS_MS)}, as QEMU allows")
    known = [time for time in times if time is not None]
    return EstimateResult(LAST_PASS_MS + sum(known) if len(known) == len(times) else None, tuple(parts))


def _vgpu_time(
    what: str, vgpu: MigratingVgpuResult, placed: PlacedVgpuResult | None, network: int | None
) -> tuple[int | None, str]:
    """Return the milliseconds for one vGPU, and how they were reckoned."""
    speeds = dict(_speeds(vgpu, placed, network))
    if vgpu.state_bytes is None:
        return None, f"{what}: the size of its state is not known"
    size = format_bytes(vgpu.state_bytes)
    if not speeds:
        return None, f"{what}: {size} of state, and no speed is known"
    slowest = min(speeds, key=lambda name: speeds[name])
    time = max(1, -(-vgpu.state_bytes * 1000 // speeds[slowest]))
    return (
        time,
        f"{what}: {size} of state at {format_bytes(speeds[slowest])}/s ({slowest}): {format_milliseconds(time)}",
    )


def _speeds(
    vgpu: MigratingVgpuResult, placed: PlacedVgpuResult | None, network: int | None
) -> Iterator[tuple[str, int]]:
    write = None if placed is None else placed.write_bytes_per_second
    named = (("the driver reads", vgpu.read_bytes_per_second), ("the network", network), ("the driver writes", write))
    yield from ((name, speed) for name, speed in named if speed)


def choose_max_downtime(estimate: EstimateResult) -> int:
    """Return for how many ms a VM may stand still: twice the estimate, or a generous limit where there is none."""
    if estimate.downtime_ms is None:
        return UNKNOWN_LIMIT_MS
    if estimate.downtime_ms <= LAST_PASS_MS:
        return LAST_PASS_MS
    twice = -(-estimate.downtime_ms * 2 // _ROUNDED_TO_MS) * _ROUNDED_TO_MS
    return max(LEAST_LIMIT_MS, twice)


def doubt_about_limit(estimate: EstimateResult, limit_ms: int) -> str | None:
    """Return why a move may not end with this limit for how long the VM stands still; None: it is no less."""
    if estimate.downtime_ms is None or limit_ms >= estimate.downtime_ms:
        return None
    return (
        f"the VM has to stand still for about {estimate.downtime_ms / 1000:.1f} s, and --max-downtime allows "
        f"{limit_ms / 1000:g} s: use --max-downtime {choose_max_downtime(estimate) / 1000:g}, or the move may be given "
        "up"
    )


def downtime_steps(limit_ms: int) -> tuple[int, ...]:
    """Return three rising limits that end with this one; the first that is enough makes the VM stand still less.

    A small limit may have fewer: no step is below QEMU's default, or repeats another.
    """
    steps = (max(-(-limit_ms // factor), min(LAST_PASS_MS, limit_ms)) for factor in _STEP_FACTORS)
    return tuple(dict.fromkeys(steps))
