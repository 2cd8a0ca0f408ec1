# SPDX-License-Identifier: Apache-2.0
"""VMs, their disks and images, and how they are reached: the `data` of the commands about VMs.

Size: values alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from vgpuctl.model.desktop import DesktopMark
from vgpuctl.model.results import ABSENT, Absent
from vgpuctl.model.results.gpus import VgpuResult
from vgpuctl.model.vm import RecordState, VmState
from vgpuctl.value import Value

StateWord = VmState | Literal["absent"]


class ScreenResult(Value):
    """A VM's screen. Null: not assigned yet, or none; `password` null: this user may not see whether one is set."""

    type: str
    listen: str | None
    port: int | None
    tls_port: int | None
    socket: str | None
    password: bool | None


class SerialResult(Value):
    """A VM's serial console: the terminal on the host, null while the VM is off, and the command that opens it."""

    target: str
    terminal: str | None
    command: tuple[str, ...]


class ConsoleResult(Value):
    """How a VM's screens and serial consoles are reached."""

    name: str
    uuid: str
    state: StateWord
    graphics: tuple[ScreenResult, ...]
    serial: tuple[SerialResult, ...]


class AddressResult(Value):
    """An IP address of a guest. `interface` is the guest's name of the card by its agent, the host's otherwise."""

    address: str
    prefix: int
    family: Annotated[str, "ipv4", "ipv6"]
    mac: str | None
    interface: str


class AddressesResult(Value):
    """The addresses of a running VM, and who knows them."""

    name: str
    uuid: str
    source: Annotated[str, "agent", "lease", "arp"]
    addresses: tuple[AddressResult, ...]


class GuestResult(Value):
    """A guest that answered: who knows it, and its addresses; none when only its agent answers yet."""

    source: Annotated[str, "agent", "lease", "arp"]
    addresses: tuple[AddressResult, ...]


class GuestSoftwareResult(Value):
    """NVIDIA's software in a running guest, as the host's NVML reports it. `driver`: its version.

    `release`, `host_release`: the vGPU releases of the guest's and the host's driver, such as 19.5, or 19 if only the
    branch is known; null if neither is. `fit`: whether the host's driver allows the guest's; old: it may work, and
    NVIDIA does not support it; too-new: the vGPU does not start. `license`: such as licensed or unlicensed;
    `license_expiry`: when it ends, null if that is not known.
    """

    driver: str
    release: str | None
    host_release: str | None
    fit: Annotated[str, "supported", "old", "too-new", "unknown"]
    license: str | None
    license_expiry: str | None


class GuestUserResult(Value):
    """A user who is logged on in a guest. `idle_seconds`: since the last input, null if that is not known.

    `disconnected`: the session runs, and nobody sees its screen; only Windows tells that.
    """

    user: str
    state: Annotated[str, "active", "disconnected"]
    idle_seconds: int | None


class GuestHelperResult(Value):
    """What the helper in a running guest reported last; nothing proves that it is true.

    `seen`: when, in UTC. `version`: the helper's. `users`: who is logged on, null where the guest does not know, or
    the VM is not the caller's.
    `driver`: the version of NVIDIA's driver in the guest, null without one. `host_driver`, `host_branch`: of the host's
    vGPU driver, as the guest sees it. `mps`: whether the daemon of MPS runs.
    """

    seen: str
    version: str
    users: tuple[GuestUserResult, ...] | None
    driver: str | None
    host_driver: str | None
    host_branch: str | None
    mps: bool


class WaitedVmResult(Value):
    """A VM that has reached what was waited for. `guest`: who knows it; null unless that was waited for.

    `state` absent: it went off, and had no definition. `guest_software`: the guest's driver and license; null unless
    one of them was waited for.
    """

    name: str
    uuid: str
    state: StateWord
    guest: GuestResult | None
    guest_software: GuestSoftwareResult | None


class DiskResult(Value):
    """A disk or CD-ROM of a VM. `made`: vgpuctl created it, and deletes it with the VM.

    `base` is the image that it is a linked clone of, `copied_from` the one that it is a full copy of; the size is null
    for what vgpuctl did not create.
    """

    path: str | None
    device: Annotated[str, "disk", "cdrom"]
    size_bytes: int | None
    base: str | None
    copied_from: str | None
    made: bool


class KeptDiskResult(Value):
    """A disk that stays although its VM is deleted."""

    path: str
    size_bytes: int | None
    base: str | None
    copied_from: str | None


class CloneResult(Value):
    """A disk that is a clone of an image, with the VMs that refer to it."""

    path: str
    vms: tuple[str, ...]


