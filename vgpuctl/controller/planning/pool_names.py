# SPDX-License-Identifier: Apache-2.0
"""The names of a pool's desktops: `office-{:03}` is office-001, office-002 and so on; `{}` has no zeros before."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from vgpuctl.config.vm_spec import check_pattern

_PLACEHOLDER = re.compile(r"\{(?::0([1-9]))?\}", re.ASCII)


def parts_of(pattern: str) -> tuple[str, int, str]:
    """Return what is before the number, how many digits it has at least, and what is after it.

    Raises:
        ValueError: it is no pattern of names.
    """
    check_pattern(pattern)
    match = _PLACEHOLDER.search(pattern)
    assert match is not None
    return pattern[: match.start()], int(match[1] or 1), pattern[match.end() :]


def names_overlap(one: str, other: str) -> bool:
    """Return whether a name can be of both patterns; where that is not plain, it can."""
    (before, _, after), (other_before, _, other_after) = parts_of(one), parts_of(other)
    begin = (before, other_before) if len(before) <= len(other_before) else (other_before, before)
    end = (after, other_after) if len(after) <= len(other_after) else (other_after, after)
    fits_begin = (begin[1].startswith(begin[0]) and begin[1][len(begin[0]) :].isdigit()) or begin[0] == begin[1]
    fits_end = (end[1].endswith(end[0]) and end[1][: len(end[1]) - len(end[0])].isdigit()) or end[0] == end[1]
    return fits_begin and fits_end


def free_names(pattern: str, taken: Collection[str]) -> Iterator[str]:
    """Yield the names of a pattern that are not taken, the lowest number first."""
    before, digits, after = parts_of(pattern)
    number = 0
    while True:
        number += 1
        name = f"{before}{number:0{digits}}{after}"
        if name not in taken:
            yield name
