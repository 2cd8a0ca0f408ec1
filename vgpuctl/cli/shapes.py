# SPDX-License-Identifier: Apache-2.0
"""The JSON `data` of every command, as types: the one source of `docs/json/`.

Units are in the names, addresses and ids are strings, unknown is null. Fields are added, never renamed.

Size: a table of types, one for each command, and nothing that runs.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

OwnerWord = Literal["ours", "foreign", "leaked"]
VmOwnerWord = Literal["ours", "foreign", "copy"]
StateWord = Literal["running", "paused", "stopped", "crashed", "unknown", "absent"]


BackendWord = Literal["mdev-pf", "mdev-vf", "vendor-vf", "sriov-vf", "passthrough"]


class VgpuShape(TypedDict):
    """A carrier that is taken: by a device (`present`), by a VM's promise, or by a claim.

    `carrier` is the mdev's UUID, or the address of the function; `reason` says why it is leaked. `name` is that of a
    vGPU which host.yaml keeps without a VM; then `vm` is the VM that refers to it.
    """

    carrier: str
    profile: str | None
    gpu: str
    function: str
    backend: BackendWord | None
    framebuffer_mib: int | None
    vm: str | None
    owner: OwnerWord
    present: bool
    reason: str | None
    name: str | None


class VfsShape(TypedDict):
    """SR-IOV virtual functions of a GPU."""

    total: int
    enabled: int
    used: int


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

    asked: AskedSchedulerShape | None
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


class GpuShape(TypedDict):
    """A GPU. `desired_mode` is what host.yaml sets it up for; `cordoned`: nothing new is placed on it.

    `allowed_profiles` are the only ones that host.yaml lets be placed on it, null for all; `reserved_for` the patterns
    of the names of VMs that it is kept for, none for all.

    `scheduler` is null where NVIDIA's driver does not schedule vGPUs and host.yaml asks for nothing.
    """

    address: str
    model: str
    backend: BackendWord | None
    mode: Literal["vgpu", "mig-vgpu", "sriov", "passthrough", "unmanaged"]
    driver: str | None
    framebuffer_mib: int | None
    numa_node: int | None
    iommu_group: int | None
    vfs: VfsShape
    vgpus: list[VgpuShape]
    problems: list[str]
    desired_mode: Literal["vgpu", "sriov", "passthrough", "unmanaged"] | None
    cordoned: bool
    allowed_profiles: list[str] | None
    reserved_for: list[str]
    scheduler: SchedulerShape | None


class FunctionShape(TypedDict):
    """A function of a GPU that can carry a vGPU."""

    address: str
    driver: str | None
    iommu_group: int | None
    problem: str | None


class GroupMemberShape(TypedDict):
    """Another device in a GPU's IOMMU group."""

    address: str
    driver: str | None
    same_slot: bool


class TypeShape(TypedDict):
    """A vGPU type of one GPU; `free` is null when only trying tells."""

    profile: str
    name: str
    type_id: str
    framebuffer_mib: int | None
    max_per_gpu: int | None
    free: int | None


class GpuDetailsShape(GpuShape):
    """A GPU with everything on it. `console` says why the host's console may be on it.

    `scheduler_at_load` is what the driver was loaded with, `scheduler_next` what it would be loaded with now.
    """

    console: list[str]
    group_members: list[GroupMemberShape]
    functions: list[FunctionShape]
    types: list[TypeShape]
    scheduler_limits: SchedulerLimitsShape | None
    scheduler_at_load: AskedSchedulerShape | None
    scheduler_next: AskedSchedulerShape | None
    shares: list[ShareShape]


class RoomShape(TypedDict):
    """How many more of a profile fit on one GPU."""

    address: str
    free: int | None


class ProfileShape(TypedDict):
    """A vGPU profile of this host. `free` is joint over all GPUs, null when only trying tells.

    `type_id` is null when GPUs of this host have different ids for it.
    """

    profile: str
    name: str
    type_id: str | None
    framebuffer_mib: int | None
    max_per_gpu: int | None
    free: int | None
    gpus: list[RoomShape]


