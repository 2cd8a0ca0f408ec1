# SPDX-License-Identifier: Apache-2.0
"""The lines and tables of NVIDIA's vGPU scheduler: configured, running, and each vGPU's guaranteed share."""

from __future__ import annotations

from vgpuctl.cli.tables import Block, Table
from vgpuctl.model.results.gpus import ChangedSchedulerResult, GpuDetailsResult
from vgpuctl.model.results.schedulers import RunningSchedulerResult, ShareResult
from vgpuctl.model.vgpu_scheduler import SchedulerSpec


def pairs(gpu: GpuDetailsResult) -> tuple[tuple[str, str], ...]:
    """Return the lines of show-gpu; none for a GPU without a scheduler."""
    scheduler = gpu.scheduler
    if scheduler is None:
        return ()
    lines = [("scheduler", f"{running_text(scheduler.running)}; asked for: {configured_text(scheduler.configured)}")]
    for spec, title in ((gpu.scheduler_at_load, "driver loaded with"), (gpu.scheduler_next, "next load")):
        if spec is not None:
            lines.append((title, configured_text(spec)))
    return tuple(lines)


def share_table(gpu: GpuDetailsResult) -> list[Block]:
    """Return the table of shares."""
    rows = tuple(
        (_vm_label(share), share.profile or "", _percent(share), _slice(share), share.note) for share in gpu.shares
    )
    headers = ("VM", "PROFILE", "GUARANTEED", "SLICE", "WHY")
    return ["", Table(headers, rows, frozenset({"GUARANTEED", "SLICE"}))] if rows else []


def _vm_label(share: ShareResult) -> str:
    return str(share.vm or (f"vGPU {share.name}" if share.name else share.carrier))


def change_line(data: ChangedSchedulerResult) -> str:
    """Return one line about a GPU whose scheduler was set."""
    if data.takes_effect != "now":
        configured = data.scheduler.configured if data.scheduler is not None else None
        return f"{data.address}: {configured_text(configured)} when its driver is loaded next"
    return f"{data.address}: {running_text(data.scheduler.running if data.scheduler is not None else None)}"


def running_text(state: RunningSchedulerResult | None) -> str:
    """Return the running scheduler: `fixed_share, slices of 2 ms`."""
    if state is None or state.policy is None:
        return "?"
    parts: list[str] = [state.policy]
    if state.time_slice_us is not None:
        average = " on the average" if state.adaptive else ""
        parts.append(f"slices of {_ms(state.time_slice_us)}{average}")
    if state.averaging_factor is not None:
        parts.append(f"averaging factor {state.averaging_factor}")
    source = "" if state.source == "NVML" else f" (by the {state.source})"
    return f"{', '.join(parts)}{source}"


def configured_text(spec: SchedulerSpec | None) -> str:
    """Return the configured scheduler: `fixed_share, time slice 2 ms`."""
    if spec is None:
        return "nothing"
    texts = (
        (spec.time_slice_ms, "time slice {} ms"),
        (spec.frequency_hz, "{} Hz"),
        (spec.averaging_factor, "averaging factor {}"),
    )
    return ", ".join([spec.policy, *(text.format(value) for value, text in texts if value is not None)])


def _percent(share: ShareResult) -> str:
    percent = share.guaranteed_percent
    return "-" if percent is None else f"{percent:g} %"


def _slice(share: ShareResult) -> str:
    return "-" if share.time_slice_us is None else _ms(share.time_slice_us)


def _ms(us: float) -> str:
    return f"{us / 1000:.4g} ms"
