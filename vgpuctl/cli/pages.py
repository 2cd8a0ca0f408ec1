# SPDX-License-Identifier: Apache-2.0
"""The pages for people, made from the same `data` that programs get: a page shows nothing that JSON lacks.

`?` means unknown, `-` means none. Lines that are not part of the result go to stderr.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vgpuctl.cli import listings
from vgpuctl.cli.command import how_shown
from vgpuctl.cli.shown import Block, Page, Table, device_item, disk_line, dry_run, network_line, vgpus_text
from vgpuctl.model.numbers import count_text
from vgpuctl.model.outcome import VMS_UNKNOWN, AnyResult, Outcome, QueryResult
from vgpuctl.model.results import ABSENT, TargetsResult
from vgpuctl.model.results import vms as vm_results
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.cli.listings import View
    from vgpuctl.cli.shown import Listing
    from vgpuctl.model.results import TallyResult, TargetResult
    from vgpuctl.model.results.vms import ManyVmsResult, VmReport


def page(kind: str, result: AnyResult, view: View | None = None) -> Page:
    """Return the page of a command's result: of its data, for a change of the outcome with its steps.

    A list's table has the columns of the view; its own page adds what goes to stderr.
    """
    if isinstance(result.data, TargetsResult):
        return _targets_page(kind, result, result.data)
    listing = listings.find_listing(kind)
    if listing is not None and isinstance(result.data, tuple):
        page = _list_page(kind, listing, result.data, view or listings.DEFAULT_VIEW)
        are_unknown = kind == "list-vms" and not result.data and _are_vms_unknown(result)
        return Page() if are_unknown else page
    return single_page(kind, result)


def single_page(kind: str, result: AnyResult) -> Page:
    """Return the page of a command's result for one VM, vGPU, GPU or host."""
    make = how_shown(kind).page or _change_page
    return make(result if isinstance(result, Outcome) else result.data)


def _are_vms_unknown(result: AnyResult) -> bool:
    """Say whether libvirt did not answer; then a list without VMs means nothing."""
    return any(warning.startswith(VMS_UNKNOWN) for warning in result.warnings)


def _list_page(kind: str, listing: Listing, rows: tuple[object, ...], view: View) -> Page:
    if not rows and view.filters:
        return Page(stderr_lines=[f"nothing matches --filter {shlex.quote(','.join(view.filters))}"])
    if not rows and view.nothing is not None:
        return Page(stderr_lines=[view.nothing])
    make = how_shown(kind).page
    page = Page() if make is None else make(rows)
    return replace(page, blocks=[listings.make_table(listing, view, rows)] if rows else [])


def _change_page(result: Any) -> Page:
    """A change: the steps in a dry run, otherwise the state of the VM or VMs, or how many steps were done; or XML."""
    if not isinstance(result, Outcome):
        return Page([result.xml.rstrip()])
    if result.dry_run:
        return dry_run(result)
    data = result.data
    if isinstance(data, vm_results.ManyVmsResult):
        return _batch_page(data)
    if isinstance(data, vm_results.VmResult | vm_results.PlannedVmResult):
        return _vm_change_page(data, result.steps)
    return Page([f"{count_text(len(result.steps), 'step')} done" if result.steps else "nothing to do"])


def _vm_change_page(data: VmReport, steps: Sequence[str]) -> Page:
    """A VM that was changed: its resulting state."""
    blocks: list[Block] = [f"{data.name}: {data.state}"]
    blocks += [f"  {label:<4}  {text}" for label, text in (device_item(v, data.name) for v in data.vgpus)]
    blocks += [f"  disk  {disk_line(disk)}" for disk in data.disks]
    if isinstance(data, vm_results.ChangedVmResult):
        blocks += [f"  net   {network_line(network)}" for network in data.networks]
    guest = getattr(data, "guest", ABSENT)
    blocks += [f"  guest {entry.address}" for entry in (guest.addresses if guest is not ABSENT else ())]
    return Page([*blocks, *([] if steps else ["  nothing to do"])])


