# SPDX-License-Identifier: Apache-2.0
"""VM specs made from something else: their names, and their text for people and for `ensure-vm -f`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

_PLAIN = re.compile(r"/?[A-Za-z][A-Za-z0-9._/-]*|[1-9][0-9]*[KMGT]iB", re.ASCII)
_CONSTANTS = ("true", "false", "null", "on", "off", "yes", "no", "y", "n")
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+", re.ASCII)
_MAX_NAME = 58
"""So that the numbers of equal names and of many VMs still fit into the 63 characters of a VM's name."""


def choose_vm_name(texts: Iterable[str], taken: set[str], *, suffix: str = "") -> str:
    """Return a name that vgpuctl accepts, from the first text with a letter or digit; it is added to `taken`.

    Where another VM has it already, it gets a number. `suffix`: what it ends with, `-{}` for many VMs.
    """
    limit = _MAX_NAME - len(suffix)
    bases = (_NO_NAME.sub("-", text).strip("-._")[:limit].rstrip("-._") for text in texts)
    base = next(filter(None, bases), "vm")
    number, name = 1, f"{base}{suffix}"
    while name in taken:
        number += 1
        name = f"{base}-{number}{suffix}"
    taken.add(name)
    return name


def render_spec(spec: Mapping[str, object]) -> str:
    """Return a VM spec as a YAML document with a line for each field, in their order.

    What is no plain word is in JSON, which YAML has as well: so no reader takes an address for a number.
    """
    return "".join(f"{key}: {_value(value)}\n" for key, value in spec.items())


def comment(text: str) -> str:
    """Return a line of comment, which cannot end before the text does: that may be from anywhere."""
    return f"# {in_one_line(text)}\n"


def in_one_line(text: str) -> str:
    """Return a text with `?` for each character that is not printable."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _value(value: object) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _CONSTANTS:
        return value
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_value(key)}: {_value(item)}' for key, item in value.items())}}}"
    return json.dumps(value)