class ReasonShape(TypedDict):
    """What stands in the way of a profile on one GPU."""

    address: str
    model: str
    free: int | None
    reasons: list[str]
    vgpus: list[VgpuShape]


class ExplainShape(TypedDict):
    """Where a profile fits and where it does not."""

    profile: str
    free: int | None
    gpus: list[ReasonShape]


class DiskShape(TypedDict):
    """A disk or CD-ROM of a VM. `made`: vgpuctl made it, and deletes it with the VM.

    `base` is the image it is a linked clone of; the size is null for what vgpuctl did not make.
    """

    path: str | None
    size_bytes: int | None
    base: str | None
    device: NotRequired[Literal["disk", "cdrom"]]
    made: NotRequired[bool]


class VmRowShape(TypedDict):
    """A VM in a list. `reserve` is null for one without a record.

    A vGPU that is reserved only while the VM runs is not `present` while it is off; `gpu` and `function` are its last.
    """

    name: str
    uuid: str
    state: StateWord
    owner: VmOwnerWord
    memory_mib: int
    vcpus: int
    reserve: Literal["always", "running"] | None
    vgpus: list[VgpuShape]


class VmShape(VmRowShape):
    """A VM. `record` is how far vgpuctl got with it, null for one it did not make."""

    record: Literal["making", "ready", "removing"] | None
    firmware: str
    networks: list[str]
    mac_addresses: list[str]
    disks: list[DiskShape]


class CloneShape(TypedDict):
    """A disk that is a clone of an image, with the VMs that refer to it."""

    path: str
    vms: list[str]


class ImageShape(TypedDict):
    """A volume, or a base image outside of the pools (`pool` and `volume` null). Format and size null: not known.

    `role` orphan: named as vgpuctl names disks, and no VM refers to it.
    """

    path: str
    pool: str | None
    volume: str | None
    format: str | None
    size_bytes: int | None
    role: Literal["base", "disk", "orphan", "other"]
    base: str | None
    vms: list[str]
    children: list[CloneShape]


class ScreenShape(TypedDict):
    """A VM's screen. Null: not given yet, or none; `password` null: this user may not see whether one is set."""

    type: str
    listen: str | None
    port: int | None
    tls_port: int | None
    socket: str | None
    password: bool | None


class SerialShape(TypedDict):
    """A VM's serial console: the terminal on the host, null while the VM is off, and the command that opens it."""

    target: str
    terminal: str | None
    command: list[str]


class ConsoleShape(TypedDict):
    """How a VM's screens and serial consoles are reached."""

    name: str
    uuid: str
    state: StateWord
    graphics: list[ScreenShape]
    serial: list[SerialShape]


class AddressShape(TypedDict):
    """An IP address of a guest. `interface` is the guest's name of the card by its agent, the host's otherwise."""

    address: str
    prefix: int
    family: Literal["ipv4", "ipv6"]
    mac: str | None
    interface: str


class AddressesShape(TypedDict):
    """The addresses of a running VM, and who knows them."""

    name: str
    uuid: str
    source: Literal["agent", "lease", "arp"]
    addresses: list[AddressShape]


class SourceShape(TypedDict):
    """A value and where it came from."""

    value: str | int | float | bool | list[str] | None
    source: Literal["typed", "host.yaml", "built in"]


class WorkShape(TypedDict):
    """What every changing command says beside its own data."""

    steps: list[str]
    notes: list[str]
    dry_run: bool


class GuestShape(TypedDict):
    """A guest that answered: who knows it, and its addresses; none when only its agent answers yet."""

    source: Literal["agent", "lease", "arp"]
    addresses: list[AddressShape]


class ChangedVmShape(WorkShape):
    """A VM that was made, changed or removed, or would be in a dry run.

    `uuid` is null when there was no VM to remove. In a dry run `after` is what would be.
    """

    name: NotRequired[str]
    uuid: NotRequired[str | None]
    state: StateWord
    vgpus: NotRequired[list[VgpuShape]]
    disks: NotRequired[list[DiskShape]]
    guest: NotRequired[GuestShape]
    sources: NotRequired[dict[str, SourceShape]]
    before: NotRequired[dict[str, object] | None]
    after: NotRequired[dict[str, object] | None]


