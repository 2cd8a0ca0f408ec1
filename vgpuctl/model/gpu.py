# SPDX-License-Identifier: Apache-2.0
"""GPUs as observed: what carries vGPUs, which types the driver offers, which devices exist.

Nothing here is computed from a shipped table: names, sizes and limits are what the running driver says, and
None means "not known", never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from vgpuctl.model.partition import Mig, MigSpec
from vgpuctl.model.scheduler import GpuScheduler, SchedulerSpec, SchedulerState
from vgpuctl.value import NOTHING, Value

NVIDIA = "10de"
"""NVIDIA's PCI vendor id."""


class Backend(StrEnum):
    """What a GPU offers. The two mdev kinds share one implementation."""

    MDEV_PF = "mdev-pf"
    MDEV_VF = "mdev-vf"
    VENDOR_VF = "vendor-vf"
    SRIOV_VF = "sriov-vf"
    PASSTHROUGH = "passthrough"


MDEV = (Backend.MDEV_PF, Backend.MDEV_VF)
"""What carries mediated devices."""

WHOLE = (Backend.SRIOV_VF, Backend.PASSTHROUGH)
"""What is given to a VM as it is: there is nothing to make."""


class Mode(StrEnum):
    """What a GPU is set up for."""

    VGPU = "vgpu"
    MIG_VGPU = "mig-vgpu"
    SRIOV = "sriov"
    PASSTHROUGH = "passthrough"
    UNMANAGED = "unmanaged"


NOT_FOR_VGPUS = (Mode.PASSTHROUGH, Mode.UNMANAGED)
"""Modes in which VFs that are off are as they should be."""


class Owner(StrEnum):
    """Whose a device is: a VM's that vgpuctl made, somebody else's, or left by a vgpuctl that died."""

    OURS = "ours"
    FOREIGN = "foreign"
    LEAKED = "leaked"


class VgpuType(Value):
    """One vGPU type of one GPU, as its driver describes it.

    `type_id` is what the kernel interface wants: the type directory's name (`nvidia-468`) for mdev, the
    decimal number (`468`) for vendor-specific VFIO. It may change with a driver update: `profile` is the record.
    `units`: what one takes of the pool that all types of its parent share, where the driver has one and tells.
    `gi_profile_id`: the GPU instance profile that a MIG-backed type runs in, None for a time-sliced one; `max_per_gi`
    how many of it one instance takes. `placement_ids`: where one may be on a mixed-size GPU, every id that the driver
    supports, taken or not; `placement_size`: how much of the GPU it covers from there, in the unit of those ids.
    """

    type_id: str
    name: str
    profile: str
    framebuffer_mib: int | None = None
    max_per_gpu: int | None = None
    units: int | None = None
    gi_profile_id: int | None = None
    max_per_gi: int | None = None
    placement_ids: tuple[int, ...] | None = None
    placement_size: int | None = None


class Mdev(Value):
    """An mdev that exists: /sys/bus/mdev/devices/<uuid>. `placement_id`: where it is on a mixed-size GPU, if told."""

    uuid: str
    type_id: str
    placement_id: int | None = None


class Function(Value):
    """A device that can carry vGPUs, or be one: a PF, a VF or another mdev parent.

    `available` maps type ids to how many the driver says can be made here now (mdev: available_instances;
    vendor-vf: 1 for each listed type). None: the types were not read. `placement_id` and `gi_id` are those of the vGPU
    on a vendor-vf, None where the driver has no file for them, or none now.
    """

    address: str
    path: str
    driver: str | None = None
    iommu_group: int | None = None
    vfio_dev: bool = False
    current_type: str | None = None
    available: Mapping[str, int] | None = None
    mdevs: tuple[Mdev, ...] = ()
    problem: str | None = None
    placement_id: int | None = None
    gi_id: int | None = None


