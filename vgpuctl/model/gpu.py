# SPDX-License-Identifier: Apache-2.0
"""GPUs as observed: which devices can carry vGPUs, which types the driver offers, which devices exist.

Nothing here comes from a shipped table: names, sizes and limits are what the running driver reports. None means
"unknown", never zero.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from vgpuctl.model.numbers import parse_integer
from vgpuctl.model.vgpu_scheduler import GpuScheduler, SchedulerSpec, SchedulerState
from vgpuctl.value import EMPTY_MAPPING, Value


class PlacementSpan(Value):
    """Consecutive memory slices of a GPU: the first one and their number."""

    start: int
    size: int

    def overlaps(self, other: PlacementSpan) -> bool:
        """Return whether the two spans share a slice."""
        return self.start < other.start + other.size and other.start < self.start + self.size

    def __str__(self) -> str:
        """Return it as nvidia-smi prints it: `start:size`."""
        return f"{self.start}:{self.size}"


class GiProfile(Value):
    """A GPU instance profile that a GPU offers.

    `profile_id`: the id that creates an instance (`nvidia-smi mig -cgi`), not NVML's index. `name`: as in `1g.10gb` or
    `1g.24gb+gfx`. `max_instances`: how many the GPU can have. `placements`: every possible placement, also those that
    are taken now.
    """

    profile_id: int
    name: str
    compute_slices: int
    memory_mib: int
    max_instances: int
    placements: tuple[PlacementSpan, ...]


class GpuInstance(Value):
    """An existing GPU instance. `gi_id`: the driver's number for it; another instance may have it after a reboot."""

    gi_id: int
    profile_id: int
    placement: PlacementSpan


class MigState(Value):
    """MIG of a GPU that supports it. `pending_enabled`: whether MIG is on after the next reset; mostly the same."""

    enabled: bool
    pending_enabled: bool
    profiles: tuple[GiProfile, ...] = ()
    instances: tuple[GpuInstance, ...] = ()

    def find_profile(self, profile_id: int) -> GiProfile | None:
        """Return the profile with that id."""
        return next((p for p in self.profiles if p.profile_id == profile_id), None)


class MigSpec(Value):
    """The MIG layout that a user requests. `instances`: GPU instance profiles by name or id, one for each instance.

    `vgpus`: vGPU profiles, and how many of each must fit; vgpuctl derives the instances from them. Both empty: MIG off.
    """

    instances: tuple[str, ...] = ()
    vgpus: tuple[tuple[str, int], ...] = ()

    @property
    def is_requested(self) -> bool:
        """Whether MIG is requested."""
        return bool(self.instances or self.vgpus)


_NO_PLACEMENT = 0xFFFF
"""What the driver shows for "no placement" (NVML_INVALID_VGPU_PLACEMENT_ID); for "no instance" it is larger."""


def parse_driver_id(text: str) -> int | None:
    """Return the placement id or GPU instance id in a driver's file; None when there is none or it is no number."""
    number = parse_integer(text)
    return number if number is not None and 0 <= number < _NO_PLACEMENT else None


DRI = "/dev/dri"
DRI_BY_PATH = f"{DRI}/by-path"
"""Where udev links the nodes of GPUs by their addresses (systemd, 60-drm.rules)."""
_RENDER_LINK = re.compile(rf"{DRI_BY_PATH}/(?:pci|platform)-([^/]+)-render")

NVIDIA_VENDOR_ID = "10de"
"""NVIDIA's PCI vendor id."""


class Backend(StrEnum):
    """The kernel interface through which a GPU is given to VMs. The two mdev backends share one implementation."""

    MDEV_PF = "mdev-pf"
    MDEV_VF = "mdev-vf"
    VENDOR_VF = "vendor-vf"
    SRIOV_VF = "sriov-vf"
    PASSTHROUGH = "passthrough"


WHOLE_DEVICE_BACKENDS = (Backend.SRIOV_VF, Backend.PASSTHROUGH)
"""The backends that give an existing device to a VM; there is no vGPU to create."""


