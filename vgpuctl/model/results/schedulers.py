# SPDX-License-Identifier: Apache-2.0
"""How NVIDIA's driver shares a GPU's time."""

from __future__ import annotations

from typing import Annotated

from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec
from vgpuctl.value import Value


class RunningSchedulerResult(Value):
    """A scheduler that runs. `adaptive`: adaptive round robin, whose slices are `time_slice_us` long on the average."""

    policy: SchedulerPolicy | None
    adaptive: bool | None
    time_slice_us: float | None
    averaging_factor: int | None
    source: Annotated[str, "NVML", "kernel log"]


class SchedulerResult(Value):
    """What host.yaml asks for, and what runs, null where it is not known."""

    configured: SchedulerSpec | None
    running: RunningSchedulerResult | None


class RangeResult(Value):
    """The least and the most that a driver takes."""

    least: float
    most: float


class SchedulerLimitsResult(Value):
    """What a GPU's driver takes, by its own capabilities."""

    policies: tuple[SchedulerPolicy, ...]
    adaptive: bool
    time_slice_ms: RangeResult
    frequency_hz: RangeResult
    averaging_factor: RangeResult


class ShareResult(Value):
    """What one vGPU is guaranteed of its GPU's time. `guaranteed_percent` null: nothing, or not known; see `note`.

    `name` is that of a vGPU which host.yaml keeps without a VM.
    """

    carrier: str
    vm: str | None
    name: str | None
    profile: str | None
    guaranteed_percent: float | None
    time_slice_us: float | None
    note: str
