# SPDX-License-Identifier: Apache-2.0
"""Several names in one word: ranges and lists in braces, `vdi-{001..100}` and `{a,b}-1`, and globs, `vdi-*`.

Every place that accepts a pattern of names follows these rules: VMs, vGPUs, GPUs, --filter, --host ssh:// and
`reserved_for:` of host.yaml. In a glob, brackets are a set of characters. A range or a list in brackets, as Ansible's
inventories have it, is refused: as a set, `vdi-[10:12]` would be vdi-1 and vdi-2.

It imports nothing heavy: the command line asks it whether a word names one thing or several.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import product

from vgpuctl.errors import InvalidInput

MAX_NAMES = 10_000
_GLOB_CHARACTERS = frozenset("*?[")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"([0-9]{1,9})\.\.([0-9]{1,9})", re.ASCII)
_COMMA_OUTSIDE_BRACES = re.compile(r",(?![^{}]*\})")
_NUMBERS = re.compile(r"([0-9]+)", re.ASCII)
_BRACKETS = re.compile(r"\[(!?\]?[^\]]*)\]")
_NOT_A_SET = re.compile(r"[:,]|\.\.|[0-9]{2}-[0-9]|[0-9]-[0-9]{2}", re.ASCII)
_NUMBERS_IN_BRACKETS = re.compile(r"([0-9]{1,9})(?::|-|\.\.)([0-9]{1,9})(?::([0-9]{1,4}))?", re.ASCII)
_LETTERS_IN_BRACKETS = re.compile(r"([a-z])(?::|\.\.)([a-z])|([A-Z])(?::|\.\.)([A-Z])", re.ASCII)
_LISTED_IN_HINT = 26
PATTERN_HINT = "write a range like 'vdi-{001..100}', a list like '{web,db}-1', or a glob like 'vdi-*', in quotes"


def is_glob(text: str) -> bool:
    """Return whether a word is a glob."""
    return not _GLOB_CHARACTERS.isdisjoint(text)


def is_pattern(text: str) -> bool:
    """Return whether a word may name several things: it is a glob, or it has braces."""
    return is_glob(text) or "{" in text or "}" in text


def matches_glob(name: str, glob: str) -> bool:
    """Return whether a name matches one word of `expand_braces`."""
    return fnmatchcase(name, glob)


def split_list(text: str) -> tuple[str, ...]:
    """Return the patterns of a list with commas; those in braces belong to their pattern."""
    return tuple(part.strip() for part in _COMMA_OUTSIDE_BRACES.split(text) if part.strip())


def expand_braces(text: str, *, has_sets: bool = True) -> tuple[str, ...]:
    """Return the words that ranges and lists in braces stand for, in order; a word without braces stands for itself.

    A word may be a glob: see `matches_glob`. `has_sets`: brackets are sets of characters, so that a range or a list in
    them is a mistake.

    A range counts up or down. If one of its ends begins with 0, its numbers have as many digits as the longer end.

    Raises:
        InvalidInput: the braces are not a range or a list, or they stand for more than 10,000 words; or there is a
            range or a list in brackets.
    """
    misread = _range_in_brackets(text) if has_sets else None
    if misread is not None:
        raise InvalidInput(
            f"'{text}': {misread} is a set of characters in a pattern, not a range or a list",
            hint=_braces_hint(text),
            value=text,
        )
    parts = _BRACES.split(text)
    if any("{" in part or "}" in part for part in parts):
        raise InvalidInput(f"'{text}': the braces do not match, or are nested", hint=PATTERN_HINT, value=text)
    choices: list[tuple[str, ...]] = []
    count = 1
    for number, part in enumerate(parts):
        choices.append(_alternatives(part, text) if number % 2 else (part,))
        count *= len(choices[-1])
        if count > MAX_NAMES:
            more = "at least " if number + 1 < len(parts) - 1 else ""
            raise InvalidInput(f"'{text}' stands for {more}{count} names; at most {MAX_NAMES} are allowed", value=text)
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


def _braces_hint(text: str) -> str:
    """Return what to write in place of ranges and lists in brackets."""
    rewritten = _BRACKETS.sub(lambda match: _braces_for(match[1]) or match[0], text)
    return f"write '{rewritten}'" if rewritten != text and _range_in_brackets(rewritten) is None else PATTERN_HINT


def _range_in_brackets(text: str) -> str | None:
    """Return the first brackets that are probably meant as a range or a list; None if there are none."""
    return next((match[0] for match in _BRACKETS.finditer(text) if _NOT_A_SET.search(match[1])), None)


def _braces_for(inner: str) -> str | None:
    """Return the braces that mean what brackets were meant for; None if that is not known."""
    if not _NOT_A_SET.search(inner) or inner.startswith("!"):
        return None
    numbers = _NUMBERS_IN_BRACKETS.fullmatch(inner)
    if numbers is not None:
        first, last, step = numbers[1], numbers[2], int(numbers[3] or 1)
        if step == 1:
            return f"{{{first}..{last}}}"
        listed = [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1, step)] if step else []
        return f"{{{','.join(listed)}}}" if 1 < len(listed) <= _LISTED_IN_HINT else None
    letters = _LETTERS_IN_BRACKETS.fullmatch(inner)
    if letters is not None:
        begin, end = (letter for letter in letters.groups() if letter is not None)
        listed = [chr(code) for code in range(ord(begin), ord(end) + 1)]
        return f"{{{','.join(listed)}}}" if len(listed) > 1 else None
    return f"{{{inner}}}" if "," in inner and not re.search(r"[:{}\[!]|\.\.", inner) else None


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
    raise InvalidInput(f"'{text}': {{{inner}}} is neither a range nor a list", hint=PATTERN_HINT, value=text)