class GpuMode(StrEnum):
    """The use that a GPU is set up for."""

    VGPU = "vgpu"
    MIG_VGPU = "mig-vgpu"
    SRIOV = "sriov"
    PASSTHROUGH = "passthrough"
    UNMANAGED = "unmanaged"


MODES_WITHOUT_VFS = (GpuMode.PASSTHROUGH, GpuMode.UNMANAGED)
"""Modes in which disabled VFs are correct."""


class Ownership(StrEnum):
    """Who owns a device: vgpuctl (managed), somebody else (unmanaged), or a vgpuctl process that died (leaked)."""

    MANAGED = "managed"
    UNMANAGED = "unmanaged"
    LEAKED = "leaked"


class VgpuType(Value):
    """One vGPU type of one GPU, as its driver describes it.

    `type_id`: the id for the kernel interface: the type directory's name (`nvidia-468`) for mdev, the decimal number
    (`468`) for vendor-specific VFIO. A driver update may change it, so records keep `profile` instead.
    `pool_units`: what one vGPU takes from the pool that all types of its parent share, where the driver has and reports
    such a pool. `gi_profile_id`: the GPU instance profile that a MIG-backed type runs in, None for a time-sliced type;
    `max_per_gi`: how many vGPUs of it fit in one instance. `placement_ids`: every placement id that the driver supports
    for it on a heterogeneous (mixed-size) GPU, taken or not; `placement_size`: how much of the GPU it covers from
    there, in the unit of those ids.
    """

    type_id: str
    name: str
    profile: str
    framebuffer_mib: int | None = None
    max_per_gpu: int | None = None
    pool_units: int | None = None
    gi_profile_id: int | None = None
    max_per_gi: int | None = None
    placement_ids: tuple[int, ...] | None = None
    placement_size: int | None = None


class Mdev(Value):
    """An existing mdev: /sys/bus/mdev/devices/<uuid>. `placement_id`: its placement on a mixed-size GPU, if known."""

    uuid: str
    type_id: str
    placement_id: int | None = None


class GpuFunction(Value):
    """A device that can carry vGPUs or be one: a PF, a VF or another mdev parent.

    `available_instances` maps type ids to how many vGPUs the driver can create here now (mdev: available_instances;
    vendor-vf: 1 for each listed type). None: the types were not read. `placement_id` and `gi_id` belong to the vGPU on
    a vendor-vf; None where the driver has no file for them, or the file shows no value now. `framebuffer_mib`: the
    GPU memory of a plain VF, where the driver reports it.
    """

    address: str
    path: str
    driver: str | None = None
    iommu_group: int | None = None
    has_vfio_dev: bool = False
    current_type: str | None = None
    available_instances: Mapping[str, int] | None = None
    mdevs: tuple[Mdev, ...] = ()
    problem: str | None = None
    placement_id: int | None = None
    gi_id: int | None = None
    framebuffer_mib: int | None = None


