# SPDX-License-Identifier: Apache-2.0
"""VM specs as text, for people and for `ensure-vm -f`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9._-]*|[1-9][0-9]*[KMGT]iB", re.ASCII)
_CONSTANTS = ("true", "false", "null", "on", "off", "yes", "no", "y", "n")


def render_spec(spec: Mapping[str, object]) -> str:
    """Return a VM spec as a YAML document with a line for each field, in their order.

    What is no plain word is in JSON, which YAML has as well: so no reader takes an address for a number.
    """
    return "".join(f"{key}: {_value(value)}\n" for key, value in spec.items())


def _value(value: object) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _CONSTANTS:
        return value
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value)
