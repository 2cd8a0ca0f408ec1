# SPDX-License-Identifier: Apache-2.0
"""JSON that comes from outside: a record in a domain, a file in /run, what another program prints."""

from __future__ import annotations

import json


def parsed(text: str | bytes) -> object:
    """Return what the JSON says; None when it is none, or nested too deeply to be meant."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value
