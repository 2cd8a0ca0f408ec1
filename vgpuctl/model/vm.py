# SPDX-License-Identifier: Apache-2.0
"""VMs as libvirt reports them, the record that vgpuctl keeps in their metadata, and the claims in /run.

Size: a VM, its record and its claims are read together.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeVar

from vgpuctl.model.desktop import DesktopMark
from vgpuctl.model.gpu import Backend
from vgpuctl.model.json_yaml import parse_json
from vgpuctl.model.migration import MigrationMark
from vgpuctl.value import Value, replace

AnyPlain = TypeVar("AnyPlain")


class VmState(StrEnum):
    """Power state; `stopped` is libvirt's shutoff, `shutting-down` its "in shutdown": the guest is powering off.

    `paused`: QEMU stopped the guest's CPUs, on request or because a disk is full. `pmsuspended`: the guest sleeps (S3).
    """

    RUNNING = "running"
    PAUSED = "paused"
    PMSUSPENDED = "pmsuspended"
    SHUTTING_DOWN = "shutting-down"
    STOPPED = "stopped"
    CRASHED = "crashed"
    UNKNOWN = "unknown"


NOT_RUNNING_STATES = (VmState.STOPPED, VmState.CRASHED)
"""No guest runs. The QEMU process of a crashed VM may still hold its devices: check for holders before taking one."""

UNRESPONSIVE_STATES = (VmState.PAUSED, VmState.PMSUSPENDED, VmState.CRASHED)
"""The guest does not react to a request to shut down or reboot."""
OFF_OR_UNKNOWN_STATES = (VmState.STOPPED, VmState.UNKNOWN)


SAVED = "saved"
"""libvirt's word for a VM whose memory is in a managed save."""
CLEAN_STOP = "shutdown"
"""libvirt's word for a guest that shut down; the disk of one that was switched off may be in any state."""


class RecordState(StrEnum):
    """How far vgpuctl got with a VM. Any state other than `ready`, while no vgpuctl runs, is work for reconcile.

    `moving`: it moves from one host to another; `migration` of the record says what this host is in that.
    """

    CREATING = "making"
    READY = "ready"
    REMOVING = "removing"
    MOVING = "moving"


