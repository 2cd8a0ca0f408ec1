# SPDX-License-Identifier: Apache-2.0
"""Faults that a scenario injects: which call fails, how, and how often.

Every call of a port is checked here by a name ("sysfs-write", "start") and a subject (a path, a VM's name).
The journal counts how often a counted fault matched, so "the third start fails" means the third start on
this host, not the third in this process.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from vgpuctl.value import Value

CALLS = (
    "sysfs-read",
    "sysfs-listdir",
    "sysfs-readlink",
    "sysfs-write",
    "sriov-manage",
    "modprobe",
    "nvml",
    "nvml-usage",
    "nvml-set-scheduler",
    "nvml-set-mig",
    "nvml-make-instance",
    "nvml-destroy-instance",
    "nvml-set-mixed-size",
    "reset-gpu",
    "domains",
    "find-domain",
    "define",
    "undefine",
    "set-record",
    "start",
    "shutdown",
    "destroy",
    "reboot",
    "reset",
    "migration-blockers",
    "migrate",
    "migrate-in",
    "is-migrating",
    "resume",
    "save",
    "network",
    "redefine",
    "attach-device",
    "detach-device",
    "unplug",
    "removal",
    "pool",
    "make-pool",
    "start-pool",
    "remove-pool",
    "volume",
    "make-volume",
    "put-volume",
    "rewrite-volume",
    "remove-volume",
    "prepare-bin",
    "bin-volume",
    "bin-volumes",
    "unbin-volume",
    "purge-volume",
    "send-volume",
    "receive-volume",
    "copy-image",
    "resize-volume",
    "resize-disk",
    "image",
)
"""The values that `on` may have in a scenario."""

KINDS = ("error", "lost", "park", "pending", "unknown")
DEFAULT_CODE = 1


class Fault(Value):
    """One fault of the scenario that this call triggers."""

    index: int
    kind: str
    errno_number: int | None
    code: int
    message: str

    def os_error(self, path: str) -> OSError:
        """Return the OSError that the kernel would cause."""
        number = self.errno_number if self.errno_number is not None else errno.EIO
        return OSError(number, os.strerror(number), path)


def match_faults(
    faults: list[Mapping[str, Any]], call: str, subject: str, hits: Mapping[int, int]
) -> Iterator[tuple[int, Fault | None]]:
    """Yield each matching fault: its index (-1: not counted) and the fault (None: not triggered this time)."""
    for index, fault in enumerate(faults):
        if fault["on"] != call or not fnmatchcase(subject, fault["match"]):
            continue
        count = hits.get(index, 0) + 1
        is_due = count == fault["nth"] if fault["nth"] else not fault["times"] or count <= fault["times"]
        is_counted = bool(fault["nth"] or fault["times"])
        triggered = Fault(index, fault["kind"], fault["errno"], fault["code"], fault["message"]) if is_due else None
        if is_counted or triggered:
            yield (index if is_counted else -1), triggered
