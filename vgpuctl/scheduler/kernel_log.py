# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's driver writes to the kernel log about a GPU's scheduler when it takes it.

Up to 580 `NVRM: GPU at 0000:41:00.0 has software scheduler ENABLED with policy FIXED_SHARE.`; from 590 on it ends
` on GR`. Best effort is ENABLED or DISABLED, by version. What NVML sets later is not written there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from vgpuctl.model.address import normal_pci
from vgpuctl.model.scheduler import Policy, SchedulerState

WORDS = "has software scheduler"
_LINE = re.compile(r"GPU at ([0-9a-fA-F:.]+) has software scheduler \w+ with policy (\w+?)(?: on (\w+))?\.?\s*$")
_SOURCE = "kernel log"


def logged(lines: Iterable[str], address: str) -> SchedulerState | None:
    """Return what the last line about a GPU's graphics engine says, None when there is none."""
    state: SchedulerState | None = None
    for line in lines:
        found = _LINE.search(line)
        if found is None or normal_pci(found.group(1)) != address or found.group(3) not in (None, "GR"):
            continue
        word = found.group(2).lower()
        state = SchedulerState(Policy(word) if word in set(Policy) else None, source=_SOURCE)
    return state