def _batch_page(data: ManyVmsResult) -> Page:
    """Several VMs: one per line, and how many of them were created, started, stopped or deleted."""
    if not data.vms:
        return Page(["none of these VMs exists; nothing to do"])
    rows = tuple((vm.name, vm.state, vm.result, vgpus_text(vm.vgpus)) for vm in data.vms)
    counts = Counter(vm.result for vm in data.vms if vm.changed) or {"created": 0}
    table = Table(("NAME", "STATE", "RESULT", "VGPUS"), rows, states=frozenset({"STATE", "RESULT"}))
    return Page([table, "", f"{count_text(len(rows), 'VM')}, {', '.join(f'{n} {word}' for word, n in counts.items())}"])


def join_pages(sections: Sequence[tuple[str, Sequence[Block]]], header: str) -> list[Block]:
    """Join the pages of several hosts or VMs; if each is one table with the same headers, the result is one table.

    `header`: of the column with their names.
    """
    non_empty = [(name, blocks) for name, blocks in sections if blocks]
    single_blocks = [
        (name, blocks[0]) for name, blocks in non_empty if len(blocks) == 1 and isinstance(blocks[0], Table)
    ]
    host_tables = [(name, block) for name, block in single_blocks if isinstance(block, Table)]
    if host_tables and len(host_tables) == len(non_empty) and len({table.headers for _, table in host_tables}) == 1:
        rows = tuple((name, *row) for name, table in host_tables for row in table.rows)
        first = host_tables[0][1]
        return [replace(first, headers=(header, *first.headers), rows=rows)]
    pages_: list[Block] = []
    for name, blocks in non_empty:
        pages_ += [*([""] if pages_ else []), f"== {name}", *blocks]
    return pages_


def _targets_page(kind: str, result: AnyResult, data: TargetsResult[Any]) -> Page:
    """Several VMs, vGPUs or GPUs: one line or one page for each, and the tally."""
    shown = how_shown(kind)
    if isinstance(result, QueryResult):
        pages = [(t.name, single_page(kind, QueryResult(t.data))) for t in data.targets if t.ok]
        lines = [f"{name}: {line}" for name, page in pages for line in page.stderr_lines]
        return Page(join_pages([(name, page.blocks) for name, page in pages], shown.header), lines)
    tally = tally_text(kind, data.tally, preview=result.dry_run)
    if result.dry_run:
        return Page([*dry_run(result).blocks, "", tally])
    rows: tuple[tuple[str, ...], ...] = tuple((t.name, _word(shown.words, t), _detail(kind, t)) for t in data.targets)
    headers: tuple[str, ...] = ("NAME", "RESULT", "NOW")
    if data.tally.failed:
        headers = (*headers, "ERROR")
        rows = tuple((*row, t.error.code if t.error else "-") for row, t in zip(rows, data.targets, strict=True))
    return Page([Table(headers, rows), "", tally])


def tally_text(kind: str, tally: TallyResult, *, preview: bool = False) -> str:
    """Return how many were changed, needed no change and failed: `97 stopped, 2 already off, 1 failed`."""
    changed, unchanged = how_shown(kind).words
    counts = [
        (tally.changed, f"would be {changed}" if preview else changed),
        (tally.unchanged, unchanged),
        (tally.failed, "failed"),
    ]
    return ", ".join(f"{count} {word}" for count, word in counts if count) or f"0 {changed}"


def _word(words: tuple[str, str], target: TargetResult[Any]) -> str:
    return words[not target.changed] if target.ok else "failed"


def _detail(kind: str, target: TargetResult[Any]) -> str:
    """Return what the command's own page says first of one target, without its name; of a failed VM its state."""
    if target.error is not None:
        return target.error.state or "-"
    blocks: list[Block] = list(single_page(kind, Outcome(target.changed, target.data, target.steps)).blocks)
    first = blocks[0] if blocks and isinstance(blocks[0], str) else ""
    return first.partition("; nothing to do")[0].removeprefix(f"{target.name}: ")
