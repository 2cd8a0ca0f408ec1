# SPDX-License-Identifier: Apache-2.0
"""GPUs as bars of slices: their colour says the pool, their pattern the state, and a text both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from vgpuctl.controller.web.parts import POOL_COLORS, Bar, Cell, GpuMap, HostBars, Legend, Segment
from vgpuctl.model.results.fleet import FleetGpuResult, GpuSliceResult, OverviewHostResult

IN_USE, READY, STARTING, REFRESHING, OFF, FAILED, UNKNOWN, OTHERS = (
    "in-use", "ready", "starting", "refreshing", "off", "failed", "unknown", "others",
)  # fmt: skip
STATES: Mapping[str, str] = {
    "assigned": IN_USE, "connected": IN_USE, "ready": READY, "unplaced": STARTING, "waiting": STARTING,
    "making": STARTING, "preparing": STARTING, "starting": STARTING, "restarting": STARTING, "dirty": REFRESHING,
    "refreshing": REFRESHING, "stopping": REFRESHING, "retiring": REFRESHING, "off": OFF, "failed": FAILED,
    "lost": FAILED, "unknown": UNKNOWN,
}  # fmt: skip
"""What a phase counts as."""
TEXTS = {
    IN_USE: "in use", READY: "ready", STARTING: "starting", REFRESHING: "refreshing", OFF: "off", FAILED: "failed",
    UNKNOWN: "not known", OTHERS: "others",
}  # fmt: skip
LEGEND = (*(Legend(state, text) for state, text in TEXTS.items()), Legend("free", "free"))
MOST_GPUS = 64
"""Above this number of GPUs in the fleet there is one bar for each host."""
_PATTERNS = (STARTING, REFRESHING)
_BADGES = {IN_USE: "good", READY: "good", FAILED: "bad", UNKNOWN: "warn", STARTING: "busy", REFRESHING: "busy"}


def state_of_phase(phase: str | None) -> str:
    """Return what a phase counts as; None: of no desktop. A word of a newer program is not known."""
    return OTHERS if phase is None else STATES.get(phase, UNKNOWN)


def badge_of(phase: str) -> Cell:
    """Return a phase as a cell."""
    return Cell(phase, badge=_BADGES.get(state_of_phase(phase), "plain"))


def pool_colors(names: Iterable[str]) -> dict[str, int]:
    """Return the colour of each pool."""
    return {name: number % POOL_COLORS for number, name in enumerate(sorted(names))}


def count_states(counts: Mapping[str, int]) -> Counter[str]:
    """Return desktops by what their phases count as."""
    states: Counter[str] = Counter()
    for phase, count in counts.items():
        states[state_of_phase(phase)] += count
    return states


def count_text(states: Mapping[str, int]) -> str:
    """Return counts as a text such as `2 in use, 1 ready`."""
    return ", ".join(f"{states[state]} {text}" for state, text in TEXTS.items() if states.get(state)) or "none"


def gpu_map(hosts: Sequence[OverviewHostResult], gpu_count: int, colors: Mapping[str, int]) -> GpuMap:
    """Return the bars of hosts; `gpu_count`: of the fleet."""
    is_wide = gpu_count > MOST_GPUS
    return GpuMap(tuple(_host(one, colors, is_wide) for one in hosts), LEGEND, is_wide)


def _host(host: OverviewHostResult, colors: Mapping[str, int], is_wide: bool) -> HostBars:
    models = Counter(gpu.model for gpu in host.gpus if gpu.model)
    model = ", ".join(f"{count} × {name}" for name, count in sorted(models.items()))
    bars = (_host_bar(host, colors),) if is_wide and host.gpus else tuple(gpu_bar(one, colors) for one in host.gpus)
    return HostBars(host.name, f"/hosts/{host.name}", model, host_badges(host), bars)


def host_badges(host: OverviewHostResult) -> tuple[Cell, ...]:
    """Return what is unusual about a host, in words."""
    words = [(host.state, "warn")] if host.state != "active" else []
    words += [("held", "bad")] if host.held else []
    words += [("does not answer", "bad")] if host.silent else []
    return tuple(Cell(text, badge=badge) for text, badge in words)


def gpu_bar(gpu: FleetGpuResult, colors: Mapping[str, int]) -> Bar:
    """Return the bar of a GPU: each slice as wide as its share of the framebuffer."""
    total = gpu.framebuffer_mib or max(gpu.taken_mib, 1)
    states = Counter(state_of_phase(one.phase) for one in gpu.slices)
    segments, at = [], 0.0
    for one in gpu.slices:
        size = 100.0 if one.framebuffer_mib is None else 100.0 * one.framebuffer_mib / total
        segments.append(_segment(at, min(size, 100.0 - at), one, colors))
        at = min(100.0, at + size)
    amount = f"{_gib(gpu.taken_mib)}/{_gib(total)} GiB" if gpu.framebuffer_mib else f"{len(gpu.slices)} on it"
    label = f"GPU {gpu.address}: {amount} taken; {count_text(states)}"
    return Bar(gpu.address.removeprefix("0000:"), label, amount, _with_free(segments, at))


def _host_bar(host: OverviewHostResult, colors: Mapping[str, int]) -> Bar:
    """Return one bar for all GPUs of a host: what each pool has there, by state."""
    total = sum(gpu.framebuffer_mib or 0 for gpu in host.gpus) or 1
    taken = sum(gpu.taken_mib for gpu in host.gpus)
    sizes: Counter[tuple[str, str]] = Counter()
    counts: Counter[tuple[str, str]] = Counter()
    for gpu in host.gpus:
        for one in gpu.slices:
            key = (one.pool or "", state_of_phase(one.phase))
            sizes[key] += one.framebuffer_mib if one.framebuffer_mib is not None else gpu.framebuffer_mib or 0
            counts[key] += 1
    segments, at = [], 0.0
    for (pool, state), size in sorted(sizes.items()):
        width = min(100.0 * size / total, 100.0 - at)
        text = f"{pool or 'others'}: {counts[pool, state]} {TEXTS[state] if pool else 'vGPUs'}"
        segments.append(_part(at, width, state, text, colors.get(pool)))
        at += width
    states: Counter[str] = Counter()
    for (_, state), count in counts.items():
        states[state] += count
    amount = f"{_gib(taken)}/{_gib(total)} GiB"
    label = f"{len(host.gpus)} GPUs of {host.name}: {amount} taken; {count_text(states)}"
    return Bar(f"{len(host.gpus)} GPUs", label, amount, _with_free(segments, at))


def share_bar(name: str, counts: Mapping[str, int], maximum: int, color: int) -> Bar:
    """Return the desktops of a pool by state, as shares of its maximum."""
    states, segments, at = count_states(counts), [], 0.0
    for state in TEXTS:
        if states[state]:
            width = min(100.0 * states[state] / max(maximum, sum(states.values()), 1), 100.0 - at)
            segments.append(_part(at, width, state, f"{states[state]} {TEXTS[state]}", color))
            at += width
    total = sum(states.values())
    return Bar(
        name, f"{total} of at most {maximum}: {count_text(states)}", f"{total}/{maximum}", _with_free(segments, at)
    )


def _segment(at: float, width: float, one: GpuSliceResult, colors: Mapping[str, int]) -> Segment:
    state = state_of_phase(one.phase)
    size = "whole GPU" if one.framebuffer_mib is None else one.profile or f"{_gib(one.framebuffer_mib)} GiB"
    words = [one.desktop or "a VM of the host's own", size, *((one.phase,) if one.phase else ())]
    return _part(at, width, state, ", ".join([*words, *((one.user,) if one.user else ())]), colors.get(one.pool or ""))


def _part(at: float, width: float, state: str, label: str, color: int | None) -> Segment:
    fill = f"{state}-{color}" if state in _PATTERNS and color is not None else ""
    return Segment(f"{at:.4g}", f"{max(width, 0.0):.4g}", state, label, color, fill)


def _with_free(segments: list[Segment], at: float) -> tuple[Segment, ...]:
    free = 100.0 - at
    return (*segments, Segment(f"{at:.4g}", f"{free:.4g}", "free", "free")) if free > 0.05 else tuple(segments)


def _gib(mib: int) -> str:
    return f"{mib / 1024:.3g}" if mib % 1024 else str(mib // 1024)
