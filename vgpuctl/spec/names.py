# SPDX-License-Identifier: Apache-2.0
"""Names with a running number: `vdi-{:03}` stands for vdi-001, vdi-002 and so on."""

from __future__ import annotations

import re

from vgpuctl.errors import InvalidInput
from vgpuctl.spec import rules

EXAMPLE = "vdi-{:03}"
_PLACEHOLDER = re.compile(r"\{(?::0([1-9]))?\}", re.ASCII)


def pattern(value: object) -> str:
    """Check a VM's name with exactly one placeholder: `{}`, or `{:0K}` for at least K digits (1 to 9).

    Raises:
        ValueError: it is not one, or the names that it stands for are none.
    """
    text = rules.as_text(value)
    rest, found = _PLACEHOLDER.subn("", text)
    if found != 1 or "{" in rest or "}" in rest:
        raise ValueError(
            f"'{text}' names one VM, and several are asked for: "
            f"one {{}} or {{:0K}} must stand for the number, as in {EXAMPLE}"
        )
    rules.name(_filled(text, 1))
    return text


def numbered(text: str | None, count: int) -> tuple[str, ...]:
    """Return the names of `count` VMs, numbered from 1.

    Raises:
        InvalidInput: the pattern lacks its placeholder, or a name that it gives is not one.
    """
    try:
        if text is None:
            raise ValueError(f"it is missing: with --count the name is a pattern, as in {EXAMPLE}")
        checked = pattern(text)
        return tuple(rules.name(_filled(checked, number)) for number in range(1, count + 1))
    except ValueError as error:
        raise InvalidInput(
            f"NAME: {error}",
            hint=f"vgpuctl create-vm '{EXAMPLE}' --count {count} makes {_filled(EXAMPLE, 1)} and so on",
            problems=[{"option": "NAME", "problem": str(error)}],
        ) from error


def _filled(text: str, number: int) -> str:
    def digits(found: re.Match[str]) -> str:
        return f"{number:0{found[1] or 1}}"

    return _PLACEHOLDER.sub(digits, text)
