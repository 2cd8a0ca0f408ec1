# SPDX-License-Identifier: Apache-2.0
"""A GPU's scheduler: what is requested, what its driver supports, and what runs. None means "unknown"."""

from __future__ import annotations

from enum import StrEnum

from vgpuctl.value import Value


class SchedulerPolicy(StrEnum):
    """How the GPU divides its time among its vGPUs."""

    BEST_EFFORT = "best_effort"
    EQUAL_SHARE = "equal_share"
    FIXED_SHARE = "fixed_share"


class SchedulerSpec(Value):
    """The scheduler settings that a user requests; None leaves a number to the driver.

    `time_slice_ms` selects strict round robin with slices of this length. `frequency_hz` and `averaging_factor` select
    adaptive round robin, with slices of 1000 / frequency_hz ms on average. The two cannot be combined.
    `preempt_timeout_us`: how long a VM may keep the GPU after its slice, before the driver resets the engine.
    """

    policy: SchedulerPolicy
    time_slice_ms: int | None = None
    frequency_hz: int | None = None
    averaging_factor: int | None = None
    preempt_timeout_us: int | None = None

    @property
    def adaptive(self) -> bool | None:
        """Whether this requests adaptive round robin (True) or strict slices (False); None leaves it to the driver."""
        if self.time_slice_ms is not None:
            return False
        return True if self.frequency_hz is not None or self.averaging_factor is not None else None


class SchedulerLimits(Value):
    """The ranges that a driver accepts, ends included; None where it has no such setting.

    `supports_adaptive`: whether it has adaptive round robin.
    """

    policies: frozenset[SchedulerPolicy]
    supports_adaptive: bool
    time_slice_ns: tuple[int, int]
    frequency_hz: tuple[int, int] | None
    averaging_factor: tuple[int, int] | None
    preempt_timeout_us: tuple[int, int] | None = None


class SchedulerState(Value):
    """The scheduler that runs. `policy` None: the driver reports one unknown to vgpuctl; `problem` may say why.

    `source`: who reports it.
    """

    policy: SchedulerPolicy | None
    adaptive: bool | None = None
    time_slice_ns: int | None = None
    averaging_factor: int | None = None
    source: str = "NVML"
    preempt_timeout_us: int | None = None
    problem: str | None = None


class SchedulerInterface(StrEnum):
    """What reports and sets a scheduler: NVIDIA's library, xe's files, i915's files, or the parameters of a module."""

    NVML = "NVML"
    SRIOV_ADMIN = "sriov_admin"
    IOV = "iov"
    MODULE = "module parameters"


class GpuScheduler(Value):
    """What the driver reports about one GPU's scheduler.

    `setter_versions`: which of "v2" and "v1" the library has for setting it, empty when it has neither.
    `architecture`: NVML's number (4 Pascal, 7 Ampere, 10 Blackwell).
    """

    limits: SchedulerLimits | None = None
    state: SchedulerState | None = None
    setter_versions: tuple[str, ...] = ()
    architecture: int | None = None
    interface: SchedulerInterface = SchedulerInterface.NVML

    @property
    def can_set(self) -> bool:
        """Whether it can be set while the driver is loaded."""
        return bool(self.setter_versions) or self.interface is SchedulerInterface.SRIOV_ADMIN

    @property
    def is_set_in_use(self) -> bool:
        """Whether it can be set while VMs use the GPU."""
        return self.interface is SchedulerInterface.SRIOV_ADMIN
