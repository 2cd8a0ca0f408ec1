# SPDX-License-Identifier: Apache-2.0
"""The page of a command on several VMs, vGPUs or GPUs: one line or one page for each, and the tally."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vgpuctl.cli.pages import Page, dry_run, join_pages, single_page
from vgpuctl.cli.tables import Block, Table
from vgpuctl.model.outcome import AnyResult, Outcome, QueryResult
from vgpuctl.model.results.targets import TallyResult, TargetResult, TargetsResult

_CHANGE_WORDS = {
    "start-vm": ("started", "already running"),
    "reboot-vm": ("rebooted", "unchanged"),
    "resize-disk": ("grown", "already as large"),
    "stop-vm": ("stopped", "already off"),
    "delete-vm": ("deleted", "unchanged"),
    "delete-vgpu": ("deleted", "unchanged"),
    "refresh-vm": ("refreshed", "left alone"),
    "cordon": ("cordoned", "already cordoned"),
    "uncordon": ("uncordoned", "not cordoned before"),
}
"""What a command does, in a word, and what it says of one that needs no change."""
_NAME_HEADERS = {"show-gpu": "GPU"}


def _targets(shown: tuple[str, AnyResult]) -> Page:
    kind, result = shown
    data = result.data
    if not isinstance(data, TargetsResult):
        raise TypeError(f"{kind} has one result")
    if isinstance(result, QueryResult):
        pages = [(t.name, single_page(kind, QueryResult(t.data))) for t in data.targets if t.ok]
        lines = [f"{name}: {line}" for name, page in pages for line in page.stderr_lines]
        return Page(join_pages([(name, page.blocks) for name, page in pages], _NAME_HEADERS.get(kind, "NAME")), lines)
    tally = tally_text(kind, data.tally, preview=result.dry_run)
    if result.dry_run:
        return Page([*dry_run(result).blocks, "", tally])
    rows: tuple[tuple[str, ...], ...] = tuple((t.name, _word(kind, t), _detail(kind, t)) for t in data.targets)
    headers: tuple[str, ...] = ("NAME", "RESULT", "NOW")
    if data.tally.failed:
        headers = (*headers, "ERROR")
        rows = tuple((*row, t.error.code if t.error else "-") for row, t in zip(rows, data.targets, strict=True))
    return Page([Table(headers, rows), "", tally])


def tally_text(kind: str, tally: TallyResult, *, preview: bool = False) -> str:
    """Return how many were changed, needed no change and failed: `97 stopped, 2 already off, 1 failed`."""
    changed, unchanged = _words(kind)
    counts = [
        (tally.changed, f"would be {changed}" if preview else changed),
        (tally.unchanged, unchanged),
        (tally.failed, "failed"),
    ]
    return ", ".join(f"{count} {word}" for count, word in counts if count) or f"0 {changed}"


def _words(kind: str) -> tuple[str, str]:
    return _CHANGE_WORDS.get(kind, ("changed", "unchanged"))


def _word(kind: str, target: TargetResult[Any]) -> str:
    if not target.ok:
        return "failed"
    return _words(kind)[not target.changed]


def _detail(kind: str, target: TargetResult[Any]) -> str:
    """Return what the command's own page says first of one target, without its name; of a failed VM its state."""
    if target.error is not None:
        return target.error.state or "-"
    blocks: list[Block] = list(single_page(kind, Outcome(target.changed, target.data, target.steps)).blocks)
    first = blocks[0] if blocks and isinstance(blocks[0], str) else ""
    return first.partition("; nothing to do")[0].removeprefix(f"{target.name}: ")


PAGES: dict[str, Callable[[Any], Page]] = {"targets": _targets}
