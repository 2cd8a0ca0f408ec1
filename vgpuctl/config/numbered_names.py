# SPDX-License-Identifier: Apache-2.0
"""Names with a running number: `vdi-{:03}` stands for vdi-001, vdi-002 and so on."""

from __future__ import annotations

import re

from vgpuctl.config import rules
from vgpuctl.errors import InvalidInput

EXAMPLE = "vdi-{:03}"
_PLACEHOLDER = re.compile(r"\{(?::0([1-9]))?\}", re.ASCII)


def check_pattern(value: object) -> str:
    """Check a VM's name with exactly one placeholder: `{}`, or `{:0K}` for at least K digits (1 to 9).

    Raises:
        ValueError: it is not a pattern, or its names are not valid.
    """
    text = rules.as_text(value)
    rest, placeholder_count = _PLACEHOLDER.subn("", text)
    if placeholder_count != 1 or "{" in rest or "}" in rest:
        raise ValueError(
            f"'{text}' names one VM, and several are asked for: "
            f"one {{}} or {{:0K}} must stand for the number, as in {EXAMPLE}"
        )
    rules.name(_fill_number(text, 1))
    return text


def expand_names(pattern: str | None, count: int) -> tuple[str, ...]:
    """Return the names of `count` VMs, numbered from 1.

    Raises:
        InvalidInput: the pattern lacks its placeholder, or one of its names is not valid.
    """
    try:
        if pattern is None:
            raise ValueError(f"it is missing: with --count the name is a pattern, as in {EXAMPLE}")
        checked = check_pattern(pattern)
        return tuple(rules.name(_fill_number(checked, number)) for number in range(1, count + 1))
    except ValueError as error:
        raise InvalidInput(
            f"NAME: {error}",
            hint=f"vgpuctl create-vm '{EXAMPLE}' --count {count} makes {_fill_number(EXAMPLE, 1)} and so on",
            problems=[{"option": "NAME", "problem": str(error)}],
        ) from error


def _fill_number(text: str, number: int) -> str:
    def digits(match: re.Match[str]) -> str:
        return f"{number:0{match[1] or 1}}"

    return _PLACEHOLDER.sub(digits, text)
