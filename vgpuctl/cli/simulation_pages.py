# SPDX-License-Identifier: Apache-2.0
"""The pages of simulate (which requests were admitted, and the framebuffer over time) and of simulated hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vgpuctl.cli.pages import Page, mib
from vgpuctl.cli.tables import Block, Table
from vgpuctl.model.numbers import count_text
from vgpuctl.model.results.program import RebootedResult, ScenarioResult, SimResult
from vgpuctl.model.results.simulation import SimulatedPolicyResult, SimulationResult

TIMELINE_ROWS = 12
"""How many rows the table over time has."""
_NUMERIC_HEADERS = frozenset(
    {"MEMORY", "REQUESTS", "ADMITTED", "REFUSED", "THOUGH FREE", "ALLOCATED", "PEAK", "BUSY GPUS"}
)


def _simulate_page(data: SimulationResult) -> Page:
    policies = data.policies
    blocks: list[Block] = [*_summary_lines(data), "", _policies(data)]
    if len(policies) == 1:
        blocks += ["", _profiles(policies[0]), "", _timeline(data, policies[0])]
    files = [f"{title} {path}" for path, title in ((data.plot, "picture:"), (data.written, "requests:")) if path]
    return Page(blocks, files)


def _summary_lines(data: SimulationResult) -> list[Block]:
    gpus = ", ".join(f"{gpu.count} x {gpu.model} ({mib(gpu.framebuffer_mib)})" for gpu in data.gpus)
    kept_note = f", {mib(data.kept_mib)} of it in use before and kept" if data.kept_mib else ""
    return [
        f"on {gpus}: {mib(data.framebuffer_mib)}{kept_note}",
        f"{data.requests} requests from {time_text(data.begin_seconds)} to {time_text(data.end_seconds)}",
    ]


def _policies(data: SimulationResult) -> Table:
    """One row per policy; allocated framebuffer and busy GPUs are averages over time."""
    total = data.framebuffer_mib
    rows = tuple(
        (
            run.policy, str(run.admitted), str(run.refused), str(run.refused_though_free),
            percent_text(run.mean.allocated_mib, total), percent_text(run.peak_allocated_mib, total),
            f"{run.mean.busy_gpus:.1f}",
        )
        for run in data.policies
    )  # fmt: skip
    headers = ("POLICY", "ADMITTED", "REFUSED", "THOUGH FREE", "ALLOCATED", "PEAK", "BUSY GPUS")
    return Table(headers, rows, _NUMERIC_HEADERS)


def _profiles(run: SimulatedPolicyResult) -> Table:
    rows = tuple(
        (
            row.profile, mib(row.framebuffer_mib), str(row.requests), str(row.admitted),
            str(row.refused), str(row.refused_though_free),
        )
        for row in run.profiles
    )  # fmt: skip
    return Table(("PROFILE", "MEMORY", "REQUESTS", "ADMITTED", "REFUSED", "THOUGH FREE"), rows, _NUMERIC_HEADERS)


def _timeline(data: SimulationResult, run: SimulatedPolicyResult) -> Table:
    times = run.timeline
    last = len(times) - 1
    shown = dict.fromkeys(round(last * n / (TIMELINE_ROWS - 1)) for n in range(TIMELINE_ROWS))
    rows = tuple(
        (
            time_text(times[n].seconds),
            percent_text(times[n].allocated_mib, data.framebuffer_mib),
            str(times[n].busy_gpus),
        )
        for n in shown
    )
    return Table(("TIME", "ALLOCATED", "BUSY GPUS"), rows, _NUMERIC_HEADERS)


def percent_text(part_mib: float, total_mib: int) -> str:
    """Return a part of the framebuffer in percent: `62.5 %`."""
    return f"{100 * part_mib / total_mib:.1f} %" if total_mib else "-"


def time_text(seconds: float) -> str:
    """Return a time since the start: `08:30`, with the number of days from the second day on: `1d 08:30`."""
    minutes = int(seconds) // 60
    day, rest = divmod(minutes, 24 * 60)
    return f"{f'{day}d ' if day else ''}{rest // 60:02}:{rest % 60:02}"


def _scenarios(data: tuple[ScenarioResult, ...]) -> Page:
    return Page()


def _reboot_page(data: RebootedResult) -> Page:
    """Say what the boot unit did; why something failed is in the warnings."""
    if data.boot_unit == "not-enabled":
        hint = "vgpuctl install-host installs the boot unit that creates them again"
        return Page([f"{data.host}: booted again; its VMs are off, its vGPUs are gone", f"  {hint}"])
    gpus = sum(entry.kind == "gpu" for entry in data.restored)
    vgpus = sum(len(entry.carriers) for entry in data.restored)
    setup = f"set up {count_text(gpus, 'GPU')} and " if gpus else ""
    created = f"{setup}created {count_text(vgpus, 'vGPU')} again"
    failures = " and failed" if data.boot_unit == "failed" else ""
    failures += f" for {len(data.failed)}" if data.failed else ""
    return Page([f"{data.host}: booted again; its VMs are off, the boot unit {created}{failures}"])


def _reset_page(data: SimResult) -> Page:
    return Page([f"{data.host}: as new"])


PAGES: dict[str, Callable[[Any], Page]] = {
    "simulate": _simulate_page,
    "sim-list-scenarios": _scenarios,
    "sim-reboot": _reboot_page,
    "sim-reset": _reset_page,
}
