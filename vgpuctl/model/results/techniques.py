# SPDX-License-Identifier: Apache-2.0
"""Ways to share a GPU, what each isolates, and which of a host's GPUs can do it: the `data` of advise --workload."""

from __future__ import annotations

from enum import StrEnum

from vgpuctl.value import Value


class Degree(StrEnum):
    """How far VMs, or what shares a GPU inside one VM, are kept apart."""

    FULL = "full"
    PARTIAL = "partial"
    NONE = "none"


class Fit(StrEnum):
    """How a technique fits a workload."""

    GOOD = "good"
    POSSIBLE = "possible"
    POOR = "poor"
    UNSUITABLE = "unsuitable"


class IsolationDegreeResult(Value):
    """How far something is isolated, and what that means."""

    degree: Degree
    text: str


class IsolationResult(Value):
    """What is kept apart of the memory, of the compute engines, and of faults."""

    memory: IsolationDegreeResult
    compute: IsolationDegreeResult
    faults: IsolationDegreeResult


class TechniqueGpuResult(Value):
    """A technique on one GPU of this host. `lacks`: why the GPU cannot do it; empty if it can.

    `notes`: what has to happen before the commands work, such as VMs that must go. `commands`: they set the GPU up as
    far as it is not, and create a VM, in this order; empty if it cannot.
    """

    address: str
    model: str
    lacks: tuple[str, ...]
    notes: tuple[str, ...]
    commands: tuple[str, ...]


class TechniqueResult(Value):
    """A technique, how it fits the workload, and the GPUs of this host. `sources`: of its facts."""

    rank: int
    technique: str
    title: str
    fit: Fit
    reason: str
    isolation: IsolationResult
    limits: tuple[str, ...]
    sources: tuple[str, ...]
    gpus: tuple[TechniqueGpuResult, ...]


class WorkloadAdviceResult(Value):
    """The techniques for a workload, best first. `framebuffer_mib`: the size of a vGPU in the example commands."""

    workload: str
    title: str
    framebuffer_mib: int
    techniques: tuple[TechniqueResult, ...]
