# SPDX-License-Identifier: Apache-2.0
"""What `vgpuctl diff` and `vgpuctl apply` print: how host.yaml and the host differ, and what was done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vgpuctl.cli.pages import Page, dry_run
from vgpuctl.cli.tables import Block, Table
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.results.host import HostDifferenceResult, HostGpuResult
from vgpuctl.value import field_names


def _apply_page(result: Outcome[HostDifferenceResult]) -> Page:
    data = result.data
    if result.dry_run:
        return Page([*dry_run(result).blocks, *_removed_lines(data, "would go from host.yaml:")])
    if not result.steps:
        return Page(["the host is as host.yaml says; nothing to do"])
    lines = [f"{gpu.address}: {_key_values(gpu.after)}" for gpu in data.gpus if gpu.steps or gpu.differences]
    lines += [f"{row.key}: {_yaml_text(row.wanted)}" for row in data.settings]
    lines += _removed_lines(data, "gone from host.yaml:")
    return Page([*lines, f"the host is as host.yaml says; steps done: {len(result.steps)}"])


def _removed_lines(data: HostDifferenceResult, title: str) -> list[str]:
    """Return the removed entries, one per line; nothing if none is removed."""
    rows = [f"  {row.entry}: {_yaml_text(row.keys)}" for row in data.removed]
    return [title, *rows] if rows else []


def _diff_page(result: Outcome[HostDifferenceResult]) -> Page:
    data = result.data
    rows = [(gpu.address, row) for gpu in data.gpus for row in gpu.differences]
    rows += [("host", row) for row in data.settings]
    removed = _removed_lines(data, "would go from host.yaml:")
    if not rows and not removed and not any(gpu.steps for gpu in data.gpus):
        return Page(["no differences: nothing to apply"])
    cells = tuple((target, row.key, _yaml_text(row.is_), _yaml_text(row.wanted)) for target, row in rows)
    blocks: list[Block] = [Table(("GPU", "KEY", "IS", "WANTED"), cells)] if cells else []
    if result.steps:
        blocks += ["", *dry_run(result).blocks]
    return Page([*blocks, *([""] if blocks and removed else []), *removed])


def _key_values(settings: HostGpuResult) -> str:
    values = ((key, getattr(settings, key)) for key in field_names(settings))
    parts = [f"{key} {_yaml_text(value)}" for key, value in values if value is not None]
    return ", ".join(parts) or "nothing is configured"


def _yaml_text(value: object) -> str:
    """Return a value as host.yaml writes it, in one line."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_yaml_text(item)}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


PAGES: dict[str, Callable[[Any], Page]] = {"apply": _apply_page, "diff": _diff_page}
