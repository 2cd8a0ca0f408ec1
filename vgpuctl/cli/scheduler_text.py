# SPDX-License-Identifier: Apache-2.0
"""A GPU's scheduler for people: the one that runs, and the configured one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vgpuctl.model.results.gpus import RunningSchedulerResult
    from vgpuctl.model.vgpu_scheduler import SchedulerSpec


def running_text(state: RunningSchedulerResult | None) -> str:
    """Return the running scheduler: `fixed_share, slices of 2 ms`."""
    if state is None or state.policy is None:
        return "?" if state is None or state.problem is None else f"? ({state.problem})"
    parts: list[str] = [state.policy]
    if state.time_slice_us is not None:
        average = " on the average" if state.adaptive else ""
        parts.append(f"slices of {milliseconds(state.time_slice_us)}{average}")
    if state.averaging_factor is not None:
        parts.append(f"averaging factor {state.averaging_factor}")
    if state.preempt_timeout_us is not None:
        parts.append(f"preemption timeout {state.preempt_timeout_us} us")
    log = " (by the kernel log)" if state.source == "kernel log" else f" ({state.source})"
    source = "" if state.source == "NVML" else log
    return f"{', '.join(parts)}{source}"


def configured_text(spec: SchedulerSpec | None) -> str:
    """Return the configured scheduler: `fixed_share, time slice 2 ms`."""
    if spec is None:
        return "nothing"
    texts = (
        (spec.time_slice_ms, "time slice {} ms"),
        (spec.frequency_hz, "{} Hz"),
        (spec.averaging_factor, "averaging factor {}"),
        (spec.preempt_timeout_us, "preemption timeout {} us"),
    )
    return ", ".join([spec.policy, *(text.format(value) for value, text in texts if value is not None)])


def milliseconds(us: float) -> str:
    """Return a time in microseconds as text in milliseconds."""
    return f"{us / 1000:.4g} ms"
