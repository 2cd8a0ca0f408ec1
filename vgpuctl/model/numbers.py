# SPDX-License-Identifier: Apache-2.0
"""Parses numbers, lists of ranges and sizes that people or other programs write, and formats them for people.

A text from outside may be anything. `int` accepts Unicode digits and underscores, and raises for more than 4,300
digits; no device file contains such. Sizes look the same everywhere: `20 GiB`, or `1536 MiB` if it is not a whole
number of GiB.

Sizes as people write them are `8GiB` or `8G`, `512MiB`, `2TiB`, or a bare number. All units are binary: `8G` is 8 GiB,
as for virsh, qemu-img and lvcreate. `8GB` is 8,000,000,000 bytes to one tool and 8 GiB to another, so vgpuctl refuses
it and shows the text to write instead of guessing. A bare number is MiB for memory and GiB for a disk, as in
virt-install. All sizes are counted in MiB, as the kernel, libvirt and the vGPU drivers do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime

_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]{1,16}|[0-9]{1,18})", re.ASCII)

_VERSION = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9}){0,3}", re.ASCII)
_RANGE = re.compile(r"(?P<without>\^)?(?P<first>[0-9]{1,5})(-(?P<last>[0-9]{1,5}))?", re.ASCII)
_UNITS_MIB = {"MiB": 1, "GiB": 1024, "TiB": 1024 * 1024}
MAX_SIZE_MIB = 1024 * _UNITS_MIB["TiB"]
SIZE_PATTERN = r"[0-9]{1,12}(\.[0-9]{1,6})? ?([MmGgTt]([Ii][Bb])?)?"
"""The form of a size, for JSON Schema and editors."""
_SIZE = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,6}))?\s?([A-Za-z]*)", re.ASCII)
_UNIT_BY_LOWERCASE = {text: unit for unit in _UNITS_MIB for text in (unit.lower(), unit[0].lower())}


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


def format_version(version: int) -> str:
    """Return libvirt's form of a version as text: 10002000 is 10.2.0."""
    return f"{version // 1_000_000}.{version // 1000 % 1000}.{version % 1000}"


def parse_version(text: str | None) -> tuple[int, ...] | None:
    """Return the numbers at the beginning of a version: `6.8.0-45-generic` is (6, 8, 0); None if it has none."""
    match = _VERSION.match(text or "")
    return None if match is None else tuple(int(part) for part in match[0].split("."))


def count_text(count: int, noun: str) -> str:
    """Return a number with its noun: `1 vGPU`, `2 vGPUs`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_mib(mib: int) -> str:
    """Return a size in MiB for people."""
    return f"{mib // 1024} GiB" if mib and mib % 1024 == 0 else f"{mib} MiB"


def format_bytes(size: int) -> str:
    """Return a size in bytes for people, rounded down to MiB; below 1 MiB in KiB, rounded up."""
    return format_mib(size >> 20) if size >> 20 or not size else f"{-(-size // 1024)} KiB"


def format_milliseconds(milliseconds: int) -> str:
    """Return a duration for people: 0.6 s, 17 min."""
    seconds = milliseconds / 1000
    if seconds < 0.1:
        return f"{seconds:g} s"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def format_utc(seconds: int) -> str:
    """Return a time, in seconds since 1970, as results show it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


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


def parse_memory_size(text: str) -> int:
    """Return a memory size in MiB; a bare number is MiB.

    Raises:
        ValueError: `text` is no size; the message says what to write.
    """
    return _parse_size(text, "MiB", "8GiB")


def parse_disk_size(text: str) -> int:
    """Return a disk size in MiB; a bare number is GiB.

    Raises:
        ValueError: `text` is no size; the message says what to write.
    """
    return _parse_size(text, "GiB", "100GiB")


def format_size(mib: int) -> str:
    """Return the shortest whole spelling, which reads back as the same number: 8192 -> `8GiB`."""
    for unit in ("TiB", "GiB"):
        if mib and mib % _UNITS_MIB[unit] == 0:
            return f"{mib // _UNITS_MIB[unit]}{unit}"
    return f"{mib}MiB"


def _parse_size(text: str, bare_unit: str, example: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"'{text}' is not a size: write a number with MiB, GiB or TiB, like {example}")
    whole, fraction, typed_unit = match.groups()
    unit = _UNIT_BY_LOWERCASE.get(typed_unit.lower()) if typed_unit else bare_unit
    number = f"{int(whole)}.{fraction}" if fraction else str(int(whole))
    if unit is None:
        intended_unit = {"k": "MiB", **_UNIT_BY_LOWERCASE}.get(typed_unit[0].lower(), "GiB")
        raise ValueError(
            f"'{text}' has the unit {typed_unit}, which is ambiguous: write {number}{intended_unit} (MiB, GiB or TiB)"
        )
    scale = int("1" + "0" * len(fraction or ""))
    parts, rest = divmod((int(whole) * scale + int(fraction or 0)) * _UNITS_MIB[unit], scale)
    if rest:
        raise ValueError(f"'{text}' is not a whole number of MiB: write {max(parts, 1)}MiB")
    if parts == 0:
        raise ValueError(f"'{text}' is zero: write a size above zero, like {example}")
    if parts > MAX_SIZE_MIB:
        raise ValueError(f"'{text}' is more than {format_size(MAX_SIZE_MIB)}, which no host has")
    return parts
