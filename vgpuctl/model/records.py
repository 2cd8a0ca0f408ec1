# SPDX-License-Identifier: Apache-2.0
"""What the outside worlds answer: one record for each kind of thing that a seam reads."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from vgpuctl.model.partition import Mig
from vgpuctl.model.scheduler import GpuScheduler, SchedulerState
from vgpuctl.model.vm import Claim, VmState
from vgpuctl.value import NOTHING, Value


class NvmlStatus(Value):
    """Whether NVML can be asked. `reason` says what is missing: absent, too-old, a function's name."""

    available: bool
    reason: str | None = None
    driver_version: str | None = None


class NvmlVgpuType(Value):
    """A vGPU type by NVML: framebuffer and maximum of the same-size mode; `max_per_vm` 1 or 16.

    The last four are those of `VgpuType`.
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
    """What NVML says of one GPU: product name, whole framebuffer, every type it supports.

    `scheduler` None: its library cannot be asked for it. The last three are those of `Gpu`.
    """

    model: str
    framebuffer_mib: int
    types: Mapping[int, NvmlVgpuType]
    scheduler: GpuScheduler | None = None
    mig: Mig | None = None
    mixed_size: bool | None = None
    gi_schedulers: Mapping[int, SchedulerState] = NOTHING


class NvmlGuest(Value):
    """A vGPU that a VM has. `vm_uuid` None where that is not told; `driver_version` None while none runs there."""

    vm_uuid: str | None
    driver_version: str | None


class Ecc(Value):
    """Error correction (ECC) of a GPU's memory. `pending`: whether it is on after the next reset; mostly the same."""

    enabled: bool
    pending: bool


class HypervisorStatus(Value):
    """Whether libvirt answers. Versions are libvirt's numbers: major * 1000000 + minor * 1000 + release.

    `hint`: what helps when it does not, other than starting it.
    """

    available: bool
    uri: str
    reason: str | None = None
    hint: str | None = None
    libvirt_version: int | None = None
    qemu_version: int | None = None


class DomainRecord(Value):
    """One domain: `xml` is the inactive (config) XML; `live_xml` the running one's, None when it is off.

    `persistent` False: it runs without a definition, as after `virsh undefine`, and is gone when it stops.
    """

    name: str
    uuid: str
    state: VmState
    xml: str
    live_xml: str | None = None
    persistent: bool = True


class Removed(StrEnum):
    """How a guest answered when a device was taken from it."""

    GONE = "gone"
    REFUSED = "refused"
    NOT_TOLD = "not told"


class DomainLeftovers(Value):
    """What a domain keeps outside its XML and volumes, all removed by undefine."""

    nvram: str | None = None
    tpm: bool = False
    managed_save: bool = False
    snapshots: tuple[str, ...] = ()
    checkpoints: tuple[str, ...] = ()


class HypervisorCapabilities(Value):
    """What new domains may use on this host. `uefi`: libvirt finds a firmware by itself for x86_64 q35.

    `secure_boot`: one with secure boot and keys enrolled too. `tpm`: libvirt finds the emulator of a TPM 2.0 (swtpm).
    """

    kvm: bool
    uefi: bool
    emulator: str
    arch: str = "x86_64"
    secure_boot: bool = False
    tpm: bool = False


class NetworkRecord(Value):
    """A libvirt network."""

    name: str
    active: bool


class GuestAddress(Value):
    """An IP address of a guest, of its network card `mac` (lower case; None where the source does not tell).

    `interface` is the guest's own name of the card by its agent, the host's tap otherwise.
    """

    address: str
    prefix: int
    mac: str | None
    interface: str


class PoolRecord(Value):
    """A storage pool; `path` is its directory (None for kinds without one), sizes None while inactive."""

    name: str
    kind: str
    active: bool
    path: str | None
    capacity_bytes: int | None = None
    available_bytes: int | None = None


class VolumeRecord(Value):
    """A volume of a pool."""

    pool: str
    name: str
    path: str
    capacity_bytes: int
    format: str | None = None
    backing_path: str | None = None


class Glance(Value):
    """Which file a path leads to. `identity` is the same for every path to it; `below`: its backing file's path.

    `stamp` is another one once its content was changed.
    """

    path: str
    identity: str
    below: str | None
    stamp: str


class ImageRecord(Value):
    """A disk image or ISO on the host. `firmware` is what its partition table needs to boot.

    `problem` says why QEMU's user cannot read it (the directory or file and the user), else None.
    `format`: "directory" for one, "unknown" where it cannot be read.
    `firmware`: "uefi" (only an EFI system partition), "bios" (only boot code), "both", "none" (an empty
    disk) or "unknown" (not a disk image, or no tool to look).
    `refusal` says why it is never given to QEMU as a disk, and `convert` as which format qemu-img could convert it.
    `chain` is the file itself and the files below it, from the top down. `exposed`: a sentence for each of them that
    others than root and QEMU may change.
    """

    path: str
    format: str
    virtual_size_bytes: int
    firmware: str = "unknown"
    problem: str | None = None
    refusal: str | None = None
    convert: str | None = None
    chain: tuple[Glance, ...] = ()
    exposed: tuple[str, ...] = ()


class Holder(Value):
    """A process that has a device node open."""

    pid: int
    command: str


class ClaimsRead(Value):
    """Every claim, by one look. `unreadable`: carriers whose claim file cannot be understood; they count as taken.

    Both are sorted by carrier.
    """

    claims: tuple[Claim, ...]
    unreadable: tuple[str, ...]


class AuditEntry(Value):
    """One command that may have changed the host, after it ended.

    `login_uid` is who logged in, kept by the kernel over sudo and su; None where it does not say. `arguments` are
    without secrets. `result` is "ok" or the error's code, `message` the error's. `plan` are the steps that were to be
    done, as far as the command came to plan them; `undone` and `left` the steps taken back, and what remains.
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


class FilePermissions(Value):
    """Whose a file or directory is: owner and group by number, `mode` the permission bits (0o755)."""

    mode: int
    owner: int
    group: int


class CommandResult(Value):
    """What a vendor's command left: its exit status, and what it printed on both streams."""

    status: int
    text: str
