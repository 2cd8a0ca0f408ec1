# SPDX-License-Identifier: Apache-2.0
"""The version of the loaded NVIDIA driver, from the kernel's files; other modules query NVML."""

from __future__ import annotations

import re

MODULE_VERSION = "/sys/module/nvidia/version"
PROC_VERSION = "/proc/driver/nvidia/version"
"""Written by the driver itself (nv-procfs.c in NVIDIA's open kernel modules), also if the module has no version."""

_NVRM = re.compile(r"^NVRM version: .*Kernel Module.*?\s(\d+(?:\.\d+)+)(?:\s|$)", re.MULTILINE)


def parse_driver_version(module: str | None, proc: str | None) -> str | None:
    """Return the version from the texts of both files (None for a missing file); None if neither has it."""
    match = _NVRM.search(proc or "")
    return (module or "").strip() or (match.group(1) if match is not None else None)