class Gpu(Value):
    """A device that carries vGPUs or is passed through.

    `functions` are the possible parents or carriers in the order the kernel numbers them: the device itself
    for mdev-pf, the VFs for mdev-vf, vendor-vf and sriov-vf, every endpoint of the slot for passthrough.
    `console` lists the reasons why the host's console may be on it; `group_members` the other endpoints of its
    IOMMU group with their drivers. `desired` is the mode that host.yaml gives it, None when it says nothing;
    `cordoned` that nothing new is placed on it. `one_type`: its driver is known to take vGPUs of one type at a time.
    `scheduler` is what NVML says, `desired_scheduler` what host.yaml asks for. `allowed_profiles` are the only ones
    that host.yaml lets be placed on it, None: all; `reserved_for` the patterns of VMs' names that it is kept for.
    `mig` None: it has no MIG, or that is not known; `mixed_size`: whether vGPUs of several sizes may be on it (NVML's
    heterogeneous mode), None where it has no such mode or that is not known. `gi_schedulers`: what runs in each GPU
    instance by its id, where those have schedulers of their own (GB20x). `fixed_places`: a vGPU is there, and its
    driver has no file that says or changes where, with mixed sizes or MIG. `desired_mig`, `desired_mixed_size`: what
    host.yaml asks for, None for nothing.
    """

    address: str
    path: str
    model: str
    driver: str | None
    backend: Backend | None
    mode: Mode
    vendor_id: str | None = None
    device_id: str | None = None
    framebuffer_mib: int | None = None
    numa_node: int | None = None
    iommu_group: int | None = None
    vfs_total: int = 0
    vfs_enabled: int = 0
    functions: tuple[Function, ...] = ()
    types: tuple[VgpuType, ...] = ()
    console: tuple[str, ...] = ()
    group_members: tuple[GroupMember, ...] = ()
    display_class: bool = True
    problems: tuple[str, ...] = ()
    desired: Mode | None = None
    cordoned: bool = False
    one_type: bool = False
    scheduler: GpuScheduler | None = None
    desired_scheduler: SchedulerSpec | None = None
    allowed_profiles: tuple[str, ...] | None = None
    reserved_for: tuple[str, ...] = ()
    mig: Mig | None = None
    mixed_size: bool | None = None
    fixed_places: bool = False
    gi_schedulers: Mapping[int, SchedulerState] = NOTHING
    desired_mig: MigSpec | None = None
    desired_mixed_size: bool | None = None

    def called(self, words: str) -> bool:
        """Say whether a model is called so: by its name, by words of it in a row, or one without its memory suffix."""
        has = self.model.casefold().replace("[", " ").replace("]", " ").split()
        wanted = words.casefold().replace("[", " ").replace("]", " ").split()
        rows = (has[n : n + len(wanted)] for n in range(len(has)))
        return bool(wanted) and (wanted in rows or wanted in [[name.split("-")[0]] for name in has])

    @property
    def nvidia_driver(self) -> bool:
        """Whether it is NVIDIA's GPU, with NVIDIA's driver."""
        return self.vendor_id == NVIDIA and self.driver == "nvidia"

    @property
    def chooses_places(self) -> bool:
        """Whether vgpuctl chooses where on this GPU a vGPU goes, as far as is known."""
        own = self.backend in (Backend.MDEV_VF, Backend.VENDOR_VF)
        return bool(self.mixed_size) and own and not self.fixed_places

    @property
    def chooses_instances(self) -> bool:
        """Whether vgpuctl chooses in which GPU instance of its profile a vGPU runs, as far as is known."""
        on = self.mig is not None and self.mig.enabled
        return on and self.backend is Backend.VENDOR_VF and not self.fixed_places

    def type_of(self, type_id: str) -> VgpuType | None:
        """Return this GPU's type with that id."""
        return next((t for t in self.types if t.type_id == type_id), None)

    def function_at(self, address: str) -> Function | None:
        """Return this GPU's function with that address."""
        return next((f for f in self.functions if f.address == address), None)


class GroupMember(Value):
    """An endpoint that shares the IOMMU group of a GPU."""

    address: str
    driver: str | None
    same_slot: bool


class Vgpu(Value):
    """A carrier that is taken: by a device that exists, by a promise, by a claim, or by several of these.

    `carrier` is the mdev's UUID, or the address of the VF or function. `present` says that the device is
    there now (for sriov-vf and passthrough: that a VM refers to it). `awaited`: a finished VM's device is missing, as
    after a reboot, and is made at its next start. `idle`: its VM reserves nothing while it is off, is off, and has not
    given this back. `reason` says why a device is leaked or idle. `name` is that of a vGPU which host.yaml keeps
    without a VM: then `vm` is the VM that refers to it, if any does. `placement_id`: where it is on a mixed-size GPU,
    or is to be; `due_placement_id`: where it is to be when it is somewhere else, as in the moment after it was made.
    `gi_id`: the GPU instance that it runs in, None without MIG and where the driver does not tell. `command`: the one
    that sets the whole GPU up, or was killed while it did so; then there is no VM. `spread_group`: that of its VM,
    whose VMs are on different GPUs.
    """

    carrier: str
    gpu: str
    function: str
    owner: Owner
    present: bool
    backend: Backend | None = None
    type_id: str | None = None
    profile: str | None = None
    framebuffer_mib: int | None = None
    vm: str | None = None
    vm_uuid: str | None = None
    reason: str | None = None
    awaited: bool = False
    idle: bool = False
    name: str | None = None
    placement_id: int | None = None
    due_placement_id: int | None = None
    gi_id: int | None = None
    command: str | None = None
    spread_group: str | None = None

    @property
    def holder(self) -> str:
        """Who has it, in words: the VM, the name in host.yaml, the command, or else whose it is and the carrier."""
        if self.command is not None:
            return f"'{self.command}'"
        if self.vm is None and self.name is not None:
            return f"vGPU {self.name}"
        return self.vm or f"{self.owner} {self.carrier}"
