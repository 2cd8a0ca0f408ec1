# SPDX-License-Identifier: Apache-2.0
"""VMs as libvirt knows them, the promise vgpuctl keeps in their metadata, and the claims below /run."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from vgpuctl.model.gpu import Backend
from vgpuctl.model.json_text import parsed
from vgpuctl.value import Value


class VmState(StrEnum):
    """Power state in the field's words; `stopped` is libvirt's shutoff."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    CRASHED = "crashed"
    UNKNOWN = "unknown"


OFF_OR_CRASHED = (VmState.STOPPED, VmState.CRASHED)
"""No guest runs in it. A crashed VM's QEMU may still hold its devices: who takes one looks for holders."""

NOT_SEEN_RUNNING = (VmState.STOPPED, VmState.UNKNOWN)


class PromiseState(StrEnum):
    """How far vgpuctl got with a VM; anything but `ready` on an idle host is work for reconcile."""

    MAKING = "making"
    READY = "ready"
    REMOVING = "removing"


class PromisedVgpu(Value):
    """One vGPU that a VM owns, made or not. `params` is the driver's vgpu_params text, empty when unset.

    `placement_id`: where it is on a mixed-size GPU; None leaves it to the driver.
    """

    index: int
    backend: Backend
    gpu: str
    function: str
    carrier: str
    profile: str | None
    framebuffer_mib: int | None = None
    params: str = ""
    placement_id: int | None = None


class DiskRole(StrEnum):
    """What a volume is to its VM: a disk, the seed that cloud-init reads, or one that a refresh makes or leaves.

    A spare is not the VM's: whatever finds one on an idle host removes it.
    """

    DISK = "disk"
    SEED = "seed"
    SPARE = "spare"


class NamedVgpu(Value):
    """A vGPU without a VM, as `vgpus:` of host.yaml keeps it. `params` as in `PromisedVgpu`."""

    name: str
    profile: str
    gpu: str
    carrier: str
    params: str = ""


class MadeDisk(Value):
    """A volume that vgpuctl makes for a VM, and deletes with it. `base` is the image it is a clone of.

    `capacity_bytes` of a seed is 0: it is known when the seed is made.
    """

    pool: str
    volume: str
    path: str
    capacity_bytes: int
    base: str | None = None
    base_format: str | None = None
    role: DiskRole = DiskRole.DISK


class Exchange(Value):
    """Where one of a VM's vGPUs goes together with those of other VMs: from `carrier` to what `vgpu` says.

    It is so from the moment on in which the record of `with_vm`, a uuid, names `with_carrier`.
    """

    carrier: str
    vgpu: PromisedVgpu
    with_vm: str
    with_carrier: str


class Promise(Value):
    """The record in a domain's own metadata (namespace urn:vgpuctl:1).

    `vm_uuid` and `machine_id` are compared with the domain and the host that hold it: a record that was
    cloned or restored elsewhere differs, is shown and never acted on. `spec` keeps, as JSON, what was asked for and
    no domain shows. `made_vm` False: vgpuctl only gave vGPUs to a VM that somebody else made, and never removes it.
    `reserve`: "always" keeps the places of its vGPUs also while the VM is off, "running" only while it runs.
    `exchange`: its place is being exchanged; on an idle host that is work for reconcile.
    """

    state: PromiseState
    vm_uuid: str
    machine_id: str
    vgpus: tuple[PromisedVgpu, ...]
    disks: tuple[MadeDisk, ...]
    spec: str
    reserve: str = "always"
    made_vm: bool = True
    exchange: Exchange | None = None

    @property
    def spread_group(self) -> str | None:
        """The group whose VMs are on different GPUs, as it was asked for; none in a spec that cannot be read."""
        if '"spread_group"' not in self.spec:
            return None
        group = self.asked.get("spread_group")
        return group if isinstance(group, str) else None

    @property
    def asked(self) -> dict[str, Any]:
        """What was asked for, by name; nothing in a spec that cannot be read."""
        spec = parsed(self.spec)
        return spec if isinstance(spec, dict) else {}

    @property
    def lends(self) -> bool:
        """Whether others may have its places while its VM is off; only a claim or a device says that it has one."""
        return self.reserve == "running"

    def own_disks(self) -> tuple[MadeDisk, ...]:
        """Return the disks that may hold somebody's work: no seed, and none that a refresh makes or leaves."""
        return tuple(d for d in self.disks if d.role is DiskRole.DISK)

    def spares(self) -> tuple[MadeDisk, ...]:
        """Return the disks that a refresh makes or leaves."""
        return tuple(d for d in self.disks if d.role is DiskRole.SPARE)


