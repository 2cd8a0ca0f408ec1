# SPDX-License-Identifier: Apache-2.0
"""GPUs and vGPUs, what fits, and how NVIDIA's driver shares a GPU's time: the `data` of the commands about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from vgpuctl.model.gpu import Backend, GpuMode, IommuGroupMember, Ownership
from vgpuctl.model.results import ABSENT, Absent
from vgpuctl.model.results.host import HostGpuResult
from vgpuctl.model.results.moves import MoveResult
from vgpuctl.model.results.techniques import IsolationResult
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec
from vgpuctl.value import Value


class VgpuResult(Value):
    """A carrier that is in use: by a device (`present`), by a VM's record, or by a claim.

    `carrier`: the mdev's UUID, or the address of the function. `reason`: why it is leaked. `name`: the name in
    host.yaml of a vGPU without a VM; `vm` is then the VM that refers to it. `placement_id`: its current or reserved
    placement on a mixed-size GPU. `gpu_instance_id`: its GPU instance with MIG. Both are null if the driver does not
    report them. `companions`: the other functions of the slot, such as audio, that are passed through with a GPU.
    `attached`: whether the running VM has it; false if another program took it out of the VM's definition, null while
    the VM is off or if it has none. `other_vms`: other VMs that name this device too, such as a clone of its VM.
    """

    carrier: str
    profile: str | None
    gpu: str
    function: str
    backend: Backend | None
    framebuffer_mib: int | None
    vm: str | None
    ownership: Ownership
    present: bool
    reason: str | None
    name: str | None
    placement_id: int | None
    gpu_instance_id: int | None
    companions: tuple[str, ...]
    attached: bool | None
    other_vms: tuple[str, ...]


class NamedVgpuResult(VgpuResult):
    """A vGPU without a VM. `hostdev`: the element for a VM's definition; `usage`: how a VM gets it."""

    hostdev: str
    usage: tuple[str, ...]


class ListedVgpuResult(VgpuResult):
    """Any vGPU. `owner` and `labels` are its VM's.

    `hostdev` is null and `usage` empty except for a vGPU of host.yaml: see `NamedVgpuResult`.
    """

    hostdev: str | None
    usage: tuple[str, ...]
    owner: str | None
    labels: Mapping[str, str]


class EnsuredVgpuResult(VgpuResult):
    """A vGPU without a VM that was ensured. `before` and `after` are null if it does not exist.

    `hostdev` and `usage` as in `NamedVgpuResult`, unless it was removed.
    """

    hostdev: str | Absent = ABSENT
    usage: tuple[str, ...] | Absent = ABSENT
    before: NamedVgpuResult | None = None
    after: NamedVgpuResult | None = None


class AbsentVgpuResult(Value):
    """A vGPU without a VM that does not exist, as requested."""

    name: str
    present: bool = False
    before: None = None
    after: None = None


class RunningSchedulerResult(Value):
    """A scheduler that runs. `adaptive`: adaptive round robin, whose slices are `time_slice_us` long on average.

    `preempt_timeout_us`: how long a VM may keep the GPU after its slice. `problem`: why the policy is not known.
    """

    policy: SchedulerPolicy | None
    adaptive: bool | None
    time_slice_us: float | None
    averaging_factor: int | None
    source: Annotated[str, "NVML", "kernel log", "sriov_admin", "iov", "module parameters"]
    preempt_timeout_us: int | None = None
    problem: str | None = None


class SchedulerResult(Value):
    """What host.yaml configures, and what runs; null if not known."""

    configured: SchedulerSpec | None
    running: RunningSchedulerResult | None


class RangeResult(Value):
    """The smallest and the largest value that a driver accepts."""

    least: float
    most: float


class SchedulerLimitsResult(Value):
    """What a GPU's driver accepts, according to its own capabilities; null where it has no such setting."""

    policies: tuple[SchedulerPolicy, ...]
    adaptive: bool
    time_slice_ms: RangeResult
    frequency_hz: RangeResult | None
    averaging_factor: RangeResult | None
    preempt_timeout_us: RangeResult | None = None


class ShareResult(Value):
    """The part of its GPU's time that a vGPU is guaranteed. `guaranteed_percent` null: none, or not known; see `note`.

    `name`: the name in host.yaml of a vGPU without a VM.
    """

    carrier: str
    vm: str | None
    name: str | None
    profile: str | None
    guaranteed_percent: float | None
    time_slice_us: float | None
    note: str


class VfsResult(Value):
    """SR-IOV virtual functions of a GPU."""

    total: int
    enabled: int
    used: int


class GpuResult(Value):
    """A GPU. `desired_mode`: its mode in host.yaml. `cordoned`: no new vGPU is placed on it.

    `allowed_profiles`: the only profiles that host.yaml allows on it, null for all. `reserved_for`: patterns of the
    names of VMs that it is reserved for, empty for all.

    `pcie_switch`: the upstream port of the PCIe switch that the GPU is behind, null if it is behind none.
    `mixed_size` is null if the GPU does not support mixed sizes, or that is not known. `compute_partition`,
    `memory_partition`: the modes of an AMD GPU, such as SPX and NPS1, null without such modes. `scheduler` is null if
    its driver has none that vgpuctl knows, and host.yaml configures none. `render_node`: the device node through which
    QEMU can draw on it for VMs of mode virtio-gpu, null if its driver has none; `draws_for`: the names of those VMs,
    null from a host that does not report them.
    """

    address: str
    model: str
    backend: Backend | None
    mode: GpuMode
    driver: str | None
    framebuffer_mib: int | None
    numa_node: int | None
    iommu_group: int | None
    pcie_switch: str | None
    vfs: VfsResult
    vgpus: tuple[VgpuResult, ...]
    problems: tuple[str, ...]
    desired_mode: GpuMode | None
    cordoned: bool
    allowed_profiles: tuple[str, ...] | None
    reserved_for: tuple[str, ...]
    mixed_size: bool | None
    compute_partition: str | None
    memory_partition: str | None
    scheduler: SchedulerResult | None
    render_node: str | None
    draws_for: tuple[str, ...] | None


