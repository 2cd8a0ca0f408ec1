# SPDX-License-Identifier: Apache-2.0
"""The use of GPUs and vGPUs: the `data` of `top`, from which the metrics and the history are made too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from vgpuctl.model.gpu import Backend, GpuMode
from vgpuctl.model.usage import GpuUse, VgpuUse
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy
from vgpuctl.model.vm import VmState
from vgpuctl.value import EMPTY_MAPPING, Value


class GpuUsageResult(Value):
    """One GPU. `given_mib`: the framebuffer of its vGPUs, also of VMs that are off; null if one is unknown.

    `notes`: what an admin should know, such as `cordoned` or `lost`. `use`: null where no source reports the GPU.
    """

    address: str
    model: str
    backend: Backend | None
    mode: GpuMode
    numa_node: int | None
    framebuffer_mib: int | None
    given_mib: int | None
    vgpus: int
    running_vgpus: int
    scheduler: SchedulerPolicy | None
    time_slice_ns: int | None
    notes: tuple[str, ...]
    use: GpuUse | None


class VgpuUsageResult(Value):
    """One vGPU. `vm` null: it has no VM, and `name` is its name in host.yaml. `index`: its number in its VM.

    `time_share`: the part of the GPU's time that the scheduler guarantees, null where it guarantees nothing or that is
    unknown. `share_used`: its use of the cores divided by that. `peak_memory_bytes`: the highest framebuffer use in the
    last 35 days, null without a history. `guest_driver_fit`: whether the host's driver supports the one in the guest,
    null without one. `hint`: what an admin could change. `use`: null while it does not run, and where no source reports
    it.
    """

    vm: str | None
    vm_uuid: str | None
    name: str | None
    index: int | None
    carrier: str
    gpu: str
    profile: str | None
    backend: Backend | None
    framebuffer_mib: int | None
    gi_id: int | None
    vm_state: VmState | None
    managed: bool
    owner: str | None
    labels: Mapping[str, str]
    present: bool
    time_share: float | None
    share_used: float | None
    peak_memory_bytes: int | None
    guest_driver_fit: Annotated[str, "supported", "old", "too-new", "unknown"] | None
    hint: str | None
    use: VgpuUse | None


class UsageResult(Value):
    """The use of one host. `time`: when it was read, seconds since 1970; `age_seconds`: how long ago that was.

    `failed_sources`: why a source gave nothing, by its name. `nvml_paused`: a change of a GPU's layout is at work.
    """

    host: str
    time: float
    age_seconds: float
    duration_seconds: float
    driver_version: str | None
    gpus: tuple[GpuUsageResult, ...]
    vgpus: tuple[VgpuUsageResult, ...]
    failed_sources: Mapping[str, str] = EMPTY_MAPPING
    nvml_paused: bool = False