class ManyVmShape(TypedDict):
    """One of several VMs: as it is, or with the state `absent` as it would be. `changed`: this command made it."""

    name: str
    uuid: str
    state: StateWord
    changed: bool
    vgpus: list[VgpuShape]
    owner: NotRequired[VmOwnerWord]
    record: NotRequired[Literal["making", "ready", "removing"] | None]
    reserve: NotRequired[Literal["always", "running"] | None]
    memory_mib: NotRequired[int]
    vcpus: NotRequired[int]
    disks: NotRequired[list[DiskShape]]


class FailedVmShape(TypedDict):
    """One of several VMs that could not be made."""

    name: str
    code: str
    message: str
    hint: str | None


class ManyVmsShape(WorkShape):
    """What --count asks for: every VM in the order of the names.

    When one fails there is an error instead, whose `facts` hold the same `vms` and `failed`.
    """

    vms: list[ManyVmShape]
    failed: list[FailedVmShape]
    sources: NotRequired[dict[str, SourceShape]]


class AttachedVmShape(WorkShape, VmShape):
    """A VM whose vGPUs or disk changed. In a dry run the VM is as it is now, after set-profile as it would be."""


class NamedVgpuShape(VgpuShape):
    """A vGPU without a VM. `hostdev`: the element for a VM's definition; `usage`: how a VM gets it."""

    hostdev: str
    usage: list[str]


class CreatedVgpuShape(WorkShape, NamedVgpuShape):
    """A vGPU without a VM that was made; in a dry run as it would be."""


class DeletedVgpuShape(WorkShape, VgpuShape):
    """A vGPU without a VM that was removed; in a dry run as it is now."""


class FindingShape(TypedDict):
    """Something that is not as it should be, and what reconcile does about it."""

    kind: str
    what: str
    action: str


class ReconcileShape(WorkShape):
    """What reconcile found and did, or would do in a dry run."""

    findings: list[FindingShape]


class CheckShape(TypedDict):
    """What one check of this host found. `evidence`: the values seen; `fix`: a command or a sentence.

    `explains`: the error codes, and the `check` facts of errors, at which it looks by itself.
    """

    id: str
    title: str
    looks_at: str
    verdict: Literal["ok", "warn", "fail", "unknown", "not-applicable"]
    evidence: list[str]
    fix: str | None
    explains: list[str]


class DoctorShape(WorkShape):
    """The verdict on this host is its worst check's; with "fail" the exit status is 6."""

    verdict: Literal["ok", "warn", "fail", "unknown", "not-applicable"]
    checks: list[CheckShape]


class RestoredShape(TypedDict):
    """A GPU that was set up again, or a VM or vGPU of host.yaml whose devices were made again."""

    kind: Literal["gpu", "vm", "vgpu"]
    name: str
    carriers: list[str]


class RestoreShape(WorkShape):
    """What restore-host made, or would make. `complete`: how many lacked nothing."""

    restored: list[RestoredShape]
    complete: int


class InstalledShape(WorkShape):
    """What install-host put in place or uninstall-host took away. `kept`: files changed by hand, left as they are."""

    files: list[str]
    kept: list[str]


class ChangedGpuShape(GpuShape, WorkShape):
    """A GPU that was changed, or would be in a dry run: then it is as it is now."""


class PartitionShape(TypedDict):
    """How a GPU is partitioned. `mig` and `mixed_size` are null where it has none or that is not known.

    `instances`: the profiles of its GPU instances, the larger first.
    """

    mig: bool | None
    instances: list[str]
    mixed_size: bool | None


class SetUpGpuShape(ChangedGpuShape):
    """A GPU that was set up anew, or would be. `partition` is null for one that has neither MIG nor mixed sizes."""

    partition: PartitionShape | None


