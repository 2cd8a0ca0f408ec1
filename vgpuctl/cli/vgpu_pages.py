# SPDX-License-Identifier: Apache-2.0
"""The pages of vGPUs: those without a VM, and the list of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vgpuctl.cli.pages import Page, dry_run, vgpu_line
from vgpuctl.cli.tables import Table
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.results.vgpus import (
    AbsentVgpuResult,
    EnsuredVgpuResult,
    ListedVgpuResult,
    NamedVgpuResult,
    VgpuResult,
)


def _create_page(result: Outcome[NamedVgpuResult]) -> Page:
    """Only the <hostdev> element goes to stdout, so that it can go to a file; the vGPU's location goes to stderr."""
    if result.dry_run:
        return dry_run(result)
    data = result.data
    stderr_lines = [f"vGPU {data.name}: {vgpu_line(data)}", "a VM gets it, with what is printed in FILE, by:"]
    return Page([data.hostdev], [*stderr_lines, *(f"  {line}" for line in data.usage)])


def _delete_page(result: Outcome[VgpuResult | AbsentVgpuResult]) -> Page:
    return dry_run(result) if result.dry_run else Page([f"vGPU {result.data.name}: absent"])


def _ensure_page(result: Outcome[EnsuredVgpuResult | AbsentVgpuResult]) -> Page:
    data = result.data
    if result.dry_run or isinstance(data, AbsentVgpuResult) or not data.present:
        return _delete_page(result)
    return Page([f"vGPU {data.name}: {vgpu_line(data)}"])


def _list_page(data: tuple[ListedVgpuResult, ...]) -> Page:
    if not data:
        return Page(stderr_lines=["no such vGPU here; create-vgpu makes one without a VM"])
    rows = tuple(
        (
            v.name or "-",
            v.profile or "-",
            v.gpu,
            ", ".join((v.carrier, *v.companions)),
            "yes" if v.present else "no",
            v.vm or "-",
            "host.yaml" if v.name else v.owner,
        )
        for v in data
    )
    return Page([Table(("NAME", "PROFILE", "GPU", "CARRIER", "MADE", "VM", "OWNER"), rows)])


PAGES: dict[str, Callable[[Any], Page]] = {
    "create-vgpu": _create_page,
    "ensure-vgpu": _ensure_page,
    "delete-vgpu": _delete_page,
    "list-vgpus": _list_page,
}