class AssignedVgpu(Value):
    """One vGPU assigned to a VM, whether its device exists or not. `params`: the driver's vgpu_params, empty if unset.

    `placement_id`: its placement on a mixed-size GPU; None leaves it to the driver. `waits_for_place`: it gave up its
    place to let others move. `gpu`, `function` and `placement_id` are then its last ones, which others may take.
    `adopted`: another program made it and gave it to the VM before vgpuctl managed it.
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
    waits_for_place: bool = False
    adopted: bool = False


class DiskRole(StrEnum):
    """A volume's role for its VM: a disk, the seed that cloud-init reads, or a spare that a refresh makes or leaves.

    A spare does not belong to the VM: if no vgpuctl works on the VM, any command that finds the spare removes it.
    `prepared`: what `prepare-vm` kept of the system disk; the VM's disk is a clone of it, and nobody writes to it.
    """

    DISK = "disk"
    SEED = "seed"
    SPARE = "spare"
    PREPARED = "prepared"


class HostVgpu(Value):
    """A vGPU without a VM, as `vgpus:` of host.yaml keeps it. `params` as in `AssignedVgpu`."""

    name: str
    profile: str
    gpu: str
    carrier: str
    params: str = ""


class ManagedDisk(Value):
    """A volume that vgpuctl creates for a VM and deletes with it.

    `base`: the image that it is a linked clone of. `copied_from`: the image that it is a full copy of. `base_format`:
    the format of either. `format`: its own, as QEMU opens it. `capacity_bytes` is 0 for a seed, whose size is known
    later. `bin_entry`: its name in the bin, to which it moves; None: it is deleted.
    """

    pool: str
    volume: str
    path: str
    capacity_bytes: int
    base: str | None = None
    base_format: str | None = None
    role: DiskRole = DiskRole.DISK
    copied_from: str | None = None
    format: str = "qcow2"
    bin_entry: str | None = None

    @property
    def image(self) -> str | None:
        """The image that it was made from, as a linked clone or a full copy; None for an empty disk."""
        return self.base or self.copied_from


class VmRecord(Value):
    """The record in a domain's own metadata (namespace urn:vgpuctl:1).

    `vm_uuid` and `machine_id` are compared with the domain and the host that have the record. They differ in a cloned
    VM or on another host; vgpuctl then shows the record and never acts on it. `request_json`: what was requested and
    the domain XML does not show, as JSON. `created_vm` False: somebody else created the VM and vgpuctl only gave it
    vGPUs, so vgpuctl never removes it. `reserve`: "always" reserves the slots of its vGPUs also while the VM is off,
    "running" only while it runs. `account`: the user of the host agent who made the VM; None: root made it.
    `generation`: how often vgpuctl changed the VM, see `domain.record`. `should_run`: see `model.autostart`.
    `desktop`: the VM is a desktop of a pool, and a controller decides about it; None: it is not. `migration`: its move
    to another host, set in state `moving` alone.
    """

    state: RecordState
    vm_uuid: str
    machine_id: str
    vgpus: tuple[AssignedVgpu, ...]
    disks: tuple[ManagedDisk, ...]
    request_json: str
    reserve: str = "always"
    created_vm: bool = True
    account: str | None = None
    generation: int = 0
    should_run: bool = False
    desktop: DesktopMark | None = None
    migration: MigrationMark | None = None

    @property
    def spread_group(self) -> str | None:
        """The requested group whose VMs are on different GPUs; None if `request_json` cannot be parsed."""
        return self.requested("spread_group", str)

    @property
    def labels(self) -> dict[str, str]:
        """The VM's labels by key; empty if there are none, or `request_json` cannot be parsed."""
        labels = self.request_fields.get("labels") if '"labels"' in self.request_json else None
        return {str(key): str(value) for key, value in labels.items()} if isinstance(labels, dict) else {}

    @property
    def owner(self) -> str | None:
        """The person or team that uses the VM; None if unknown."""
        return self.requested("owner", str)

    def requested(self, field: str, kind: type[AnyPlain]) -> AnyPlain | None:
        """Return a requested field of this type; a list of many VMs parses `request_json` only where it has it."""
        value = self.request_fields.get(field) if f'"{field}"' in self.request_json else None
        return value if isinstance(value, kind) else None

    @property
    def request_fields(self) -> dict[str, Any]:
        """The requested fields by name; empty if `request_json` cannot be parsed."""
        fields = parse_json(self.request_json)
        return fields if isinstance(fields, dict) else {}

    @property
    def reserve_while_running(self) -> bool:
        """Whether other VMs may take its slots while it is off; then only a claim or a device shows that it has one."""
        return self.reserve == "running"

    @property
    def always_reserves(self) -> bool:
        """Whether the slots of all its vGPUs are reserved, also while it is off."""
        return not self.reserve_while_running and not self.waiting_vgpus()

    def reserves_slot(self, vgpu: AssignedVgpu) -> bool:
        """Return whether the slot of one of its vGPUs is reserved, also while it is off."""
        return not self.reserve_while_running and not vgpu.waits_for_place

    def waiting_vgpus(self) -> tuple[AssignedVgpu, ...]:
        """Return the vGPUs that gave up their slots and wait for others."""
        return tuple(v for v in self.vgpus if v.waits_for_place)

    def adopted_vgpus(self) -> tuple[AssignedVgpu, ...]:
        """Return the vGPUs that another program made."""
        return tuple(v for v in self.vgpus if v.adopted)

    def data_disks(self) -> tuple[ManagedDisk, ...]:
        """Return the disks that may hold user data: no seed, and none that a refresh makes or leaves."""
        return tuple(d for d in self.disks if d.role is DiskRole.DISK)

    @property
    def prepared_disk(self) -> ManagedDisk | None:
        """What `prepare-vm` kept of the system disk; None: nothing."""
        return next((d for d in self.disks if d.role is DiskRole.PREPARED), None)

    @property
    def image(self) -> str | None:
        """The image that the system disk was made from, below what is prepared; None: it was made from none."""
        prepared = self.prepared_disk
        return next((d.image for d in (*((prepared,) if prepared else ()), *self.data_disks()) if d.image), None)

    def spare_disks(self) -> tuple[ManagedDisk, ...]:
        """Return the disks that a refresh makes or leaves."""
        return tuple(d for d in self.disks if d.role is DiskRole.SPARE)


