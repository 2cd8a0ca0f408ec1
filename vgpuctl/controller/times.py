# SPDX-License-Identifier: Apache-2.0
"""Times in the answers of the controller's API."""

from __future__ import annotations

import datetime


def time_text(seconds: float | None) -> str | None:
    """Return a time as UTC, RFC 3339; None: never, or not known."""
    if seconds is None:
        return None
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
