# SPDX-License-Identifier: Apache-2.0
"""Mediated devices (mdev) of any vendor, with a PF or VF as parent: created and removed through sysfs, lost at reboot.

libvirt never creates an mdev for a VM: it opens /sys/bus/mdev/devices/<uuid>, which must exist at start. Writing
`create` is a plain write. Writing `remove` may block the writer uninterruptibly, for ever, if a VM holds the device
(kernel vfio_main.c). So vgpuctl looks for holders first, and a child process writes. `placement_id` places NVIDIA's
mdevs on a mixed-size GPU.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING
from uuid import NAMESPACE_URL, UUID, uuid5

from vgpuctl.backends.base import (
    ATTACH_COMMAND,
    GPU_MAKE_LOCK_SECONDS,
    REMOVE_DEADLINE_SECONDS,
    GpuBackend,
    LiveMoveVersions,
    MoveVgpu,
    hostdev_alias,
    move_to_placement,
    refuse_if_held,
    verify_params,
    verify_placement,
    write_error,
)
from vgpuctl.errors import InUse, NoCapacity, VerifyFailed
from vgpuctl.makers import maker_of_type
from vgpuctl.model.gpu import Backend, GpuMode
from vgpuctl.model.names import normalize_pci
from vgpuctl.model.request import DesignHostdev
from vgpuctl.model.vm import AssignedVgpu
from vgpuctl.ports.step import Removal, Step

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

MDEV_DEVICES = "/sys/bus/mdev/devices"
MAX_VGPU_INDEXES = 32
"""A VM has at most 16 vGPUs, and a vGPU added later takes the lowest free index: 16 more serve replacements."""
_NO_CAPACITY_ERRNOS = (errno.EIO, errno.EUSERS, errno.ENOSPC, errno.ENODEV)


def carrier_uuid(vm_uuid: str, index: int) -> str:
    """Return the UUID of a VM's mdev number `index`: a pure function, so its owner can always be proved."""
    try:
        namespace = UUID(vm_uuid)
    except ValueError:  # a domain's XML has an invalid UUID: the VM owns no device
        namespace = uuid5(NAMESPACE_URL, f"urn:vgpuctl:1:vm:{vm_uuid}")
    return str(uuid5(namespace, f"vgpuctl-{index}"))


def owns_carrier(vm_uuid: str, carrier: str) -> bool:
    """Return whether an mdev's UUID proves that it is the VM's; a UUID of another version needs no hash to say no."""
    is_name_based = carrier[14:15] == "5"  # RFC 9562: the 13th digit is the version
    return is_name_based and any(carrier == carrier_uuid(vm_uuid, index) for index in range(MAX_VGPU_INDEXES))


def parent_path(function: str) -> str:
    """Return the directory of an mdev parent: a PCI function, or another parent by its kernel name."""
    base = "/sys/bus/pci/devices" if normalize_pci(function) == function else "/sys/class/mdev_bus"
    return f"{base}/{function}"


def read_mdev(host: Host, uuid: str) -> tuple[str, str] | None:
    """Return the current (parent, type id) of an mdev from the kernel, or None if it does not exist."""
    try:
        parent = host.sysfs.readlink(f"{MDEV_DEVICES}/{uuid}").split("/")[-2]
        return parent, host.sysfs.readlink(f"{MDEV_DEVICES}/{uuid}/mdev_type").rpartition("/")[2]
    except FileNotFoundError:
        return None


class CreateMdev(Step):
    """Create one mdev, move it to its placement on a mixed-size GPU, and set its parameters."""

    vgpu: AssignedVgpu
    type_id: str

    def describe(self) -> str:
        placement = "" if self.vgpu.placement_id is None else f", placement {self.vgpu.placement_id}"
        return f"create vGPU {self.vgpu.profile} on {self.vgpu.function} (mdev {self.vgpu.carrier}{placement})"

    def perform(self, host: Host) -> None:
        """Write the UUID, then the placement, then the parameters."""
        if self.vgpu.placement_id is None:
            self._create(host)
        else:
            with host.claims.gpu_creation_lock(self.vgpu.gpu, GPU_MAKE_LOCK_SECONDS):
                self._create(host)
                move_to_placement(host, self.vgpu)
        if self.vgpu.params:
            path = f"{MDEV_DEVICES}/{self.vgpu.carrier}/nvidia/vgpu_params"
            try:
                host.sysfs.write(path, f"{self.vgpu.params}\n")
            except OSError as error:
                raise write_error(error, f"setting {self.vgpu.params} on {self.vgpu.carrier}", path) from error

    def _create(self, host: Host) -> None:
        path = f"{parent_path(self.vgpu.function)}/mdev_supported_types/{self.type_id}/create"
        try:
            host.sysfs.write(path, f"{self.vgpu.carrier}\n")
        except OSError as error:
            raise self._create_error(error, path) from error

    def _create_error(self, error: OSError, path: str) -> Exception:
        if error.errno == errno.EEXIST:
            return InUse(f"the mdev {self.vgpu.carrier} already exists on another device", carrier=self.vgpu.carrier)
        if error.errno in (*_NO_CAPACITY_ERRNOS, *maker_of_type(self.type_id).no_room_errnos):
            return NoCapacity(
                f"no room for {self.vgpu.profile} on {self.vgpu.gpu}: the driver refused {self.vgpu.function}",
                hint=f"vgpuctl explain {self.vgpu.profile}",
                gpu=self.vgpu.gpu,
                errno=error.errno,
                path=path,
            )
        return write_error(error, f"creating {self.vgpu.profile} on {self.vgpu.function}", path)

    def verify(self, host: Host) -> None:
        """Read the device's parent, type and placement back."""
        actual = read_mdev(host, self.vgpu.carrier)
        if actual != (self.vgpu.function, self.type_id):
            raise VerifyFailed(
                f"the vGPU {self.vgpu.carrier} was written but reads back as {actual}",
                hint="journalctl -k -n 20",
                wanted=[self.vgpu.function, self.type_id],
                actual=actual,
            )
        verify_placement(host, self.vgpu)
        verify_params(host, self.vgpu, f"{MDEV_DEVICES}/{self.vgpu.carrier}/nvidia/vgpu_params")

    def undo(self, host: Host) -> None:
        """Remove it if it still has this parent and this type."""
        if read_mdev(host, self.vgpu.carrier) == (self.vgpu.function, self.type_id):
            remove = RemoveMdev(self.vgpu)
            remove.perform(host)
            remove.verify(host)


