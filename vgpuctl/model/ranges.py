# SPDX-License-Identifier: Apache-2.0
"""Lists of CPUs and NUMA nodes as the kernel and libvirt write them: `0-3,8` and, in libvirt's XML only, `0-7,^5`."""

from __future__ import annotations

import re
from collections.abc import Iterable

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
