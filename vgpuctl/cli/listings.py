# SPDX-License-Identifier: Apache-2.0
"""The pages for people, and lists: which columns, which rows in which order, and the forms csv and name.

A page is made from the same `data` that programs get: it shows nothing that JSON lacks. Lines that are not part of the
result go to stderr.

The module of a command defines the columns of its list once; tables, csv, --columns, --sort-by and --filter all use
this definition.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from vgpuctl.cli.command import how_shown
from vgpuctl.cli.shown import (
    Block,
    Cell,
    Column,
    Listing,
    Page,
    Table,
    device_item,
    disk_line,
    drawn_line,
    dry_run,
    network_line,
    rows_of,
    vgpus_text,
    with_rows,
)
from vgpuctl.cli.usage import UsageErrorWithHint, list_commands
from vgpuctl.config.name_patterns import expand_braces, matches_glob, split_list
from vgpuctl.errors import InvalidInput
from vgpuctl.model.csv_cells import csv_file
from vgpuctl.model.numbers import count_text
from vgpuctl.model.outcome import VMS_UNKNOWN, AnyResult, Outcome, QueryResult
from vgpuctl.model.results import ABSENT, TargetsResult
from vgpuctl.model.results import vms as vm_results
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.cli.global_options import Settings
    from vgpuctl.model.results import TallyResult, TargetResult
    from vgpuctl.model.results.vms import ManyVmsResult, VmReport

ROW_OUTPUTS = ("wide", "csv", "name")
_CONDITION = re.compile(r"(?P<key>[^=!]+)(?P<operator>!?=)(?P<pattern>.*)", re.DOTALL)


class View(Value):
    """What --columns, -o wide, --sort-by and --filter say. `nothing`: what is said of a list without rows."""

    columns: tuple[str, ...] = ()
    wide: bool = False
    sort_by: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()
    nothing: str | None = None


_DEFAULT_VIEW = View()


class _Condition(Value):
    column: Column
    negated: bool
    patterns: tuple[str, ...]


def view_of(settings: Settings) -> View:
    """Return the view that the options name."""
    return View(
        _split(settings.columns),
        settings.output == "wide",
        _split(settings.sort_by or ""),
        tuple(settings.filter),
        settings.nothing,
    )


def find_listing(kind: str) -> Listing | None:
    """Return the list of a command, None for a command that is no list."""
    return how_shown(kind).listing


def check_options(kind: str, settings: Settings, context: click.Context) -> None:
    """Check --output, --columns, --sort-by and --filter before anything is read.

    Raises:
        click.UsageError: a form that the command does not have, or a column that its list does not have.
    """
    listing = find_listing(kind)
    if listing is None:
        if settings.output in ROW_OUTPUTS:
            raise UsageErrorWithHint(
                f"-o {settings.output} works with lists only, and {context.command.name} does not print a list",
                f"these commands print a list: {list_commands(context)}",
                context,
            )
        return
    view = view_of(settings)
    try:
        _shown_columns(listing, view)
        _sort_keys(listing, view)
        _conditions(listing, view)
    except click.UsageError as error:
        error.ctx = context
        raise


def narrow(kind: str, view: View, result: AnyResult) -> AnyResult:
    """Return the result of a list with the rows that the view shows, in its order; any other result as it is."""
    listing = find_listing(kind)
    rows = rows_of(listing, result.data)
    if listing is None or rows is None or not isinstance(result, QueryResult):
        return result
    shown = tuple(rows[index] for index in row_numbers(listing, view, rows))
    return replace(result, data=with_rows(listing, result.data, shown))


def row_numbers(listing: Listing, view: View, rows: Sequence[Any]) -> list[int]:
    """Return the numbers of the rows that the view shows, in its order."""
    conditions = _conditions(listing, view)
    numbers = [n for n, row in enumerate(rows) if all(_matches(condition, row) for condition in conditions)]
    for column, descending in reversed(_sort_keys(listing, view)):
        cells = {n: column.cell(rows[n]) for n in numbers}
        known = [n for n in numbers if cells[n] is not None]
        known.sort(key=lambda n: _sort_value(cells[n]), reverse=descending)
        numbers = known + [n for n in numbers if cells[n] is None]
    return numbers


def _shown_columns(listing: Listing, view: View) -> tuple[Column, ...]:
    """Return the columns of the table.

    Raises:
        click.UsageError: the list has no such column.
    """
    if view.columns:
        return tuple(_find_column(listing, key, "--columns") for key in view.columns)
    levels = ("default", "wide") if view.wide else ("default",)
    return tuple(column for column in listing.columns if column.level in levels)


def make_table(listing: Listing, view: View, rows: Sequence[Any]) -> Table:
    """Return the rows as a table."""
    columns = _shown_columns(listing, view)
    if not (view.columns or view.wide):
        columns = tuple(c for c in columns if not c.optional or any(c.cell(row) is not None for row in rows))
    return Table(
        tuple(column.header for column in columns),
        tuple(tuple(_cell_text(column, row) for column in columns) for row in rows),
        frozenset(column.header for column in columns if column.numeric),
        frozenset(column.header for column in columns if column.free_text),
        frozenset(column.header for column in columns if column.is_state),
    )


def _cell_text(column: Column, row: Any) -> str:
    """Return a cell as tables show it: `?` for an unknown number, `-` for none."""
    cell = column.cell(row)
    if column.text is not None:
        return column.text(row)
    if cell is None and column.numeric:
        return "?"
    return _plain_text(cell, ", ") or "-"


def csv_text(
    listing: Listing, view: View, hosts: Sequence[tuple[str, Sequence[Any]]], *, has_headers: bool, has_host: bool
) -> str:
    """Return the rows of each host as csv; without --columns, with every column of the list."""
    columns = _shown_columns(listing, view) if view.columns else listing.columns
    lines = [[*(["host"] if has_host else []), *(column.csv_key for column in columns)]] if has_headers else []
    for host, rows in hosts:
        front = [host] if has_host else []
        lines += [[*front, *(_plain_text(column.cell(row), ",") for column in columns)] for row in rows]
    return csv_file(lines, "\n")


def _plain_text(cell: Cell, separator: str) -> str:
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return separator.join(cell) if isinstance(cell, tuple) else "" if cell is None else str(cell)


def _find_column(listing: Listing, key: str, option: str) -> Column:
    """Return a column by its key.

    Raises:
        click.UsageError: the list has no such column.
    """
    prefix, dot, rest = key.partition(".")
    if dot and rest and prefix in listing.families:
        read = listing.families[prefix]
        return Column(key, key, lambda row: read(row, rest))
    for column in listing.columns:
        if key.lower() in (column.key, column.csv_key):
            return column
    keys = [*(column.key for column in listing.columns), *(f"{prefix}.KEY" for prefix in listing.families)]
    raise UsageErrorWithHint(
        f"{option}: {listing.noun} have no column '{key}'", f"the columns are {', '.join(keys)}", None
    )


def _sort_keys(listing: Listing, view: View) -> list[tuple[Column, bool]]:
    """Return the columns to sort by, each with whether the largest comes first: `-memory`, `memory:desc`."""
    keys = []
    for word in view.sort_by:
        key, _, order = word.removeprefix("-").partition(":")
        if order not in ("", "asc", "desc"):
            raise UsageErrorWithHint(
                f"--sort-by {word}: the order is asc or desc, not '{order}'", f"write {key}:desc, or {key}", None
            )
        keys.append((_find_column(listing, key, "--sort-by"), word.startswith("-") or order == "desc"))
    return keys


def _conditions(listing: Listing, view: View) -> list[_Condition]:
    conditions = []
    for word in (condition for text in view.filters for condition in split_list(text)):
        match = _CONDITION.fullmatch(word)
        if match is None:
            raise UsageErrorWithHint(
                f"--filter: '{word}' is not a condition",
                "write KEY=VALUE or KEY!=VALUE, as in --filter 'state=running,name=vdi-*'",
                None,
            )
        column = _find_column(listing, match["key"].strip(), "--filter")
        try:
            patterns = expand_braces(match["pattern"].strip().lower())
        except InvalidInput as error:
            raise UsageErrorWithHint(f"--filter: {error.message}", error.hint or "", None) from error
        conditions.append(_Condition(column, match["operator"] == "!=", patterns))
    return conditions


def _matches(condition: _Condition, row: Any) -> bool:
    """Say whether the row's value, one of several, or its text in the table matches."""
    cell = condition.column.cell(row)
    texts = list(cell) if isinstance(cell, tuple) else [_plain_text(cell, "")]
    if cell is not None and condition.column.text is not None:
        texts.append(condition.column.text(row))
    is_match = any(matches_glob(text.lower(), pattern) for text in texts or [""] for pattern in condition.patterns)
    return is_match is not condition.negated


