# SPDX-License-Identifier: Apache-2.0
"""Several names in one word: ranges and lists in braces, `vdi-{001..100}` and `{a,b}-1`, and globs, `vdi-*`.

It imports nothing heavy: the command line asks it whether a word names one thing or several.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product

from vgpuctl.errors import InvalidInput

MAX_NAMES = 10_000
_GLOB_CHARACTERS = frozenset("*?[")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"([0-9]{1,9})\.\.([0-9]{1,9})", re.ASCII)
_NUMBERS = re.compile(r"([0-9]+)", re.ASCII)
_HINT = "write a range like 'vdi-{001..100}', a list like '{web,db}-1', or a glob like 'vdi-*', in quotes"


def is_glob(text: str) -> bool:
    """Return whether a word is a glob."""
    return not _GLOB_CHARACTERS.isdisjoint(text)


def is_pattern(text: str) -> bool:
    """Return whether a word may name several things: it is a glob, or it has braces."""
    return is_glob(text) or "{" in text or "}" in text


def expand_braces(text: str) -> tuple[str, ...]:
    """Return the words that ranges and lists in braces stand for, in order; a word without braces stands for itself.

    A range counts up or down. If one of its ends begins with 0, its numbers have as many digits as the longer end.

    Raises:
        InvalidInput: the braces are not a range or a list, or they stand for more than 10,000 words.
    """
    parts = _BRACES.split(text)
    if any("{" in part or "}" in part for part in parts):
        raise InvalidInput(f"'{text}': the braces do not match, or are nested", hint=_HINT, value=text)
    choices = [_alternatives(part, text) if number % 2 else (part,) for number, part in enumerate(parts)]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > MAX_NAMES:
        raise InvalidInput(f"'{text}' stands for {count} names; at most {MAX_NAMES} are allowed", value=text)
    return tuple("".join(words) for words in product(*choices))


def name_range(names: Sequence[str]) -> str | None:
    """Return the range that stands for exactly these names, in this order: `vdi-{001..100}`; None if there is none."""
    first, last = (_NUMBERS.split(names[0]), _NUMBERS.split(names[-1])) if names else ([], [])
    if len(first) < 3 or len(first) != len(last) or first[:-2] != last[:-2] or first[-1] != last[-1]:
        return None
    *stem, start, end = first
    word = f"{''.join(stem)}{{{start}..{last[-2]}}}{end}"
    return word if not is_pattern("".join(names)) and expand_braces(word) == tuple(names) else None


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return the sort key by which vdi-9 comes before vdi-10."""
    return tuple((0, int(part), part) if part.isdecimal() else (1, 0, part) for part in _NUMBERS.split(name) if part)


def _alternatives(inner: str, text: str) -> tuple[str, ...]:
    match = _RANGE.fullmatch(inner)
    if match is not None:
        first, last = int(match[1]), int(match[2])
        if abs(last - first) >= MAX_NAMES:
            raise InvalidInput(f"'{text}': the range {inner} is too long; at most {MAX_NAMES} names", value=text)
        padded = any(len(end) > 1 and end.startswith("0") for end in match.groups())
        width = max(map(len, match.groups())) if padded else 1
        step = 1 if first <= last else -1
        return tuple(f"{number:0{width}}" for number in range(first, last + step, step))
    if "," in inner:
        return tuple(inner.split(","))
    raise InvalidInput(f"'{text}': {{{inner}}} is neither a range nor a list", hint=_HINT, value=text)