class RemoveMdev(Removal):
    """Remove one mdev that nobody holds."""

    vgpu: AssignedVgpu

    def describe(self) -> str:
        return f"remove vGPU {self.vgpu.profile} from {self.vgpu.function} (mdev {self.vgpu.carrier})"

    def perform(self, host: Host) -> None:
        """Check for holders, then write `remove` in a child process. A device that is gone is no error."""
        device = f"{MDEV_DEVICES}/{self.vgpu.carrier}"
        if read_mdev(host, self.vgpu.carrier) is None:
            return
        refuse_if_held(host, self.vgpu.carrier, device)
        try:
            host.sysfs.write_uninterruptible(
                f"{device}/remove", "1\n", gpu=self.vgpu.gpu, deadline_seconds=REMOVE_DEADLINE_SECONDS
            )
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV):
                return
            raise write_error(error, f"removing vGPU {self.vgpu.carrier}", f"{device}/remove") from error

    def verify(self, host: Host) -> None:
        if read_mdev(host, self.vgpu.carrier) is not None:
            raise VerifyFailed(f"the vGPU {self.vgpu.carrier} was removed but still exists")


class MdevBackend(GpuBackend):
    """The mdev backends: `on_vfs` or on the GPU's own function."""

    mode = GpuMode.VGPU
    creates_devices = True
    carrier_has_uuid = True
    display_since = 5_010_000  # display= since 4.6, ramfb= since 5.10
    live_move = LiveMoveVersions(8_006_000, 8_001_000)

    def __init__(self, name: Backend) -> None:
        """On VFs the driver is one that may mix sizes, whether NVML says so or not."""
        self.name = name
        self.on_vfs = self.may_mix_sizes_unseen = name is Backend.MDEV_VF

    def accepts(self, other: GpuBackend) -> bool:
        """Accept every mdev: another driver may have it on VFs."""
        return other.carrier_has_uuid

    def carrier(self, function: str, vm_uuid: str, index: int) -> str:
        """Return the UUID of the VM's mdev."""
        return carrier_uuid(vm_uuid, index)

    def create_steps(self, vgpu: AssignedVgpu, type_id: str | None, gi_ids: tuple[int, ...] = ()) -> tuple[Step, ...]:
        """Return one create step."""
        return (CreateMdev(vgpu, type_id or ""),)

    def move_steps(self, vgpu: AssignedVgpu) -> tuple[Step, ...]:
        """Return one move step."""
        return (MoveVgpu(vgpu),)

    def remove_steps(self, vgpu: AssignedVgpu) -> tuple[Step, ...]:
        """Return one remove step."""
        return (RemoveMdev(vgpu),)

    def hostdev(self, vgpu: AssignedVgpu) -> DesignHostdev:
        """Refer to it by UUID; `managed` has no meaning for mdevs."""
        return DesignHostdev("mdev", vgpu.carrier, managed=False, alias=hostdev_alias(vgpu))

    def removal_commands(self, carrier: str) -> tuple[str, ...]:
        """Name mdevctl, which also knows what it defined, and the kernel's file."""
        return f"mdevctl stop -u {carrier}", f"echo 1 > {MDEV_DEVICES}/{carrier}/remove"

    def usage_commands(self, vgpu: AssignedVgpu) -> tuple[str, ...]:
        """Name the node device for virt-install: since libvirt 7.3 that is the mdev's UUID and its parent."""
        device = f"mdev_{vgpu.carrier}_{vgpu.function}".translate(str.maketrans("-:.", "___"))
        return ATTACH_COMMAND, f"virt-install --hostdev {device}"
