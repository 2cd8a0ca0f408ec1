# SPDX-License-Identifier: Apache-2.0
"""The pages of vGPUs: of those without a VM, and the list of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vgpuctl.cli.pages import Data, Page, dry_run, vgpu_line
from vgpuctl.cli.tables import Table


def _made(data: Data) -> Page:
    """The element alone, so that it can be sent to a file; beside it where the vGPU is."""
    if data["dry_run"]:
        return dry_run(data)
    said = [f"vGPU {data['name']}: {vgpu_line(data)}", "a VM gets it, with what is printed in FILE, by:"]
    return Page([data["hostdev"]], [*said, *(f"  {line}" for line in data["usage"])])


def _gone(data: Data) -> Page:
    return dry_run(data) if data["dry_run"] else Page([f"vGPU {data['name']}: absent"])


def _ensured(data: Data) -> Page:
    if not data["present"] and not data["dry_run"]:
        return _gone(data)
    if data["dry_run"]:
        return dry_run(data)
    return Page([f"vGPU {data['name']}: {vgpu_line(data)}"])


def _listed(data: Sequence[Data]) -> Page:
    if not data:
        return Page(asides=["no such vGPU here; create-vgpu makes one without a VM"])
    rows = tuple(
        (
            v["name"] or "-",
            v["profile"] or "-",
            v["gpu"],
            ", ".join([v["carrier"], *v["companions"]]),
            "yes" if v["present"] else "no",
            v["vm"] or "-",
            "host.yaml" if v["name"] else v["owner"],
        )
        for v in data
    )
    return Page([Table(("NAME", "PROFILE", "GPU", "CARRIER", "MADE", "VM", "OWNER"), rows)])


PAGES: dict[str, Callable[[Any], Page]] = {
    "create-vgpu": _made,
    "ensure-vgpu": _ensured,
    "delete-vgpu": _gone,
    "list-vgpus": _listed,
}
