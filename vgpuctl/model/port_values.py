# SPDX-License-Identifier: Apache-2.0
"""What the ports return: one type for each kind of thing that a port reads."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from vgpuctl.model.gpu import MigState
from vgpuctl.model.vgpu_scheduler import GpuScheduler, SchedulerState
from vgpuctl.model.vm import Claim, VmState
from vgpuctl.value import EMPTY_MAPPING, Value


class NvmlStatus(Value):
    """Whether NVML is available. `reason`: what is missing: absent, too-old, a function's name."""

    available: bool
    reason: str | None = None
    driver_version: str | None = None


class NvmlVgpuType(Value):
    """A vGPU type from NVML: framebuffer and maximum of the same-size mode; `max_per_vm` 1 or 16.

    The last four fields are as in `VgpuType`.
    """

    type_id: int
    name: str
    framebuffer_mib: int
    max_per_gpu: int
    max_per_vm: int = 16
    gi_profile_id: int | None = None
    max_per_gi: int | None = None
    placement_ids: tuple[int, ...] | None = None
    placement_size: int | None = None


class NvmlGpu(Value):
    """What NVML reports for one GPU: product name, whole framebuffer, every supported type.

    `scheduler` None: the library has no call for it. The last four fields are as in `Gpu`.
    """

    model: str
    framebuffer_mib: int
    types: Mapping[int, NvmlVgpuType]
    scheduler: GpuScheduler | None = None
    mig: MigState | None = None
    mixed_size: bool | None = None
    gi_schedulers: Mapping[int, SchedulerState] = EMPTY_MAPPING
    uuid: str | None = None


class NvmlGuest(Value):
    """A vGPU that a VM uses. `vm_uuid` None: NVML does not report it; `driver_version` None: no guest driver runs."""

    vm_uuid: str | None
    driver_version: str | None


class EccState(Value):
    """Error correction (ECC) of a GPU's memory. `pending_enabled`: its state after the next reset; mostly the same."""

    enabled: bool
    pending_enabled: bool


class HypervisorStatus(Value):
    """Whether libvirt answers. Versions are libvirt's numbers: major * 1000000 + minor * 1000 + release.

    `hint`: what helps when libvirt does not answer, other than starting it.
    """

    available: bool
    uri: str
    reason: str | None = None
    hint: str | None = None
    libvirt_version: int | None = None
    qemu_version: int | None = None


class DomainInfo(Value):
    """One domain: `xml` is the inactive (config) XML; `live_xml` the running domain's, None when it is off.

    `persistent` False: a transient domain, as after `virsh undefine`; it disappears when it stops. `stop_reason`: why
    it is off, as in `Vm`.
    """

    name: str
    uuid: str
    state: VmState
    xml: str
    live_xml: str | None = None
    persistent: bool = True
    stop_reason: str | None = None


class DomainEventKind(StrEnum):
    """What libvirt reports about a domain: its lifecycle events (virDomainEventType), and `changed` for all others.

    `rebooted`: its guest boots again, or it was reset (VIR_DOMAIN_EVENT_ID_REBOOT); its QEMU goes on.
    """

    DEFINED = "defined"
    UNDEFINED = "undefined"
    STARTED = "started"
    SUSPENDED = "suspended"
    RESUMED = "resumed"
    STOPPED = "stopped"
    SHUTDOWN = "shutdown"
    PMSUSPENDED = "pmsuspended"
    CRASHED = "crashed"
    REBOOTED = "rebooted"
    CHANGED = "changed"


class DomainEvent(Value):
    """One event of one domain. `reason`: libvirt's word for the event's detail, None where it has none.

    `run_id`: libvirt's id of a domain that started, as in `DomainStatus`; None for other events.

    QEMU that died without SHUTDOWN is `stopped` with reason `failed` (qemuProcessHandleMonitorEOF in libvirt's
    qemu_process.c and qemu_driver.c); a guest that panicked is `crashed`, mostly followed by `stopped`, `crashed`.
    """

    kind: DomainEventKind
    name: str
    uuid: str
    reason: str | None = None
    run_id: int | None = None


class DomainStatus(Value):
    """A domain as it is listed when events begin to arrive.

    `run_id`: libvirt's id of a running domain, another one after each start; None when it is off. `off_reason`: why it
    is off (virDomainShutoffReason); None when it runs or nobody knows.
    """

    name: str
    uuid: str
    state: VmState
    run_id: int | None = None
    off_reason: str | None = None


class DetachOutcome(StrEnum):
    """How a guest responded to the removal of a device."""

    REMOVED = "gone"
    REFUSED = "refused"
    UNKNOWN = "not reported"


class RebootOutcome(StrEnum):
    """What libvirt reported about a domain that was asked to reboot, or was reset."""

    REBOOTED = "rebooted"
    OFF = "off"
    UNKNOWN = "not told"


class DomainLeftovers(Value):
    """What a domain has outside its XML and volumes; undefine removes all of it."""

    nvram: str | None = None
    tpm: bool = False
    managed_save: bool = False
    snapshots: tuple[str, ...] = ()
    checkpoints: tuple[str, ...] = ()


X86_64 = "x86_64"
MACHINES = {X86_64: "q35", "aarch64": "virt"}
"""The machine type with PCI Express of each architecture whose guests the built-in template describes."""


