# SPDX-License-Identifier: Apache-2.0
"""Which version of NVIDIA's driver is loaded, from the texts in which the kernel says it; NVML is asked elsewhere."""

from __future__ import annotations

import re

MODULE_VERSION = "/sys/module/nvidia/version"
PROC_VERSION = "/proc/driver/nvidia/version"
"""Written by the driver itself (nv-procfs.c in NVIDIA's open kernel modules), also where its module says nothing."""

_NVRM = re.compile(r"^NVRM version: .*Kernel Module.*?\s(\d+(?:\.\d+)+)(?:\s|$)", re.MULTILINE)


def loaded_version(module: str | None, proc: str | None) -> str | None:
    """Return the version from the texts of both files, None for one that is not there; None when neither says it."""
    found = _NVRM.search(proc or "")
    return (module or "").strip() or (found.group(1) if found is not None else None)
