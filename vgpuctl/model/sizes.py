# SPDX-License-Identifier: Apache-2.0
"""Sizes as people read them, in one form everywhere: `20 GiB`, and `1536 MiB` where it is not a whole number of GiB."""

from __future__ import annotations


def mib_text(mib: int) -> str:
    """Return a size in MiB for people."""
    return f"{mib // 1024} GiB" if mib and mib % 1024 == 0 else f"{mib} MiB"


def bytes_text(size: int) -> str:
    """Return a size in bytes for people, rounded down; what is less than a MiB is in KiB, rounded up."""
    return mib_text(size >> 20) if size >> 20 or not size else f"{-(-size // 1024)} KiB"
