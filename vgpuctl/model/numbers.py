# SPDX-License-Identifier: Apache-2.0
"""Parses numbers that the kernel, a driver or another program writes: the text may be anything.

`int` accepts Unicode digits and underscores, and raises for more than 4,300 digits; no device file contains such.
"""

from __future__ import annotations

import re

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
