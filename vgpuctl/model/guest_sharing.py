# SPDX-License-Identifier: Apache-2.0
"""How the programs of one guest share its GPU: field `guest_sharing` of a VM."""

from __future__ import annotations

from enum import StrEnum

from vgpuctl.model.numbers import format_size
from vgpuctl.value import Value


class SharingMethod(StrEnum):
    """MPS: programs run on the GPU at the same time. Time slicing: they take turns, which a GPU always does."""

    MPS = "mps"
    TIME_SLICING = "time-slicing"


class GuestSharing(Value):
    """The method and its numbers.

    `replicas`: the guest is a node of Kubernetes, whose device plugin offers each of its GPUs to so many pods; None:
    the programs of the guest itself share its GPUs, by a daemon of the guest. Then only, for MPS: `threads_percent`:
    the part of a GPU's threads that each program may use; `memory_mib`: how much memory of each GPU each program may
    take; None for no limit.
    """

    method: SharingMethod
    replicas: int | None = None
    threads_percent: int | None = None
    memory_mib: int | None = None

    @property
    def text(self) -> str:
        """The canonical text: `mps`, `mps,threads=25,memory=4GiB`, `mps:4` or `time-slicing:4`."""
        if self.replicas is not None:
            return f"{self.method}:{self.replicas}"
        limits = [f"threads={self.threads_percent}"] if self.threads_percent is not None else []
        limits += [f"memory={format_size(self.memory_mib)}"] if self.memory_mib is not None else []
        return ",".join((self.method, *limits))