class Gpu(Value):
    """A device that carries vGPUs or is passed through.

    `functions`: the possible parents or carriers in the kernel's numbering: the device itself for mdev-pf, the VFs for
    mdev-vf, vendor-vf and sriov-vf, every endpoint of the slot for passthrough. `console_reasons`: why the host's
    console may be on it. `group_members`: the other endpoints of its IOMMU group with their drivers.
    `desired_mode`: its mode in host.yaml, None when host.yaml has none. `cordoned`: nothing new is placed on it.
    `has_single_type`: its driver is known to accept vGPUs of one type at a time. `scheduler`: what its driver reports;
    `desired_scheduler`: what host.yaml configures. `allowed_profiles`: the only profiles that host.yaml allows on it,
    None: all. `reserved_for`: the patterns of the VM names that it is reserved for. `reason`: what host.yaml says to
    people about it.
    `mig` None: it has no MIG, or that is unknown. `mixed_size`: whether vGPUs of several sizes may share it (NVML's
    heterogeneous mode), None where it has no such mode or that is unknown. `gi_schedulers`: the scheduler of each GPU
    instance by its id, where instances have their own (GB20x). `has_fixed_placements`: with mixed sizes or MIG, the
    driver has no file that shows or changes a vGPU's placement. `desired_mig`, `desired_mixed_size`: what
    host.yaml configures, None for nothing. `pci_path`: the root bus and the bridges above it, from the top, as in
    /sys/devices; empty where the kernel does not show them. `nvlink_peers`: the GPUs at the other ends of its NVLinks,
    None where that is not known: NVML reports them only while NVIDIA's driver has the GPU. `is_lost`: NVML answers, but
    not for this GPU, as when it has fallen off the bus. `uuid`: NVIDIA's name for this very board, such as
    GPU-5a1b…, None where NVML does not have the GPU now. `render_node`: the device node through which programs of the
    host draw and compute on it, such as /dev/dri/renderD128; None where its driver has none.
    `compute_partition`, `memory_partition`: the partition modes of an AMD GPU, like SPX and NPS1, None where it has
    none or they are not known; the desired ones are host.yaml's. `has_vf_memory`: the memory of its plain VFs can
    be set; `desired_vf_memory_mib`: what host.yaml configures for each.
    """

    address: str
    path: str
    model: str
    driver: str | None
    backend: Backend | None
    mode: GpuMode
    vendor_id: str | None = None
    device_id: str | None = None
    framebuffer_mib: int | None = None
    numa_node: int | None = None
    iommu_group: int | None = None
    vfs_total: int = 0
    vfs_enabled: int = 0
    functions: tuple[GpuFunction, ...] = ()
    types: tuple[VgpuType, ...] = ()
    console_reasons: tuple[str, ...] = ()
    group_members: tuple[IommuGroupMember, ...] = ()
    is_display_class: bool = True
    problems: tuple[str, ...] = ()
    desired_mode: GpuMode | None = None
    cordoned: bool = False
    has_single_type: bool = False
    scheduler: GpuScheduler | None = None
    desired_scheduler: SchedulerSpec | None = None
    allowed_profiles: tuple[str, ...] | None = None
    reserved_for: tuple[str, ...] = ()
    mig: MigState | None = None
    mixed_size: bool | None = None
    has_fixed_placements: bool = False
    gi_schedulers: Mapping[int, SchedulerState] = EMPTY_MAPPING
    desired_mig: MigSpec | None = None
    desired_mixed_size: bool | None = None
    pci_path: tuple[str, ...] = ()
    nvlink_peers: tuple[str, ...] | None = None
    is_lost: bool = False
    uuid: str | None = None
    reason: str | None = None
    render_node: str | None = None
    compute_partition: str | None = None
    memory_partition: str | None = None
    desired_compute_partition: str | None = None
    desired_memory_partition: str | None = None
    has_vf_memory: bool = False
    desired_vf_memory_mib: int | None = None

    @property
    def render_paths(self) -> tuple[str, ...]:
        """The names of its render node: first udev's link, which stays over boots."""
        bus = "pci" if self.vendor_id else "platform"
        return () if self.render_node is None else (f"{DRI_BY_PATH}/{bus}-{self.address}-render", self.render_node)

    @property
    def whole_function(self) -> GpuFunction:
        """The GPU's own function, also while VFs are on: its functions are then only the VFs."""
        function = self.find_function(self.address)
        return function or GpuFunction(self.address, self.path, iommu_group=self.iommu_group)

    @property
    def settable_mode(self) -> GpuMode:
        """Its mode as set-mode and host.yaml name it: MIG is a setting of mode vgpu there."""
        return GpuMode.VGPU if self.mode is GpuMode.MIG_VGPU else self.mode

    @property
    def lost_text(self) -> str:
        """What is wrong with a GPU that its driver lost, as a clause; "" if it is not lost."""
        return "its driver lost it: NVML answers, but not for this GPU; vgpuctl doctor nvml" if self.is_lost else ""

    @property
    def pci_id(self) -> str | None:
        """Its vendor and device id, such as `10de:26b9`; None if it is no PCI device."""
        return f"{self.vendor_id}:{self.device_id}" if self.vendor_id else None

    @property
    def pcie_switch(self) -> str | None:
        """The upstream port of the PCIe switch that it is behind; None directly below a root port, or not known.

        What is above a device's own port: the upstream port of a switch, or the root bus.
        """
        return self.pci_path[-2] if len(self.pci_path) > 2 else None

    def has_model_name(self, name: str) -> bool:
        """Return whether `name` is the model's name, words of it, a word without its memory suffix, or its PCI id."""
        return is_model_name(name, self.model, self.pci_id)

    @property
    def accepts_placements(self) -> bool:
        """Whether vgpuctl chooses a vGPU's placement on this GPU, as far as is known."""
        return bool(self.mixed_size) and not self.has_fixed_placements

    @property
    def accepts_gpu_instances(self) -> bool:
        """Whether vgpuctl chooses in which GPU instance of its profile a vGPU runs, as far as is known."""
        mig_on = self.mig is not None and self.mig.enabled
        return mig_on and not self.has_fixed_placements

    def find_type(self, type_id: str) -> VgpuType | None:
        """Return this GPU's type with that id."""
        return next((t for t in self.types if t.type_id == type_id), None)

    def find_function(self, address: str) -> GpuFunction | None:
        """Return this GPU's function with that address."""
        return next((f for f in self.functions if f.address == address), None)


