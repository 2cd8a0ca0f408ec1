# SPDX-License-Identifier: Apache-2.0
"""Parts of the texts that makers' programs print. Whatever is not of the expected form is unknown."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from vgpuctl.model.names import normalize_pci
from vgpuctl.model.usage import MAX_VALUE, EngineUse, GpuUse

_AMOUNT = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*([^0-9\s]*)", re.ASCII)
_CELSIUS = re.compile(r"(?<![0-9.])([0-9]{1,3})\s*(?:C\b|\u2103)", re.ASCII)
_WATTS = re.compile(r"([0-9]{1,5}(?:\.[0-9]{1,3})?)\s*W\s*/\s*([0-9]{1,5}(?:\.[0-9]{1,3})?)?", re.ASCII)
_MEMORY = re.compile(r"(?<![0-9.])([0-9]{1,9})\s*(?:MiB)?\s*/\s*([0-9]{1,9})\s*MiB", re.ASCII)
_PERCENT = re.compile(r"(?<![0-9.])([0-9]{1,3}(?:\.[0-9]{1,3})?)\s*%", re.ASCII)

_MAX_WORD, _MAX_CELL = 100, 200
"""Of characters. Patterns that allow spaces take long for a text that is much longer than a cell of a table."""


def amount(text: object, unit: str = "") -> float | None:
    """Return the number of a text such as `98304 MiB` if it has this unit; None for any other."""
    match = _AMOUNT.fullmatch(_short(str(text).strip()))
    return float(match[1]) if match is not None and match[2] == unit else None


def mib_in_bytes(mib: float | None) -> int | None:
    """Return MiB as bytes."""
    return in_bytes(mib, 1 << 20)


def in_bytes(size: float | None, unit: int) -> int | None:
    """Return a size in units of so many bytes as bytes; None for what no card can have."""
    return None if size is None or number(size * unit) is None else int(size * unit)


def ratio(percent: float | None) -> float | None:
    """Return a percentage as a ratio; None for what is none."""
    return percent / 100 if percent is not None and 0 <= percent <= 100 else None


def word(value: object) -> str | None:
    """Return a name or number that a card has; None if it could not be shown as it is."""
    return value if isinstance(value, str) and value.isprintable() and len(value) <= _MAX_WORD else None


def by_sensor(**celsius: float | None) -> Mapping[str, float]:
    """Return the temperatures that are known, by sensor."""
    return {name: value for name, value in celsius.items() if value is not None}


def table_rows(text: str) -> list[list[str]]:
    """Return the cells of each row of a table that is drawn with `|`; a cell that is too long is empty."""
    rows = [line.strip() for line in text.splitlines()]
    return [[_short(cell.strip()) for cell in row.strip("|").split("|")] for row in rows if row.startswith("|")]


def _short(text: str) -> str:
    return text if len(text) <= _MAX_CELL else ""


def read_card_table(text: str, source: str, *, utilization: tuple[int, int]) -> tuple[GpuUse, ...]:
    """Read a table as nvidia-smi's: a card has two rows, and its PCI address is the second cell of the first one.

    `utilization`: the row and the cell whose first percentage says how busy the cores are.
    """
    rows = table_rows(text)
    uses: list[GpuUse] = []
    for first, second in itertools.pairwise(rows):
        address = normalize_pci(first[1]) if len(first) > 1 else None
        row, cell = utilization
        if address is None or len(second) < 2 or len((first, second)[row]) <= cell:
            continue
        watts, memory, celsius = _WATTS.search(second[0]), _MEMORY.search(second[1]), _CELSIUS.search(second[0])
        busy = _PERCENT.search((first, second)[row][cell])
        uses.append(
            GpuUse(
                address,
                source,
                memory_size_bytes=None if memory is None else int(memory[2]) << 20,
                memory_used_bytes=None if memory is None else int(memory[1]) << 20,
                engines=EngineUse(sm=None if busy is None else ratio(float(busy[1]))),
                power_watts=None if watts is None else float(watts[1]),
                power_limit_watts=None if watts is None or watts[2] is None else float(watts[2]),
                temperatures=by_sensor(gpu=None if celsius is None else float(celsius[1])),
            )
        )
    return tuple(uses)


def read_blocks(text: str, card: re.Pattern[str]) -> Iterator[tuple[str, dict[tuple[str, str], str]]]:
    """Yield each card of a long listing: the first group of its line, and its values by the heading above and the key.

    Of a key twice under one heading the first counts.
    """
    name, heading = "", ""
    values: dict[tuple[str, str], str] = {}
    for line in text.splitlines():
        key, colon, value = line.strip().partition(" : ")
        match = card.fullmatch(line.strip())
        if match is not None:
            if name:
                yield name, values
            name, heading, values = match[1], "", {}
        elif not colon:
            heading = key
        else:
            values.setdefault((heading, key.strip()), value.strip())
    if name:
        yield name, values


def quantity(document: object, *path: str, unit: str) -> float | None:
    """Return the number of `{"value": 140, "unit": "W"}` at a path of a document; None for another form."""
    pair = at_path(document, *path)
    return number(at_path(pair, "value")) if at_path(pair, "unit") == unit else None


def number(value: object) -> float | None:
    """Return a number of a JSON document; None for anything else, and for what no card can have."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value < MAX_VALUE else None


def items(document: object, *path: str) -> list[Any]:
    """Return the list at a path of a JSON document; an empty one for anything else."""
    value = at_path(document, *path)
    return value if isinstance(value, list) else []


def at_path(document: object, *path: str) -> Any:
    """Return what a JSON document has at a path; spaces around its keys do not count. None if it has nothing there."""
    for name in path:
        if not isinstance(document, dict):
            return None
        document = next((value for key, value in document.items() if str(key).strip() == name), None)
    return document
