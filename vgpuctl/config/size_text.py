# SPDX-License-Identifier: Apache-2.0
"""Sizes as people write them: `8GiB` or `8G`, `512MiB`, `2TiB`, or a bare number.

All units are binary: `8G` is 8 GiB, as for virsh, qemu-img and lvcreate. `8GB` is 8,000,000,000 bytes to one tool and
8 GiB to another, so vgpuctl refuses it and shows the text to write instead of guessing. A bare number is MiB for memory
and GiB for a disk, as in virt-install. All sizes are counted in MiB, as the kernel, libvirt and the vGPU drivers do.
"""

from __future__ import annotations

import re

UNITS_MIB = {"MiB": 1, "GiB": 1024, "TiB": 1024 * 1024}
MAX_SIZE_MIB = 1024 * UNITS_MIB["TiB"]
SIZE_PATTERN = r"[0-9]{1,12}(\.[0-9]{1,6})? ?([MmGgTt]([Ii][Bb])?)?"
"""The form of a size, for JSON Schema and editors."""

_SIZE = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,6}))?\s?([A-Za-z]*)", re.ASCII)
_UNIT_BY_LOWERCASE = {text: unit for unit in UNITS_MIB for text in (unit.lower(), unit[0].lower())}


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
        if mib and mib % UNITS_MIB[unit] == 0:
            return f"{mib // UNITS_MIB[unit]}{unit}"
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
    parts, rest = divmod((int(whole) * scale + int(fraction or 0)) * UNITS_MIB[unit], scale)
    if rest:
        raise ValueError(f"'{text}' is not a whole number of MiB: write {max(parts, 1)}MiB")
    if parts == 0:
        raise ValueError(f"'{text}' is zero: write a size above zero, like {example}")
    if parts > MAX_SIZE_MIB:
        raise ValueError(f"'{text}' is more than {format_size(MAX_SIZE_MIB)}, which no host has")
    return parts
