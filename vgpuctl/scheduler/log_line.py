# SPDX-License-Identifier: Apache-2.0
"""The line that NVIDIA's driver writes to the kernel log when it applies a GPU's scheduler.

Up to 580 `NVRM: GPU at 0000:41:00.0 has software scheduler ENABLED with policy FIXED_SHARE.`; from 590 on it ends
` on GR`. Best effort is ENABLED or DISABLED, by version. The driver does not log later changes through NVML.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from vgpuctl.model.address import normalize_pci
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerState

LOG_MARKER = "has software scheduler"
_LINE = re.compile(r"GPU at ([0-9a-fA-F:.]+) has software scheduler \w+ with policy (\w+?)(?: on (\w+))?\.?\s*$")
_SOURCE = "kernel log"


def parse_scheduler_log(lines: Iterable[str], address: str) -> SchedulerState | None:
    """Return the state in the last line about a GPU's graphics engine, None if there is no line."""
    state: SchedulerState | None = None
    for line in lines:
        match = _LINE.search(line)
        if match is None or normalize_pci(match.group(1)) != address or match.group(3) not in (None, "GR"):
            continue
        policy = match.group(2).lower()
        state = SchedulerState(SchedulerPolicy(policy) if policy in set(SchedulerPolicy) else None, source=_SOURCE)
    return state