class HostdevRef(Value):
    """A `<hostdev>` of a domain: `carrier` is an mdev UUID (lower case) or a normal PCI address."""

    kind: str
    carrier: str
    managed: bool
    alias: str | None = None


class DiskRef(Value):
    """A `<disk>` of a domain. `volume`: the pool and the name in it, where the domain names no path."""

    device: str
    target: str
    source: str | None
    format: str | None
    volume: tuple[str, str] | None = None


class Vm(Value):
    """One domain, read from libvirt's inactive (config) XML.

    `promise` is set only when the record is this VM's own on this host; a foreign or copied record is in
    `copied_promise`. `unreadable_promise`: a record is there that this version does not understand, perhaps a newer
    one's; it is shown and never written over. `memory_nodes`: the NUMA nodes that its memory is bound to, none when it
    may be anywhere. `unreadable_disks`: every file that it names all the same; of such a disk
    only `path` and `base` mean something. `mac_addresses` in document order.
    `persistent` False: it runs without a definition, as after `virsh undefine`, and is gone when it stops.
    `backing`: pairs of a file and the file below it, as far as libvirt's XML says that and the record does not.
    """

    name: str
    uuid: str
    state: VmState
    memory_mib: int
    vcpus: int
    hostdevs: tuple[HostdevRef, ...] = ()
    disks: tuple[DiskRef, ...] = ()
    networks: tuple[str, ...] = ()
    mac_addresses: tuple[str, ...] = ()
    firmware: str = "bios"
    promise: Promise | None = None
    copied_promise: Promise | None = None
    unreadable_promise: bool = False
    unreadable_disks: tuple[MadeDisk, ...] = ()
    memory_nodes: frozenset[int] = frozenset()
    persistent: bool = True
    backing: tuple[tuple[str, str], ...] = ()

    def refers_to(self, carrier: str) -> bool:
        """Say whether its definition gives it this carrier; while it is off, what it lends is only its last place."""
        promise = self.promise
        if promise is not None and promise.lends and self.state in NOT_SEEN_RUNNING:
            lent = {v.carrier for v in promise.vgpus}
        else:
            lent = set()
        return carrier not in lent and any(h.carrier == carrier for h in self.hostdevs)


SETTING_UP = "gpu set up"
"""Stands for the VM in the claim on a GPU that a command sets up. No VM of ours has such a name."""


WITHOUT_VM = "vgpu "
"""Begins what a claim on a vGPU without a VM has in the VM's place; the name follows. No VM of ours has such a name."""


class ProcessId(Value):
    """A process that no later one is mistaken for: pid, and start time in clock ticks since boot."""

    pid: int
    start_ticks: int


class Claim(Value):
    """The file /run/vgpuctl/claims/<carrier>: who has the carrier, before the device exists.

    `type_id`: the type that its device is given, by the driver's number; None when it was not known. `placement_id`:
    where it goes on a mixed-size GPU, None where the driver chooses.
    `spread_group`: its VM's, for as long as no definition tells of it.
    `leaving`: its process takes vGPUs of the VM away, so that nobody may start the VM with what is still there.
    """

    carrier: str
    backend: Backend
    gpu: str
    function: str
    vm: str
    vm_uuid: str
    profile: str | None
    framebuffer_mib: int | None
    process: ProcessId
    command: str
    type_id: str | None = None
    placement_id: int | None = None
    leaving: bool = False
    spread_group: str | None = None

    @property
    def holder(self) -> str:
        """Who has it, in words."""
        if self.vm == SETTING_UP:
            return f"GPU {self.gpu}"
        name = self.vm.removeprefix(WITHOUT_VM)
        return f"VM {name}" if name == self.vm else f"vGPU {name}"


class DrainedVm(Value):
    """The file /run/vgpuctl/drained/<uuid>: a VM that was shut down for a while, and is to be started again.

    `gpu`: the GPU that was to be set up; None when the VM itself was to be refreshed or moved.
    `run`: libvirt's id of the domain when it was noted; each start gives it another one. `until`: how long its guest is
    given to power off, in seconds of the clock that never jumps.
    """

    vm_uuid: str
    gpu: str | None
    process: ProcessId
    run: str | None = None
    until: float = 0.0


class WorkedOn(Value):
    """The file /run/vgpuctl/working/<uuid>: a process works on a VM that has no place, so that no claim tells of it."""

    vm_uuid: str
    process: ProcessId


class UnfinishedFile(Value):
    """A file that a process was writing beside its place, and that it left there."""

    path: str
    process: ProcessId


class StuckWrite(Value):
    """A kernel write that outlived its deadline: /run/vgpuctl/stuck/<pid>."""

    process: ProcessId
    gpu: str
    path: str
    text: str
