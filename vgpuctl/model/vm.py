# SPDX-License-Identifier: Apache-2.0
"""VMs as libvirt knows them, the promise vgpuctl keeps in their metadata, and the claims below /run."""

from __future__ import annotations

from enum import StrEnum

from vgpuctl.model.gpu import Backend
from vgpuctl.value import Value


class VmState(StrEnum):
    """Power state in the field's words; `stopped` is libvirt's shutoff."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    CRASHED = "crashed"
    UNKNOWN = "unknown"


class PromiseState(StrEnum):
    """How far vgpuctl got with a VM; anything but `ready` on an idle host is work for reconcile."""

    MAKING = "making"
    READY = "ready"
    REMOVING = "removing"


class PromisedVgpu(Value):
    """One vGPU that a VM owns, made or not. `params` is the driver's vgpu_params text, empty when unset."""

    index: int
    backend: Backend
    gpu: str
    function: str
    carrier: str
    profile: str | None
    framebuffer_mib: int | None = None
    params: str = ""


class MadeDisk(Value):
    """A volume that vgpuctl makes for a VM, and deletes with it. `base` is the image it is a clone of."""

    pool: str
    volume: str
    path: str
    capacity_bytes: int
    base: str | None = None
    base_format: str | None = None


class Promise(Value):
    """The record in a domain's own metadata (namespace urn:vgpuctl:1).

    `vm_uuid` and `machine_id` are compared with the domain and the host that hold it: a record that was
    cloned or restored elsewhere differs, is shown and never acted on. `spec` keeps, as JSON, what was asked for and
    no domain shows. `made_vm` False: vgpuctl only gave vGPUs to a VM that somebody else made, and never removes it.
    `reserve`: "always" keeps the places of its vGPUs also while the VM is off, "running" only while it runs.
    """

    state: PromiseState
    vm_uuid: str
    machine_id: str
    vgpus: tuple[PromisedVgpu, ...]
    disks: tuple[MadeDisk, ...]
    spec: str
    reserve: str = "always"
    made_vm: bool = True

    @property
    def lends(self) -> bool:
        """Whether others may have its places while its VM is off; only a claim or a device says that it has one."""
        return self.reserve == "running"


class HostdevRef(Value):
    """A `<hostdev>` of a domain: `carrier` is an mdev UUID (lower case) or a normal PCI address."""

    kind: str
    carrier: str
    managed: bool
    alias: str | None = None


class DiskRef(Value):
    """A `<disk>` of a domain."""

    device: str
    target: str
    source: str | None
    format: str | None


class Vm(Value):
    """One domain, read from libvirt's inactive (config) XML.

    `promise` is set only when the record is this VM's own on this host; a foreign or copied record is in
    `copied_promise`. `unreadable_promise`: a record is there that this version does not understand, perhaps a newer
    one's; it is shown and never written over. `mac_addresses` in document order.
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


class ProcessId(Value):
    """A process that no later one is mistaken for: pid, and start time in clock ticks since boot."""

    pid: int
    start_ticks: int


class Claim(Value):
    """The file /run/vgpuctl/claims/<carrier>: who has the carrier, before the device exists."""

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


class StuckWrite(Value):
    """A kernel write that outlived its deadline: /run/vgpuctl/stuck/<pid>."""

    process: ProcessId
    gpu: str
    path: str
    text: str