def _sort_value(cell: Cell) -> Any:
    return cell.lower() if isinstance(cell, str) else cell


def _split(words: str | Sequence[str]) -> tuple[str, ...]:
    given = [words] if isinstance(words, str) else words
    return tuple(part.strip() for word in given for part in word.split(",") if part.strip())


def page(kind: str, result: AnyResult, view: View | None = None) -> Page:
    """Return the page of a command's result: of its data, for a change of the outcome with its steps.

    A list's table has the columns of the view; its own page adds what goes to stderr.
    """
    if isinstance(result.data, TargetsResult):
        return _targets_page(kind, result, result.data)
    listing = find_listing(kind)
    rows = rows_of(listing, result.data)
    if listing is not None and rows is not None:
        page = _list_page(kind, listing, result.data, rows, view or _DEFAULT_VIEW)
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


def _list_page(kind: str, listing: Listing, data: Any, rows: tuple[object, ...], view: View) -> Page:
    if listing.within is not None:
        return Page([*single_page(kind, QueryResult(data)).blocks, "", make_table(listing, view, rows)])
    if not rows and view.filters:
        return Page(stderr_lines=[f"nothing matches --filter {shlex.quote(','.join(view.filters))}"])
    if not rows and view.nothing is not None:
        return Page(stderr_lines=[view.nothing])
    make = how_shown(kind).page
    page = Page() if make is None else make(rows)
    return replace(page, blocks=[make_table(listing, view, rows)] if rows else [])


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
    if isinstance(data, vm_results.VmResult) and data.render_gpu is not None:
        blocks.append(f"  gpu   {drawn_line(data.render_gpu)}")
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
