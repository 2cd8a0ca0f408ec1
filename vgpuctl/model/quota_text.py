# SPDX-License-Identifier: Apache-2.0
"""How much of a quota somebody uses, for people."""

from __future__ import annotations

_NOUNS = {"desktops": "desktops", "running": "running desktops", "gpu_mib": "of GPU memory"}


def limit_text(name: str, used: int, most: int) -> str:
    """Return how much of a limit is used, for people: `1 of 2 desktops`."""
    if name != "gpu_mib":
        return f"{used} of {most} {_NOUNS[name]}"
    if used % 1024 == most % 1024 == 0:
        return f"{used // 1024} of {most // 1024} GiB {_NOUNS[name]}"
    return f"{used} of {most} MiB {_NOUNS[name]}"
