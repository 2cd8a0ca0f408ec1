# SPDX-License-Identifier: Apache-2.0
"""The result of a replay of requests: the `data` of simulate."""

from __future__ import annotations

from typing import Annotated

from vgpuctl.value import Value


class SimulatedGpusResult(Value):
    """GPUs of one model that are divided alike: how many, and the framebuffer of one."""

    model: str
    count: int
    framebuffer_mib: int


class SimulatedTotalsResult(Value):
    """Averages over time, of all GPUs together: allocated framebuffer, and how many GPUs have a vGPU."""

    allocated_mib: float
    busy_gpus: float


class SimulatedMomentResult(Value):
    """The sums over all GPUs at a time."""

    seconds: float
    allocated_mib: int
    busy_gpus: int


class SimulatedProfileResult(Value):
    """The requests for one profile. `framebuffer_mib`: on the model where it is least.

    `refused_though_free`: when a GPU that offers the profile had the framebuffer free.
    """

    profile: str
    framebuffer_mib: int
    requests: int
    vgpus: int
    admitted: int
    refused: int
    refused_though_free: int
    admitted_mib: int


class SimulatedPolicyResult(Value):
    """The result of one policy. `timeline`: 240 times in equal steps from start to end."""

    policy: Annotated[str, "depth", "breadth", "first-fit", "least-waste"]
    admitted: int
    refused: int
    refused_though_free: int
    admitted_mib: int
    peak_allocated_mib: int
    mean: SimulatedTotalsResult
    profiles: tuple[SimulatedProfileResult, ...]
    timeline: tuple[SimulatedMomentResult, ...]


class SimulationResult(Value):
    """A replay. `kept_mib`: the framebuffer of the current vGPUs, if they stay.

    `plot` and `written` are the files that were created, null for none.
    """

    gpus: tuple[SimulatedGpusResult, ...]
    framebuffer_mib: int
    kept_mib: int
    requests: int
    begin_seconds: float
    end_seconds: float
    policies: tuple[SimulatedPolicyResult, ...]
    plot: str | None = None
    written: str | None = None
