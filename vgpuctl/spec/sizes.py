# SPDX-License-Identifier: Apache-2.0
"""Sizes as people write them: `8GiB`, `512MiB`, `2TiB`, or a bare number.

Only binary units are taken. `8GB` and `8G` mean 8,000,000,000 bytes to one tool and 8 GiB to another, so
they are refused with the text to write instead of being guessed. A bare number is MiB for memory and GiB
for a disk, as virt-install has it. Everything is counted in MiB: the kernel, libvirt and the vGPU drivers
do too.
"""

from __future__ import annotations

import re

UNITS_MIB = {"MiB": 1, "GiB": 1024, "TiB": 1024 * 1024}
LARGEST_MIB = 1024 * UNITS_MIB["TiB"]
SIZE_PATTERN = r"[0-9]{1,12}(\.[0-9]{1,6})? ?([Mm][Ii][Bb]|[Gg][Ii][Bb]|[Tt][Ii][Bb])?"
"""What a size looks like, for JSON Schema and editors."""

_SIZE = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,6}))?\s?([A-Za-z]*)", re.ASCII)
_BY_LOWER = {unit.lower(): unit for unit in UNITS_MIB}
_MEANT = {"k": "MiB", "m": "MiB", "g": "GiB", "t": "TiB"}


def memory_mib(text: str) -> int:
    """Return a memory size in MiB; a bare number is MiB.

    Raises:
        ValueError: `text` is no size; the message says what to write.
    """
    return _mib(text, "MiB", "8GiB")


def disk_mib(text: str) -> int:
    """Return a disk size in MiB; a bare number is GiB.

    Raises:
        ValueError: `text` is no size; the message says what to write.
    """
    return _mib(text, "GiB", "100GiB")


def render_size(mib: int) -> str:
    """Return the shortest whole spelling, which reads back as the same number: 8192 -> `8GiB`."""
    for unit in ("TiB", "GiB"):
        if mib and mib % UNITS_MIB[unit] == 0:
            return f"{mib // UNITS_MIB[unit]}{unit}"
    return f"{mib}MiB"


def _mib(text: str, bare_unit: str, example: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"'{text}' is not a size: write a number with MiB, GiB or TiB, like {example}")
    whole, fraction, typed_unit = match.groups()
    unit = _BY_LOWER.get(typed_unit.lower()) if typed_unit else bare_unit
    number = f"{int(whole)}.{fraction}" if fraction else str(int(whole))
    if unit is None:
        meant = _MEANT.get(typed_unit[0].lower(), "GiB")
        raise ValueError(
            f"'{text}' has the unit {typed_unit}, which tools read in different ways: write {number}{meant} "
            "(MiB, GiB and TiB are taken)"
        )
    scale = int("1" + "0" * len(fraction or ""))
    parts, rest = divmod((int(whole) * scale + int(fraction or 0)) * UNITS_MIB[unit], scale)
    if rest:
        raise ValueError(f"'{text}' is not a whole number of MiB: write {max(parts, 1)}MiB")
    if parts == 0:
        raise ValueError(f"'{text}' is nothing: write a size above zero, like {example}")
    if parts > LARGEST_MIB:
        raise ValueError(f"'{text}' is more than {render_size(LARGEST_MIB)}, which no host has")
    return parts
