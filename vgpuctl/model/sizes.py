# SPDX-License-Identifier: Apache-2.0
"""Formats sizes for people, the same everywhere: `20 GiB`, or `1536 MiB` if it is not a whole number of GiB."""

from __future__ import annotations


def format_mib(mib: int) -> str:
    """Return a size in MiB for people."""
    return f"{mib // 1024} GiB" if mib and mib % 1024 == 0 else f"{mib} MiB"


def format_bytes(size: int) -> str:
    """Return a size in bytes for people, rounded down to MiB; below 1 MiB in KiB, rounded up."""
    return format_mib(size >> 20) if size >> 20 or not size else f"{-(-size // 1024)} KiB"
