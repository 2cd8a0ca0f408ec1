# SPDX-License-Identifier: Apache-2.0
"""Parses numbers and lists of ranges that the kernel, a driver or another program writes, and formats both for people.

A text from outside may be anything. `int` accepts Unicode digits and underscores, and raises for more than 4,300
digits; no device file contains such. Sizes look the same everywhere: `20 GiB`, or `1536 MiB` if it is not a whole
number of GiB.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]{1,16}|[0-9]{1,18})", re.ASCII)


def parse_integer(text: str) -> int | None:
    """Return an integer, decimal with up to 18 digits or hexadecimal with 0x; None for any other text."""
    stripped = text.strip()
    if _INTEGER.fullmatch(stripped) is None:
        return None
    return int(stripped, 16 if "x" in stripped or "X" in stripped else 10)


def parse_meminfo_mib(text: str, name: str) -> int | None:
    """Return a line of /proc/meminfo in MiB; its "kB" are KiB (kernel, proc_pid(5)). None when the line is missing."""
    match = re.search(rf"^{name}:\s*([0-9]{{1,18}}) kB", text, re.MULTILINE)
    return int(match.group(1)) // 1024 if match else None


def count_text(count: int, noun: str) -> str:
    """Return a number with its noun: `1 vGPU`, `2 vGPUs`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_mib(mib: int) -> str:
    """Return a size in MiB for people."""
    return f"{mib // 1024} GiB" if mib and mib % 1024 == 0 else f"{mib} MiB"


def format_bytes(size: int) -> str:
    """Return a size in bytes for people, rounded down to MiB; below 1 MiB in KiB, rounded up."""
    return format_mib(size >> 20) if size >> 20 or not size else f"{-(-size // 1024)} KiB"


_RANGE = re.compile(r"(?P<without>\^)?(?P<first>[0-9]{1,5})(-(?P<last>[0-9]{1,5}))?", re.ASCII)


def parse_ranges(text: str, limit: int) -> frozenset[int]:
    """Return the numbers below `limit` that a list names; a part that is no range names nothing."""
    numbers: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is not None:
            first, last = int(match["first"]), int(match["last"] or match["first"])
            span = set(range(first, min(last, limit - 1) + 1))
            numbers = numbers - span if match["without"] else numbers | span
    return frozenset(numbers)


def format_ranges(numbers: Iterable[int]) -> str:
    """Return numbers in their shortest form: `0-3,8`; empty for none."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