class HypervisorCapabilities(Value):
    """What new domains can use on this host: those of its `arch`, with the machine type `machine`.

    `uefi`: libvirt finds a firmware by itself. `secure_boot`: also one with secure boot and enrolled keys. `tpm`:
    libvirt finds the TPM 2.0 emulator (swtpm). `has_opengl`: QEMU can draw on a GPU without a window (egl-headless);
    None: libvirt does not tell.
    """

    kvm: bool
    uefi: bool
    emulator: str
    arch: str = "x86_64"
    secure_boot: bool = False
    tpm: bool = False
    machine: str = "q35"
    has_opengl: bool | None = None

    @property
    def is_x86(self) -> bool:
        """Whether the guests are PCs: BIOS, legacy devices and Intel's and AMD's words for the IOMMU exist there."""
        return self.arch == X86_64


class NetworkInfo(Value):
    """A libvirt network. `forward`: the mode of its `<forward>`; None: its guests reach nothing elsewhere."""

    name: str
    active: bool
    forward: str | None = None


class GuestAddress(Value):
    """An IP address of a guest, on its network card `mac` (lower case; None where the source does not report it).

    `interface`: the guest's own name of the card if its agent reports it, else the host's tap device.
    """

    address: str
    prefix: int
    mac: str | None
    interface: str


class PoolInfo(Value):
    """A storage pool; `path` is its directory (None for kinds without one). Sizes are None while it is inactive."""

    name: str
    kind: str
    active: bool
    path: str | None
    capacity_bytes: int | None = None
    available_bytes: int | None = None


class VolumeInfo(Value):
    """A volume of a pool."""

    pool: str
    name: str
    path: str
    capacity_bytes: int
    format: str | None = None
    backing_path: str | None = None


class ImageFile(Value):
    """The file that a path leads to. `identity` is the same for every path to it; `backing_path`: its backing file.

    `content_stamp` differs once the content has changed: size, modification time and header. The change time is no part
    of it, because libvirt gives a base to QEMU's user whenever a VM with a clone of it starts.
    """

    path: str
    identity: str
    backing_path: str | None
    content_stamp: str


class ResolvedPath(Value):
    """Where a path leads: `path` has no links. `exposure`: why users other than root could make it lead elsewhere."""

    path: str
    exposure: str | None = None


class ImageInfo(Value):
    """A disk image or ISO on the host. `firmware`: what its partition table needs to boot.

    `access_problem`: why QEMU's user cannot read it (the directory or file and the user), else None.
    `format`: "directory" for a directory, "unknown" where it cannot be read.
    `firmware`: "uefi" (only an EFI system partition), "bios" (only boot code), "both", "none" (an empty disk) or
    "unknown" (not a disk image, or no tool to inspect it).
    `unsafe_reason`: why vgpuctl never gives it to QEMU as a disk; `convert_format`: from which format qemu-img could
    convert it. `backing_chain`: the file itself and its backing files, from the top down. `exposures`: one sentence for
    each of these files that users other than root and QEMU can change.
    """

    path: str
    format: str
    virtual_size_bytes: int
    firmware: str = "unknown"
    access_problem: str | None = None
    unsafe_reason: str | None = None
    convert_format: str | None = None
    backing_chain: tuple[ImageFile, ...] = ()
    exposures: tuple[str, ...] = ()


class DeviceUser(Value):
    """A process that has a device node open."""

    pid: int
    command: str


class ClaimList(Value):
    """Every claim, from one read. `unreadable`: carriers whose claim file cannot be parsed; they count as taken.

    Both are sorted by carrier.
    """

    claims: tuple[Claim, ...]
    unreadable: tuple[str, ...]


class AuditEntry(Value):
    """One command that may have changed the host, after it ended.

    `login_uid`: who logged in; the kernel keeps it across sudo and su, None where it has none. `arguments` contain no
    secrets. `result`: "ok" or the error's code; `message`: the error's message. `plan`: the planned steps, empty if the
    command failed before it planned; `undone` and `left`: the steps undone, and what remains. `vms`, `gpus`: what it
    changed or was asked to change, and what its error names, by name and by address. `spec`: the fields of the spec
    file that the command read, as JSON; None if it read none. `time`: the end of the command, in seconds since the
    epoch; None before it is written. `user`: who that was, as far as it is known. `account`: the user of the host agent
    for whom a process of root worked, whose `uid` it is then; None without the agent. `via`: the interface of such a
    request; `address`, `on_behalf_of`: where it came from and for whom, as the client said and nobody proved.
    """

    command: str
    arguments: str
    host: str
    uid: int
    login_uid: int | None
    sudo_user: str | None
    result: str
    exit_status: int
    changed: bool
    duration_seconds: float
    message: str | None = None
    plan: tuple[str, ...] = ()
    undone: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    vms: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    spec: str | None = None
    time: float | None = None
    user: str | None = None
    account: str | None = None
    via: str | None = None
    address: str | None = None
    on_behalf_of: str | None = None


class AuditQuery(Value):
    """Which audit entries to read: the newest `limit` that match all that is given.

    `vm`, `gpu`: of commands that changed it, or were asked to. `since`: in seconds since the epoch. `failed`: only of
    commands that failed.
    """

    limit: int
    vm: str | None = None
    gpu: str | None = None
    since: float | None = None
    failed: bool = False


class AuditEntries(Value):
    """Audit entries, oldest first. `warnings`: why some may be missing."""

    entries: tuple[AuditEntry, ...] = ()
    warnings: tuple[str, ...] = ()


class FilePermissions(Value):
    """The permissions of a file or directory: owner and group by number, `mode` the permission bits (0o755)."""

    mode: int
    owner: int
    group: int


class CommandResult(Value):
    """The result of a vendor's command: its exit status, and its output on both streams."""

    status: int
    text: str
