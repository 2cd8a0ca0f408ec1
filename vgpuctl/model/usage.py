# SPDX-License-Identifier: Apache-2.0
"""What is read about the use of GPUs and vGPUs at one instant. None means "unknown", never zero.

Ratios are between 0 and 1. A vGPU's engine use is its part of the whole GPU, as NVML reports it. Strings that a guest
or a driver chose have been checked where they were read.
"""

from __future__ import annotations

from collections.abc import Mapping

from vgpuctl.value import EMPTY_MAPPING, Value

NVML_SOURCE, SYSFS_SOURCE = "nvml", "sysfs"
MAX_VALUE = 1 << 62
"""Every value of a card is less. A result may not have integers from twice as much on."""
LICENSED = "licensed"
"""The `license_state` of a vGPU with a license."""


class EngineUse(Value):
    """How busy the engines are. `sm`: the compute and graphics cores; `memory`: the memory's interface."""

    sm: float | None = None
    memory: float | None = None
    encoder: float | None = None
    decoder: float | None = None
    jpeg: float | None = None
    ofa: float | None = None


class FrameUse(Value):
    """Sessions of the encoder, or of framebuffer capture: their number, mean frame rate and mean latency."""

    sessions: int
    fps: float | None = None
    latency_seconds: float | None = None


class GpuUse(Value):
    """What is read about one GPU.

    `up`: it answers; False: it is lost (NVML_ERROR_GPU_IS_LOST, or its configuration space reads as ones); None:
    nothing says so. `temperatures` by sensor (`gpu`, `memory`), in degrees Celsius; `clocks` by name (`graphics`, `sm`,
    `memory`, `video`), in hertz. `clock_event_reasons`: why the clocks are lowered now. `ecc_errors` by kind
    (`corrected`, `uncorrected`), `retired_pages` by cause, `nvlink_errors` by kind: totals. `recovery_action`: what the
    driver asks for, such as `none`, `reset` or `reboot`.
    """

    address: str
    source: str
    up: bool | None = None
    uuid: str | None = None
    serial: str | None = None
    vbios: str | None = None
    memory_size_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    engines: EngineUse = EngineUse()
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None
    temperatures: Mapping[str, float] = EMPTY_MAPPING
    clocks: Mapping[str, float] = EMPTY_MAPPING
    clock_event_reasons: tuple[str, ...] | None = None
    ecc_errors: Mapping[str, int] = EMPTY_MAPPING
    row_remap_pending: bool | None = None
    row_remap_failed: bool | None = None
    retired_pages: Mapping[str, int] = EMPTY_MAPPING
    recovery_action: str | None = None
    pcie_replays: int | None = None
    pcie_link_width_lanes: int | None = None
    nvlink_errors: Mapping[str, int] = EMPTY_MAPPING


class VgpuUse(Value):
    """What is read about one vGPU that a VM uses now.

    `carriers`: the mdev's UUID or the address of its VF, as far as known. `vm_uuid` and `type_id`: as NVML reports
    them. `vgpu_uuid`: what nvidia-smi in the guest shows. `memory_size_bytes`: the
    framebuffer of its type, `memory_reserved_bytes` what the driver keeps of it. `license_state`: such as `licensed`,
    `unlicensed`, `unlicensed-restricted`; `license_expiry`: seconds since 1970, None if it does not expire.
    `guest_driver`: the version of NVIDIA's driver in the guest, None until that runs.
    """

    gpu: str
    carriers: tuple[str, ...]
    vm_uuid: str | None = None
    vgpu_uuid: str | None = None
    type_id: str | None = None
    gi_id: int | None = None
    memory_size_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    engines: EngineUse = EngineUse()
    license_state: str | None = None
    license_expiry: float | None = None
    guest_driver: str | None = None
    encoder: FrameUse | None = None
    capture: FrameUse | None = None
    frame_rate_limit_fps: int | None = None


class ReaderProgram(Value):
    """A program of the operator that prints the use of a maker's GPUs as JSON. `user`: it runs as that user."""

    name: str
    path: str
    user: str
    deadline_seconds: float = 5.0


class UsageTarget(Value):
    """A GPU whose use is read. `path`: its directory in sysfs.

    `source`: NVML_SOURCE, SYSFS_SOURCE or the name of its maker's program.
    """

    address: str
    path: str
    source: str


class UsageSample(Value):
    """What one look at the use of GPUs read, within `duration_seconds` after `time` (seconds since 1970).

    `failed_sources`: why a source gave nothing, by its name; its values are absent. `nvml_paused`: a change of a GPU's
    layout is at work, so NVML was not asked. `nvml_hangs`: it did not answer in time.
    """

    time: float
    duration_seconds: float
    gpus: tuple[GpuUse, ...] = ()
    vgpus: tuple[VgpuUse, ...] = ()
    driver_version: str | None = None
    failed_sources: Mapping[str, str] = EMPTY_MAPPING
    nvml_paused: bool = False
    nvml_hangs: bool = False


class ProcessUse(Value):
    """A process in a guest that uses a vGPU. `pid` and `name` are the guest's."""

    vm_uuid: str | None
    carrier: str | None
    pid: int
    name: str | None
    engines: EngineUse
