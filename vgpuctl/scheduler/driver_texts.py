# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's driver writes into the kernel's files and log: its version, and the scheduler that it applied to a GPU.

Other modules query NVML. The log line is, up to 580, `NVRM: GPU at 0000:41:00.0 has software scheduler ENABLED with
policy FIXED_SHARE.`; from 590 on it ends ` on GR`. Best effort is ENABLED or DISABLED, by version. The driver does not
log later changes through NVML.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from vgpuctl.model.names import normalize_pci
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerState

MODULE_VERSION = "/sys/module/nvidia/version"
PROC_VERSION = "/proc/driver/nvidia/version"
"""Written by the driver itself (nv-procfs.c in NVIDIA's open kernel modules), also if the module has no version."""

_NVRM = re.compile(r"^NVRM version: .*Kernel Module.*?\s(\d+(?:\.\d+)+)(?:\s|$)", re.MULTILINE)


def parse_driver_version(module: str | None, proc: str | None) -> str | None:
    """Return the version from the texts of both files (None for a missing file); None if neither has it."""
    match = _NVRM.search(proc or "")
    return (module or "").strip() or (match.group(1) if match is not None else None)


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