class ImageResult(Value):
    """A volume, or a base image outside of the pools (`pool` and `volume` null). Format and size null: not known.

    `role` seed: cloud-init reads it in a VM; driver: the disc by which guests get a driver; orphan: named as vgpuctl
    names disks, and no VM refers to it.
    """

    path: str
    pool: str | None
    volume: str | None
    format: str | None
    size_bytes: int | None
    role: Literal["base", "disk", "seed", "driver", "orphan", "other"]
    base: str | None
    vms: tuple[str, ...]
    children: tuple[CloneResult, ...]


VmOwnershipWord = Literal["managed", "unmanaged", "copy"]
ReserveWord = Annotated[str, "always", "running"]


class SourceResult(Value):
    """A value and where it came from."""

    value: str | int | float | bool | tuple[str, ...] | None
    source: Annotated[str, "given", "host.yaml", "default"]


class NetworkResult(Value):
    """A VM's network card, on a libvirt network or on a bridge of the host; both null for another kind.

    `mac` is null for a card that libvirt has not given an address yet.
    """

    network: str | None
    bridge: str | None
    vlan: int | None
    model: str | None
    mac: str | None


class VmRowResult(Value):
    """A VM in a list. `reserve` is null for one without a record.

    `ownership`: whether vgpuctl manages it. `owner`: the person or team that uses it, null if none is set. `account`:
    the user of the host agent who made it, null if root did. `generation`: grows with each change that vgpuctl makes of
    its record or definition, null without a record. `image`: the image that its first disk is a clone or a full copy
    of, null without one. `license`, `guest_sharing`: as in `VmResult`. `driver`, `guest_users`: NVIDIA's driver in
    the running guest and who is logged on there, as its helper reports; null without a helper. `should_run`: as in
    `VmResult`. `adoptable`: another
    program made it with a vGPU, VF or whole GPU, and the adopt command would probably take it over. `desktop`: the mark
    of a pool's desktop in its record, null for other VMs. `prepared`: prepare-vm kept its first disk. `stop_reason`:
    why it is off, in libvirt's words (shutdown, destroyed, crashed, failed, saved); null while it runs, and where
    libvirt does not know, as after a boot of the host. `off_after_setup`: as in `VmResult`. `render_gpu`: the GPU on
    which QEMU draws for the guest (mode virtio-gpu), or its device node where no GPU has that now; null for other VMs.
    `can_move`: whether it can move to another host while it runs, or be saved, by what is known without asking QEMU;
    `why_not_movable`: why not, or why that is not known. `moves_with`: the other host of a move that goes on or was
    interrupted; `moves_away`: whether it moves from here to that one, or else from there to here; null without a move.

    A vGPU that is reserved only while the VM runs is not `present` while it is off; `gpu` and `function` are the last.
    """

    name: str
    uuid: str
    state: StateWord
    ownership: VmOwnershipWord
    owner: str | None
    account: str | None
    generation: int | None
    labels: Mapping[str, str]
    memory_mib: int
    vcpus: int
    reserve: ReserveWord | None
    image: str | None
    license: str | None
    guest_sharing: str | None
    driver: str | None
    guest_users: tuple[str, ...] | None
    should_run: bool | None
    adoptable: bool | None
    desktop: DesktopMark | None
    prepared: bool | None
    stop_reason: str | None
    off_after_setup: bool | None
    render_gpu: str | None
    can_move: bool | None
    why_not_movable: str | None
    moves_with: str | None
    moves_away: bool | None
    vgpus: tuple[VgpuResult, ...]