class FunctionResult(Value):
    """A function of a GPU that can carry a vGPU. `framebuffer_mib`: a plain VF's GPU memory, where that is known."""

    address: str
    driver: str | None
    iommu_group: int | None
    problem: str | None
    framebuffer_mib: int | None = None


class TypeResult(Value):
    """A vGPU type of one GPU. `free` is null if it is not known until it is tried; `free_at_least` fit in any case.

    `max_per_gpu`: how many fit on the empty GPU, in its mixed-size mode or by the driver's figure for one size.
    `gpu_instance_profile`: the GPU instance profile that a MIG-backed type needs, null for others.
    """

    profile: str
    name: str
    type_id: str
    framebuffer_mib: int | None
    max_per_gpu: int | None
    free: int | None
    free_at_least: int
    gpu_instance_profile: str | None


class GpuInstanceResult(Value):
    """A GPU instance: the driver's number for it, its profile, its first memory slice and how many it has."""

    id: int
    profile: str
    start: int
    size: int


class MigResult(Value):
    """MIG of a GPU. `pending`: whether it is on after the GPU's next reset."""

    enabled: bool
    pending: bool
    instances: tuple[GpuInstanceResult, ...]


class GpuDetailsResult(GpuResult):
    """A GPU with everything on it. `console`: reasons why it may be the host's console.

    `scheduler_at_load`: the setting when the driver was loaded. `scheduler_next`: the setting at its next load.
    `mig` is null if the GPU does not support it, or that is not known. `isolation`: how far its VMs are kept apart,
    null if that is not known or it is set up for nothing. `uuid`: NVIDIA's name for this very board, null where NVML
    does not have it now. `reason`: why it is set up so, as host.yaml says; null for none.
    """

    uuid: str | None
    reason: str | None
    console: tuple[str, ...]
    group_members: tuple[IommuGroupMember, ...]
    functions: tuple[FunctionResult, ...]
    types: tuple[TypeResult, ...]
    mig: MigResult | None
    scheduler_limits: SchedulerLimitsResult | None
    scheduler_at_load: SchedulerSpec | None
    scheduler_next: SchedulerSpec | None
    shares: tuple[ShareResult, ...]
    isolation: IsolationResult | None


class RoomResult(Value):
    """How many more of a profile fit on one GPU: null if not known; `free_at_least` fit in any case."""

    address: str
    free: int | None
    free_at_least: int


class ProfileResult(Value):
    """A vGPU profile of this host. `free` is joint over all GPUs, null when only `free_at_least` is known.

    The figures of several profiles do not add up. `excludes`: the profiles of which none fits once the maximum of this
    one exists; null if not known. `type_id` is null if GPUs of this host have different ids for it.
    """

    profile: str
    name: str
    type_id: str | None
    framebuffer_mib: int | None
    max_per_gpu: int | None
    free: int | None
    free_at_least: int
    excludes: tuple[str, ...] | None
    gpus: tuple[RoomResult, ...]


class ReasonResult(Value):
    """What blocks a profile on one GPU. `rule`: how the GPU is divided, null if it is not.

    `free` is null if not known; `free_at_least` fit in any case.

    `in_the_way`: the carriers of the fewest vGPUs to remove for one more; null if no removal is enough or that is not
    known, empty if one more fits now.
    """

    address: str
    model: str
    free: int | None
    free_at_least: int
    rule: str | None
    reasons: tuple[str, ...]
    in_the_way: tuple[str, ...] | None
    vgpus: tuple[VgpuResult, ...]


class ExplainResult(Value):
    """Where a profile fits and where it does not. `free` is null if only `free_at_least` is known.

    `moves`: the fewest moves of VMs that make room for one more, in order; empty if one more fits now, null if no
    moves make room or that is not known. move-vms carries them out.
    """

    profile: str
    free: int | None
    free_at_least: int
    moves: tuple[MoveResult, ...] | None
    gpus: tuple[ReasonResult, ...]


class ChangedGpuResult(GpuResult):
    """A GPU that was changed; in a dry run, its current state.

    `before` and `after`: the GPU's entry for host.yaml before and after the change.
    """

    before: HostGpuResult
    after: HostGpuResult


class PartitionResult(Value):
    """How a GPU is partitioned. `mig` and `mixed_size` are null where it has none or that is not known.

    `instances`: the profiles of its GPU instances, the larger first.
    """

    mig: bool | None
    instances: tuple[str, ...]
    mixed_size: bool | None


class SetUpGpuResult(GpuResult):
    """A GPU that was set up again, or would be. `partition` is null for one that has neither MIG nor mixed sizes.

    `before` and `after` as in `ChangedGpuResult`.
    """

    partition: PartitionResult | None
    before: HostGpuResult
    after: HostGpuResult
