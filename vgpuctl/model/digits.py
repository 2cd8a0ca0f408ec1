# SPDX-License-Identifier: Apache-2.0
"""Numbers as the kernel, a driver or another program writes them: text that may be anything.

`int` takes Unicode's digits and underscores, and raises for more than 4,300 digits; no file of a device has such.
"""

from __future__ import annotations

import re

_WHOLE = re.compile(r"-?(?:0[xX][0-9a-fA-F]{1,16}|[0-9]{1,18})", re.ASCII)


def whole(text: str) -> int | None:
    """Return a whole number, decimal or with 0x in front; None when the text is none of at most 18 digits."""
    shown = text.strip()
    if _WHOLE.fullmatch(shown) is None:
        return None
    return int(shown, 16 if "x" in shown or "X" in shown else 10)


def meminfo_mib(text: str, name: str) -> int | None:
    """Return a line of /proc/meminfo in MiB, whose "kB" are KiB (kernel, proc_pid(5)); None when it is not there."""
    found = re.search(rf"^{name}:\s*([0-9]{{1,18}}) kB", text, re.MULTILINE)
    return int(found.group(1)) // 1024 if found else None