class HostdevRef(Value):
    """A device of the host that a domain names: `carrier` is an mdev UUID (lower case) or a normalized PCI address.

    `kind`: "mdev" or "pci" for an element that libvirt knows, "text" for a device named only in QEMU's own arguments.
    `display`: its screen is in the VM's console.
    """

    kind: str
    carrier: str
    managed: bool
    alias: str | None = None
    display: bool = False


class DiskRef(Value):
    """A `<disk>` of a domain. `volume`: pool and volume name, where the domain names those instead of a path."""

    device: str
    target: str
    source: str | None
    format: str | None
    volume: tuple[str, str] | None = None


class Nic(Value):
    """A network card on a libvirt network or on a bridge of the host: requested, designed, or read from a domain.

    In a request None means: not requested. In a domain's cards neither `network` nor `bridge` is set for another kind,
    such as a VF as network card.
    """

    network: str | None = None
    bridge: str | None = None
    vlan: int | None = None
    model: str | None = None
    mac: str | None = None

    @property
    def text(self) -> str:
        """The card as a VM spec has it: `lan`, or `bridge=br0,vlan=30`."""
        given = {name: value for name in _NIC_FIELDS if (value := getattr(self, name)) is not None}
        return str(self.network) if list(given) == ["network"] else ",".join(f"{k}={v}" for k, v in given.items())

    @property
    def network_text(self) -> str:
        """The network or bridge alone, with its VLAN, as `agent: allow: networks` lists it."""
        return Nic(network=self.network, bridge=self.bridge, vlan=self.vlan).text

    @property
    def has_network(self) -> bool:
        """Whether it is on a libvirt network or a bridge."""
        return self.network is not None or self.bridge is not None

    def shown_like(self, request: Nic | None) -> Nic:
        """Return the card with only those of model and MAC address that a request names."""
        return replace(
            self,
            model=self.model if request is not None and request.model is not None else None,
            mac=self.mac if request is not None and request.mac is not None else None,
        )


_NIC_FIELDS = ("network", "bridge", "vlan", "model", "mac")


class Vm(Value):
    """One domain, read from libvirt's inactive (config) XML.

    `record` is set only if the record belongs to this VM on this host; a record copied from another VM or host is in
    `copied_record`. `has_unreadable_record`: this version cannot parse the record, perhaps a newer version's; vgpuctl
    shows it and never overwrites it. `has_unfinished_exchange`: that is because version 0.1 left an exchange of places
    in it. `unreadable_disks`: every file that such a record still names; only `path` and `base` of these disks are
    meaningful. `memory_nodes`: the NUMA nodes that its memory is bound to, empty when unbound. `pinned_cpus`: the CPUs
    that its vCPUs may run on, empty when they may run on any. `settings`: pairs of a field and its text, as
    `domain.settings` reads them. `nics`: in document order. `persistent` False: a transient domain, as after
    `virsh undefine`; it disappears when it stops. `backing_pairs`: pairs of a file and its backing file that libvirt's
    XML shows and the record does not. `stop_reason`: why it is off, in libvirt's words (virDomainShutoffReason):
    `shutdown` is the guest's, by itself or on request; None while it runs, and where libvirt does not know, as after a
    boot of the host. `live_carriers`: the carriers that the running domain has, None when it is off;
    `hostdevs` has those of the definition too. `render_node`: the device node by which QEMU draws for the guest
    (virtio-gpu with acceleration), None where it draws without a GPU, or leaves the choice of one to the host.
    """

    name: str
    uuid: str
    state: VmState
    memory_mib: int
    vcpus: int
    hostdevs: tuple[HostdevRef, ...] = ()
    disks: tuple[DiskRef, ...] = ()
    nics: tuple[Nic, ...] = ()
    firmware: str = "bios"
    record: VmRecord | None = None
    copied_record: VmRecord | None = None
    has_unreadable_record: bool = False
    has_unfinished_exchange: bool = False
    unreadable_disks: tuple[ManagedDisk, ...] = ()
    memory_nodes: frozenset[int] = frozenset()
    pinned_cpus: frozenset[int] = frozenset()
    settings: tuple[tuple[str, str], ...] = ()
    persistent: bool = True
    backing_pairs: tuple[tuple[str, str], ...] = ()
    stop_reason: str | None = None
    live_carriers: frozenset[str] | None = None
    render_node: str | None = None

    @property
    def move(self) -> MigrationMark | None:
        """Its move to or from another host, which goes on or was interrupted."""
        return None if self.record is None else self.record.migration

    @property
    def mac_addresses(self) -> tuple[str, ...]:
        """The MAC addresses of its network cards."""
        return tuple(nic.mac for nic in self.nics if nic.mac is not None)

    @property
    def has_display(self) -> bool:
        """Whether a vGPU shows its screen in the VM's console."""
        return any(hostdev.display for hostdev in self.hostdevs)

    def refers_to(self, carrier: str) -> bool:
        """Return whether its definition contains this carrier, except a slot that it had last and does not reserve."""
        record = self.record
        if record is not None and self.state in OFF_OR_UNKNOWN_STATES:
            unreserved = {v.carrier for v in record.vgpus if not record.reserves_slot(v)}
        else:
            unreserved = set()
        return carrier not in unreserved and any(h.carrier == carrier for h in self.hostdevs)