class HostGpuShape(TypedDict):
    """What host.yaml says, or would say, of a GPU; null for nothing. `scheduler` as it is written there."""

    mode: str | None
    vfs: int | None
    cordoned: bool | None
    scheduler: dict[str, object] | None
    profiles: list[str] | None
    reserved_for: list[str] | None
    mig: Literal["off"] | list[str] | dict[str, int] | None
    mixed_size: bool | None


DifferenceShape = TypedDict("DifferenceShape", {"key": str, "wanted": object, "is": object})
DifferenceShape.__doc__ = "A key that is not as asked for; values as host.yaml writes them."


class GpuDifferenceShape(TypedDict):
    """A GPU that host.yaml names, as it is and as it is to be. `refused`: why it cannot be so now, null when it can."""

    address: str
    model: str
    before: HostGpuShape
    after: HostGpuShape
    differences: list[DifferenceShape]
    steps: list[str]
    refused: str | None


class HostDifferenceShape(WorkShape):
    """What apply did or would do. `settings`: what differs in the other sections of host.yaml."""

    gpus: list[GpuDifferenceShape]
    settings: list[DifferenceShape]


class HostTextShape(TypedDict):
    """A host.yaml."""

    text: str


class ImportedShape(HostTextShape):
    """A host.yaml made from files of another program. `left_out`: what it cannot say, each with its place and why."""

    source: Literal["mdevctl", "vgpu-device-manager", "mig-parted"]
    left_out: list[str]


class ChangedSchedulerShape(GpuShape, WorkShape):
    """A GPU whose scheduler was set, or would be in a dry run. `takes_effect`: when-loaded with its driver, or now."""

    via: Literal["nvml", "modprobe"]
    takes_effect: Literal["now", "when-loaded"]


class XmlShape(TypedDict):
    """The domain XML that create-vm --print-xml would define."""

    xml: str


class ScenarioShape(TypedDict):
    """A built-in simulated host."""

    host: str
    description: str


class SimShape(TypedDict):
    """A simulated host that was rebooted or reset."""

    host: str


class CompletionShape(TypedDict):
    """A shell's completion script."""

    shell: str
    script: str


KINDS: dict[str, object] = {
    "list-gpus": list[GpuShape],
    "show-gpu": GpuDetailsShape,
    "list-profiles": list[ProfileShape],
    "explain": ExplainShape,
    "create-vm": ChangedVmShape | ManyVmsShape | XmlShape,
    "ensure-vm": ChangedVmShape | ManyVmsShape,
    "delete-vm": ChangedVmShape,
    "start-vm": ChangedVmShape,
    "stop-vm": ChangedVmShape,
    "attach": AttachedVmShape,
    "detach": AttachedVmShape,
    "set-profile": AttachedVmShape,
    "refresh-vm": AttachedVmShape,
    "create-vgpu": CreatedVgpuShape,
    "delete-vgpu": DeletedVgpuShape,
    "list-vgpus": list[NamedVgpuShape],
    "list-vms": list[VmRowShape],
    "show-vm": VmShape,
    "console": ConsoleShape,
    "address": AddressesShape,
    "list-images": list[ImageShape],
    "reconcile": ReconcileShape,
    "doctor": DoctorShape,
    "restore-host": RestoreShape,
    "install-host": InstalledShape,
    "uninstall-host": InstalledShape,
    "apply": HostDifferenceShape,
    "diff": HostDifferenceShape,
    "assert": HostDifferenceShape,
    "export": HostTextShape,
    "import": ImportedShape,
    "set-mode": SetUpGpuShape,
    "set-mig": SetUpGpuShape,
    "set-mixed-size": SetUpGpuShape,
    "set-scheduler": ChangedSchedulerShape,
    "cordon": ChangedGpuShape,
    "uncordon": ChangedGpuShape,
    "sim-reboot": SimShape,
    "sim-reset": SimShape,
    "sim-list-scenarios": list[ScenarioShape],
    "completion": CompletionShape,
}
"""The document's kind -> the type of its `data`."""
