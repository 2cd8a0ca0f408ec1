# SPDX-License-Identifier: Apache-2.0
"""JSON from outside: a record in a domain, a file in /run, another program's output."""

from __future__ import annotations


def parse_json(text: str | bytes) -> object:
    """Return the parsed JSON; None when the text is not JSON or is nested too deeply."""
    import json  # loads slowly, and completion of options reads none

    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value
