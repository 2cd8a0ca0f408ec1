# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's vGPU scheduler: what is asked for, what a driver can do, and what runs. None means "not known"."""

from __future__ import annotations

from enum import StrEnum

from vgpuctl.value import Value


class Policy(StrEnum):
    """How the GPU's time is divided among its vGPUs."""

    BEST_EFFORT = "best_effort"
    EQUAL_SHARE = "equal_share"
    FIXED_SHARE = "fixed_share"


class SchedulerSpec(Value):
    """A scheduler as people ask for it; None leaves a number to the driver.

    `time_slice_ms` means strict round robin with slices of this length; `frequency_hz` and `averaging_factor` adaptive
    round robin, whose slices are 1000 / frequency_hz ms long on the average. The two exclude each other.
    """

    policy: Policy
    time_slice_ms: int | None = None
    frequency_hz: int | None = None
    averaging_factor: int | None = None

    @property
    def adaptive(self) -> bool | None:
        """Whether this asks for adaptive round robin, or for strict slices; None leaves it to the driver."""
        if self.time_slice_ms is not None:
            return False
        return True if self.frequency_hz is not None or self.averaging_factor is not None else None


class SchedulerLimits(Value):
    """The ranges that a driver takes, ends included. `adaptive`: whether it has adaptive round robin."""

    policies: frozenset[Policy]
    adaptive: bool
    time_slice_ns: tuple[int, int]
    frequency_hz: tuple[int, int]
    averaging_factor: tuple[int, int]


class SchedulerState(Value):
    """What runs. `policy` None: the driver names one that is not known here. `source`: who says so."""

    policy: Policy | None
    adaptive: bool | None = None
    time_slice_ns: int | None = None
    averaging_factor: int | None = None
    source: str = "NVML"


class GpuScheduler(Value):
    """What NVML says of one GPU's scheduler.

    `interfaces`: which of "v2" and "v1" its library has for setting it, none when it cannot. `architecture`: NVML's
    number (4 Pascal, 7 Ampere, 10 Blackwell).
    """

    limits: SchedulerLimits | None = None
    state: SchedulerState | None = None
    interfaces: tuple[str, ...] = ()
    architecture: int | None = None
