# SPDX-License-Identifier: Apache-2.0
"""What a replay of requests says: the `data` of simulate."""

from __future__ import annotations

from typing import Annotated

from vgpuctl.value import Value


class SimulatedGpusResult(Value):
    """GPUs that are alike: model and how it is divided, how many, and the framebuffer of one."""

    model: str
    count: int
    framebuffer_mib: int


class SimulatedTotalsResult(Value):
    """Sums over all GPUs, at a time or on average over time.

    Stranded is free framebuffer that no profile of the demand can use while the vGPUs beside it stay. Locked GPUs have
    free framebuffer for a profile of the demand, and do not take it because of what else is on them.
    """

    allocated_mib: float
    stranded_mib: float
    locked_gpus: float
    busy_gpus: float


class SimulatedMomentResult(Value):
    """The sums at a time."""

    seconds: float
    allocated_mib: float
    stranded_mib: float
    locked_gpus: float
    busy_gpus: float


class SimulatedProfileResult(Value):
    """What came of the requests for one profile. `framebuffer_mib`: on the model where it is least.

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
    """What a policy made of the requests. `timeline`: 240 times in equal steps from the beginning to the end."""

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
    """A replay. `kept_mib`: the framebuffer of what was on the GPUs before, and stays.

    `requests_without_gpu` wanted none and are left out. `models_not_here`: requests that want a GPU model which is not
    here, so that any will do. `plot` and `written` are the files that were made, null for none.
    """

    gpus: tuple[SimulatedGpusResult, ...]
    framebuffer_mib: int
    kept_mib: int
    requests: int
    requests_without_gpu: int
    models_not_here: int
    begin_seconds: float
    end_seconds: float
    policies: tuple[SimulatedPolicyResult, ...]
    plot: str | None = None
    written: str | None = None