GPU_SETUP_CLAIM = "gpu set up"
"""The `vm` of a claim on a GPU that a command sets up. No VM of vgpuctl has such a name."""

HOST_VGPU_CLAIM_PREFIX = "vgpu "
"""The `vm` of a claim on a vGPU without a VM: this prefix, then the vGPU's name. No VM of vgpuctl has such a name."""


class ProcessId(Value):
    """A process that no later process can be mistaken for: pid, and start time in clock ticks since boot."""

    pid: int
    start_ticks: int


class Operation(Value):
    """One command or one API request: its id, and for people the process that carries it out and the command line."""

    id: str
    process: ProcessId
    command: str


class Claim(Value):
    """The file /run/vgpuctl/claims/<carrier>: who holds the carrier before the device exists.

    `type_id`: the driver's number of the type that the device gets; None when unknown. `placement_id`: the placement on
    a mixed-size GPU, None where the driver chooses. `spread_group`: the VM's group, needed while no definition has it.
    `leaving`: its operation removes vGPUs from the VM, so nobody may start the VM with the remaining ones. `operation`:
    the id of the operation that wrote it; None is no living operation. `process`, `command`: who that was, for people.
    `account`: that of the VM's record. `adopted`: as in `AssignedVgpu`.
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
    operation: str | None = None
    account: str | None = None
    adopted: bool = False

    @property
    def holder_text(self) -> str:
        """Who holds it, as text."""
        if self.vm == GPU_SETUP_CLAIM:
            return f"GPU {self.gpu}"
        name = self.vm.removeprefix(HOST_VGPU_CLAIM_PREFIX)
        return f"VM {name}" if name == self.vm else f"vGPU {name}"


class DrainedVm(Value):
    """The file /run/vgpuctl/drained/<uuid>: a VM that vgpuctl shut down temporarily and must start again.

    `gpu`: the GPU to set up; None when the VM itself is refreshed or moved. `run`: libvirt's id of the domain when the
    file was written; each start gives the domain another id. `until`: the deadline for the guest to power off, in
    seconds of the monotonic clock. `operation`: the id of the operation that shut it down.
    """

    vm_uuid: str
    gpu: str | None
    process: ProcessId
    run: str | None = None
    until: float = 0.0
    operation: str | None = None


class VmInProgress(Value):
    """The file /run/vgpuctl/working/<uuid>: an operation works on a VM that has no slot, so no claim shows it."""

    vm_uuid: str
    process: ProcessId
    operation: str | None = None


class UnfinishedFile(Value):
    """A temporary file that a process wrote next to its target and left there."""

    path: str
    process: ProcessId


class StuckWrite(Value):
    """A kernel write that outlived its deadline: /run/vgpuctl/stuck/<pid>."""

    process: ProcessId
    gpu: str
    path: str
    text: str
