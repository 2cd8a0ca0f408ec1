# SPDX-License-Identifier: Apache-2.0
"""How NVIDIA's driver shares a GPU's time."""

from __future__ import annotations

from typing import Literal, TypedDict

PolicyWord = Literal["best_effort", "equal_share", "fixed_share"]


class AskedSchedulerShape(TypedDict):
    """A scheduler as host.yaml, or a word of the driver's registry, asks for it; null leaves it to the driver."""

    policy: PolicyWord
    time_slice_ms: int | None
    frequency_hz: int | None
    averaging_factor: int | None


class RunningSchedulerShape(TypedDict):
    """A scheduler that runs. `adaptive`: adaptive round robin, whose slices are `time_slice_us` long on the average."""

    policy: PolicyWord | None
    adaptive: bool | None
    time_slice_us: float | None
    averaging_factor: int | None
    source: Literal["NVML", "kernel log"]


class SchedulerShape(TypedDict):
    """What host.yaml asks for, and what runs, null where it is not known."""

    configured: AskedSchedulerShape | None
    running: RunningSchedulerShape | None


class RangeShape(TypedDict):
    """The least and the most that a driver takes."""

    least: float
    most: float


class SchedulerLimitsShape(TypedDict):
    """What a GPU's driver takes, by its own capabilities."""

    policies: list[PolicyWord]
    adaptive: bool
    time_slice_ms: RangeShape
    frequency_hz: RangeShape
    averaging_factor: RangeShape


class ShareShape(TypedDict):
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