class VmResult(Value):
    """A VM. `record`: the state in its record, null if vgpuctl did not create it.

    `spread_group`: the group whose VMs are on different GPUs, null for none. `hugepages`: the size of its memory's huge
    pages, "none", or "default" for the host's default size. `pinned_cpus`: the CPUs that its vCPUs may run on;
    `memory_nodes`: the NUMA nodes to which its memory is bound; null for any. `display`: a vGPU's screen is in the VM's
    console. `owner`, `account`, `generation`, `ownership`, `image`, `desktop`, `prepared`, `stop_reason`, `render_gpu`,
    `can_move`, `why_not_movable`, `moves_with`, `moves_away`: as in `VmRowResult`. `off_after_setup`: it shuts down
    after setup.
    `cloud_init`, `network_config`: the files that its seed for cloud-init was made from, null without one.
    `guest_sharing`: how the programs of its guest share its GPU, "none" where nothing is set up for that, null without
    a record. `license`: the name of the license that its guest is given, or "none"; whether NVIDIA's driver there has
    one now is in `guest_software`. `autostart`, `autostart_storage`, `start_order`: whether, with which disks and in
    which order the host agent starts it after a boot; null without a record. `should_run`: whether the last request was
    to start it; null unless `autostart` is last-state. `planned`: the fields that the host agent changes when the VM is
    next off, as text. `libvirt_autostart`: whether libvirt starts it too (virsh autostart); only show-vm reads that, as
    root. `guest_software`: of the running guest; null without NVIDIA's driver there. Only show-vm reads it, and
    create-vm that waits for it. `guest_driver`: the file with the driver that its guest is given, or "none".
    `k8s_join`: the cluster that it joins, by name, or "none"; `domain_join`: likewise the domain of Windows.
    `guest_helper`: whether cloud-init brings the helper into the guest, null without a record. `helper_report`: what
    the helper in the guest reports, null without one; only show-vm has it.
    """

    name: str
    uuid: str
    state: StateWord
    ownership: VmOwnershipWord
    owner: str | None
    account: str | None
    generation: int | None
    labels: Mapping[str, str]
    record: RecordState | None
    memory_mib: int
    vcpus: int
    firmware: str
    networks: tuple[NetworkResult, ...]
    hugepages: str
    pinned_cpus: str | None
    memory_nodes: str | None
    display: bool
    reserve: ReserveWord | None
    spread_group: str | None
    image: str | None
    cloud_init: str | None
    network_config: str | None
    guest_sharing: str | None
    license: str | None
    guest_driver: str | None
    k8s_join: str | None
    domain_join: str | None
    guest_helper: bool | None
    off_after_setup: bool | None
    autostart: str | None
    autostart_storage: str | None
    start_order: int | None
    should_run: bool | None
    planned: Mapping[str, str]
    libvirt_autostart: bool | None
    guest_software: GuestSoftwareResult | None
    helper_report: GuestHelperResult | None
    desktop: DesktopMark | None
    prepared: bool | None
    stop_reason: str | None
    render_gpu: str | None
    can_move: bool | None
    why_not_movable: str | None
    moves_with: str | None
    moves_away: bool | None
    vgpus: tuple[VgpuResult, ...]
    disks: tuple[DiskResult, ...]


class PlannedVmResult(Value):
    """A VM that libvirt does not have: a dry run would create it, or it is deleted (`uuid` null: there was none).

    `sources`: where each value of the request came from. `before`, `after`: the VM before and after ensure-vm; in a dry
    run `after` is the planned state. `guest`: how the guest is reached, after --wait-for.
    """

    name: str
    uuid: str | None
    state: StateWord
    vgpus: tuple[VgpuResult, ...] = ()
    disks: tuple[DiskResult | KeptDiskResult, ...] = ()
    sources: Mapping[str, SourceResult] | Absent = ABSENT
    before: VmResult | Absent | None = ABSENT
    after: VmResult | PlannedVmResult | Absent | None = ABSENT
    guest: GuestResult | Absent = ABSENT


VmReport = VmResult | PlannedVmResult
"""A VM after a change, as it is or as far as it is known."""


class ChangedVmResult(VmResult):
    """A VM that was created or ensured; the additional fields are those of `PlannedVmResult`."""

    sources: Mapping[str, SourceResult] | Absent = ABSENT
    before: VmResult | Absent | None = ABSENT
    after: VmResult | PlannedVmResult | Absent | None = ABSENT
    guest: GuestResult | Absent = ABSENT


ManyResultWord = Literal["created", "started", "stopped", "deleted", "unchanged"]


class ManyVmResult(VmResult):
    """One of several VMs. `result`: what this command did, or in a dry run would do; `changed`: not `unchanged`."""

    changed: bool
    result: ManyResultWord


class NewVmResult(Value):
    """One of several VMs that is not shown in full: it was deleted, cannot be read, or would be created.

    `changed`, `result`: as in `ManyVmResult`.
    """

    name: str
    uuid: str | None
    state: StateWord
    changed: bool
    result: ManyResultWord
    vgpus: tuple[VgpuResult, ...]


class FailedVmResult(Value):
    """One of several VMs that could not be created."""

    name: str
    code: str
    message: str
    hint: str | None


class ManyVmsResult(Value):
    """The VMs of --count, in the order of the names; with --state absent those that existed.

    If one fails there is an error instead, whose `facts` have the same `vms` and `failed`.
    """

    vms: tuple[ManyVmResult | NewVmResult, ...]
    failed: tuple[FailedVmResult, ...]
    sources: Mapping[str, SourceResult] | Absent = ABSENT


class XmlResult(Value):
    """The domain XML that create-vm --print-xml would define."""

    xml: str
