# SPDX-License-Identifier: Apache-2.0
"""The pages of the sim commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vgpuctl.cli.pages import Page
from vgpuctl.model.numbers import count_text
from vgpuctl.model.results.program import RebootedResult, ScenarioResult, SimResult


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
    "sim-list-scenarios": _scenarios,
    "sim-reboot": _reboot_page,
    "sim-reset": _reset_page,
}
