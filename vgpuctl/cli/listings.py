# SPDX-License-Identifier: Apache-2.0
"""Lists: which columns a table has, which rows of it are shown and in which order, and the forms csv and name.

The module of a command defines the columns of its list once; tables, csv, --columns, --sort-by and --filter all use
this definition.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from vgpuctl.cli.command import how_shown
from vgpuctl.cli.shown import Cell, Column, Listing, Table
from vgpuctl.cli.usage import UsageErrorWithHint, list_commands
from vgpuctl.config.name_patterns import expand_braces, matches_glob, split_list
from vgpuctl.errors import InvalidInput
from vgpuctl.model.outcome import AnyResult, QueryResult
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.cli.settings import Settings

ROW_OUTPUTS = ("wide", "csv", "name")
_CONDITION = re.compile(r"(?P<key>[^=!]+)(?P<operator>!?=)(?P<pattern>.*)", re.DOTALL)


class View(Value):
    """What --columns, -o wide, --sort-by and --filter say. `nothing`: what is said of a list without rows."""

    columns: tuple[str, ...] = ()
    wide: bool = False
    sort_by: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()
    nothing: str | None = None


DEFAULT_VIEW = View()


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
    if listing is None or not isinstance(result, QueryResult) or not isinstance(result.data, tuple):
        return result
    return replace(result, data=tuple(result.data[index] for index in row_numbers(listing, view, result.data)))


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


def names_text(listing: Listing, rows: Sequence[Any]) -> str:
    """Return the name or address of each row on a line of its own."""
    return "".join(f"{listing.identity(row)}\n" for row in rows)


def csv_text(
    listing: Listing, view: View, hosts: Sequence[tuple[str, Sequence[Any]]], *, has_headers: bool, has_host: bool
) -> str:
    """Return the rows of each host as csv; without --columns, with every column of the list."""
    columns = _shown_columns(listing, view) if view.columns else listing.columns
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    if has_headers:
        writer.writerow([*(["host"] if has_host else []), *(column.csv_key for column in columns)])
    for host, rows in hosts:
        front = [host] if has_host else []
        writer.writerows([*front, *(_plain_text(column.cell(row), ",") for column in columns)] for row in rows)
    return buffer.getvalue()


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
