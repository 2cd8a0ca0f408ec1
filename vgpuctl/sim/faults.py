# SPDX-License-Identifier: Apache-2.0
"""Faults that a scenario injects: which call fails, how, and how often.

Every call of a seam passes here under a name ("sysfs-write", "start") with a subject (a path, a VM's name).
How often a counted fault was met is kept in the journal, so that "the third start fails" means the third on
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
    "nvml",
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
    "set-promise",
    "start",
    "shutdown",
    "destroy",
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
    "remove-volume",
    "image",
)
"""What `on` may name."""

KINDS = ("error", "lost", "park", "pending")
DEFAULT_CODE = 1


class Fault(Value):
    """One fault of the scenario, met by this call."""

    index: int
    kind: str
    number: int | None
    code: int
    message: str

    def os_error(self, path: str) -> OSError:
        """Return what the kernel would raise."""
        number = self.number if self.number is not None else errno.EIO
        return OSError(number, os.strerror(number), path)


def meeting(
    faults: list[Mapping[str, Any]], call: str, subject: str, hits: Mapping[int, int]
) -> Iterator[tuple[int, Fault | None]]:
    """Yield each counted fault that this call meets, and the fault itself when it is its turn."""
    for index, fault in enumerate(faults):
        if fault["on"] != call or not fnmatchcase(subject, fault["match"]):
            continue
        count = hits.get(index, 0) + 1
        turn = count == fault["nth"] if fault["nth"] else not fault["times"] or count <= fault["times"]
        counted = bool(fault["nth"] or fault["times"])
        found = Fault(index, fault["kind"], fault["errno"], fault["code"], fault["message"]) if turn else None
        if counted or found:
            yield (index if counted else -1), found
