# SPDX-License-Identifier: Apache-2.0
"""Tables: aligned text in a pipe, rich's tables on a terminal. rich is imported only for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from vgpuctl.cli.streams import sanitize, write_err, write_out
from vgpuctl.errors import missing_library_error
from vgpuctl.value import Value

GAP = "  "


class Table(Value):
    """Rows under headers. `right_aligned` names the headers whose columns are numbers."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right_aligned: frozenset[str] = frozenset()


class Pairs(Value):
    """Names and values, one pair per line."""

    items: tuple[tuple[str, str], ...]


Block = Table | Pairs | str
"""What a page consists of."""


def render_plain(blocks: Sequence[Block]) -> str:
    """Return the page as text without colour or boxes: the same columns at every width."""
    return "".join(f"{_plain_block(block)}\n" for block in blocks)


def _plain_block(block: Block) -> str:
    if isinstance(block, str):
        return sanitize(block)
    if isinstance(block, Pairs):
        items = [(sanitize(name), sanitize(value)) for name, value in block.items]
        width = max((len(name) for name, _ in items), default=0)
        return "\n".join(f"{name + ':':<{width + 1}} {value}".rstrip() for name, value in items)
    rows = [block.headers, *(tuple(sanitize(cell).replace("\n", " ") for cell in row) for row in block.rows)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(block.headers))]
    return "\n".join(_plain_row(row, widths, block) for row in rows)


def _plain_row(row: tuple[str, ...], widths: list[int], table: Table) -> str:
    cells = [
        cell.rjust(width) if header in table.right_aligned else cell.ljust(width)
        for cell, width, header in zip(row, widths, table.headers, strict=True)
    ]
    return GAP.join(cells).rstrip()


def print_rich(blocks: Sequence[Block], stream: TextIO) -> None:
    """Print the page on a terminal; plain if rich is missing, because the result must be shown."""
    try:
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text
    except ImportError as exc:
        write_out(render_plain(blocks))
        missing = missing_library_error(exc)
        write_err(f"note: tables are plain: {missing}; {missing.hint if missing else ''}")
        return

    console = Console(file=stream, highlight=False, soft_wrap=True)
    for block in blocks:
        if isinstance(block, str):
            console.print(Text(sanitize(block)))
        elif isinstance(block, Pairs):
            grid = RichTable.grid(padding=(0, 2))
            for name, value in block.items:
                grid.add_row(Text(sanitize(name), style="bold"), Text(sanitize(value)))
            console.print(grid)
        else:
            rich_table = RichTable(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
            for header in block.headers:
                right = header in block.right_aligned
                rich_table.add_column(header, justify="right" if right else "left", overflow="fold")
            for row in block.rows:
                rich_table.add_row(*(Text(sanitize(cell)) for cell in row))
            console.print(rich_table, soft_wrap=False)