def address_of_render_link(path: str | None) -> str | None:
    """Return the address of the GPU that udev's link to a render node names; None for another path."""
    match = _RENDER_LINK.fullmatch(path or "")
    return match and match[1]


def is_model_name(name: str, model: str, pci_id: str | None) -> bool:
    """Return whether `name` is a model's name, words of it, a word without its memory suffix, or its PCI id."""
    if name.casefold() == pci_id:
        return True
    words = model.casefold().replace("[", " ").replace("]", " ").split()
    name_words = name.casefold().replace("[", " ").replace("]", " ").split()
    word_runs = (words[n : n + len(name_words)] for n in range(len(words)))
    return bool(name_words) and (name_words in word_runs or name_words in [[word.split("-")[0]] for word in words])


class IommuGroupMember(Value):
    """An endpoint that shares the IOMMU group of a GPU."""

    address: str
    driver: str | None
    same_slot: bool


class Vgpu(Value):
    """A carrier that is taken: by an existing device, by a VM's record, by a claim, or by several of these.

    `carrier`: the mdev's UUID, or the address of the VF or function. `present`: the device exists now (for sriov-vf and
    passthrough: the function). `needs_device`: the device of a complete VM is missing, as after a reboot; the VM's
    next start creates it. `idle`: its VM is off, reserves nothing while it is off, and has not released this vGPU.
    `reason`: why a device is leaked or idle. `name`: the name of a vGPU that host.yaml keeps without a VM; then `vm` is
    the VM that refers to it, if any. `placement_id`: its current or intended placement on a mixed-size GPU;
    `target_placement_id`: the intended placement while it has another one, as just after its creation.
    `gi_id`: the GPU instance that it runs in, None without MIG or where the driver does not report it. `command`: the
    command that sets up the whole GPU, or was killed while doing so; then there is no VM. `spread_group`: the group of
    its VM; the VMs of a group are on different GPUs. `attached`: whether its running VM has it, None while that is off
    or unknown. `other_vms`: the names of other VMs that name this carrier too, such as a clone of its VM.
    """

    carrier: str
    gpu: str
    function: str
    owner: Ownership
    present: bool
    backend: Backend | None = None
    type_id: str | None = None
    profile: str | None = None
    framebuffer_mib: int | None = None
    vm: str | None = None
    vm_uuid: str | None = None
    reason: str | None = None
    needs_device: bool = False
    idle: bool = False
    name: str | None = None
    placement_id: int | None = None
    target_placement_id: int | None = None
    gi_id: int | None = None
    command: str | None = None
    spread_group: str | None = None
    attached: bool | None = None
    other_vms: tuple[str, ...] = ()

    @property
    def holder_text(self) -> str:
        """Who holds it, as text: the VM, the name in host.yaml, the command, or else the owner and the carrier."""
        if self.command is not None:
            return f"'{self.command}'"
        if self.vm is None and self.name is not None:
            return f"vGPU {self.name}"
        return self.vm or f"{self.owner} {self.carrier}"
