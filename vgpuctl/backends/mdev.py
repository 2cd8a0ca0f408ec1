# SPDX-License-Identifier: Apache-2.0
"""Mediated devices, on a PF or on a VF, of any maker: made and removed through sysfs, gone at reboot.

libvirt never makes an mdev for a VM: it opens /sys/bus/mdev/devices/<uuid>, which must exist at start. Writing
`create` is a plain write; removing may park the writer for ever when a VM holds the device (kernel
vfio_main.c), so holders are looked for first and a child process does the write. Where NVIDIA's is on a mixed-size GPU:
`placement`.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from vgpuctl.backends.base import REMOVE_DEADLINE_SECONDS, alias, check_params, refuse_if_held, write_failed
from vgpuctl.backends.placement import TURN_SECONDS, MoveVgpu, move, verify_place
from vgpuctl.errors import InUse, NoCapacity, VerifyFailed
from vgpuctl.model.address import normal_pci
from vgpuctl.model.gpu import Function, Gpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Step
from vgpuctl.model.vm import PromisedVgpu
from vgpuctl.model.wish import DesignHostdev
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.model.world import World

DEVICES = "/sys/bus/mdev/devices"
_NO_ROOM = (errno.EIO, errno.EUSERS, errno.ENOSPC, errno.ENODEV)


def parent_path(function: str) -> str:
    """Return the directory of an mdev parent: a PCI function or another parent by its kernel name."""
    base = "/sys/bus/pci/devices" if normal_pci(function) == function else "/sys/class/mdev_bus"
    return f"{base}/{function}"


def found_as(world: World, uuid: str) -> tuple[str, str] | None:
    """Return (parent, type id) of an mdev as the kernel has it now, or None when there is none."""
    try:
        parent = world.sysfs.readlink(f"{DEVICES}/{uuid}").split("/")[-2]
        return parent, world.sysfs.readlink(f"{DEVICES}/{uuid}/mdev_type").rpartition("/")[2]
    except FileNotFoundError:
        return None


class MakeMdev(Value):
    """Create one mdev, move it to its placement on a mixed-size GPU, and set its parameters."""

    vgpu: PromisedVgpu
    type_id: str

    def describe(self) -> str:
        """Say what is made and where."""
        place = "" if self.vgpu.placement_id is None else f", placement {self.vgpu.placement_id}"
        return f"make vGPU {self.vgpu.profile} on {self.vgpu.function} (mdev {self.vgpu.carrier}{place})"

    def perform(self, world: World) -> None:
        """Write the UUID, then the placement, then the parameters."""
        if self.vgpu.placement_id is None:
            self._create(world)
        else:
            with world.claims.turn(self.vgpu.gpu, TURN_SECONDS):
                self._create(world)
                move(world, self.vgpu)
        if self.vgpu.params:
            params = f"{DEVICES}/{self.vgpu.carrier}/nvidia/vgpu_params"
            try:
                world.sysfs.write(params, f"{self.vgpu.params}\n")
            except OSError as error:
                raise write_failed(error, f"setting {self.vgpu.params} on {self.vgpu.carrier}", params) from error

    def _create(self, world: World) -> None:
        path = f"{parent_path(self.vgpu.function)}/mdev_supported_types/{self.type_id}/create"
        try:
            world.sysfs.write(path, f"{self.vgpu.carrier}\n")
        except OSError as error:
            raise self._refusal(error, path) from error

    def _refusal(self, error: OSError, path: str) -> Exception:
        if error.errno == errno.EEXIST:
            return InUse(f"an mdev {self.vgpu.carrier} exists already elsewhere", carrier=self.vgpu.carrier)
        if error.errno in _NO_ROOM:
            return NoCapacity(
                f"no room for {self.vgpu.profile} on {self.vgpu.gpu}: the driver refused {self.vgpu.function}",
                hint=f"vgpuctl explain {self.vgpu.profile}",
                gpu=self.vgpu.gpu,
                errno=error.errno,
                path=path,
            )
        return write_failed(error, f"making {self.vgpu.profile} on {self.vgpu.function}", path)

    def verify(self, world: World) -> None:
        """Read the device's parent, type and placement back."""
        found = found_as(world, self.vgpu.carrier)
        if found != (self.vgpu.function, self.type_id):
            raise VerifyFailed(
                f"the vGPU {self.vgpu.carrier} was written but reads back as {found}",
                hint="journalctl -k -n 20",
                wanted=[self.vgpu.function, self.type_id],
                found=found,
            )
        verify_place(world, self.vgpu)
        check_params(world, self.vgpu, f"{DEVICES}/{self.vgpu.carrier}/nvidia/vgpu_params")

    def undo(self, world: World) -> None:
        """Remove it, if it still is on this parent with this type."""
        if found_as(world, self.vgpu.carrier) == (self.vgpu.function, self.type_id):
            remove = RemoveMdev(self.vgpu)
            remove.perform(world)
            remove.verify(world)


class RemoveMdev(Value):
    """Remove one mdev that nobody holds."""

    vgpu: PromisedVgpu

    def describe(self) -> str:
        """Say what goes."""
        return f"remove vGPU {self.vgpu.profile} from {self.vgpu.function} (mdev {self.vgpu.carrier})"

    def perform(self, world: World) -> None:
        """Write `remove` in a child, after looking for holders; a device that is gone is no error."""
        device = f"{DEVICES}/{self.vgpu.carrier}"
        if found_as(world, self.vgpu.carrier) is None:
            return
        refuse_if_held(world, self.vgpu.carrier, device)
        try:
            world.sysfs.write_parked(
                f"{device}/remove", "1\n", gpu=self.vgpu.gpu, deadline_seconds=REMOVE_DEADLINE_SECONDS
            )
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV):
                return
            raise write_failed(error, f"removing vGPU {self.vgpu.carrier}", f"{device}/remove") from error

    def verify(self, world: World) -> None:
        """See that it is gone."""
        if found_as(world, self.vgpu.carrier) is not None:
            raise VerifyFailed(f"the vGPU {self.vgpu.carrier} was removed but is still there")

    def undo(self, world: World) -> None:
        """Nothing: a removal is finished by reconcile, not taken back."""


class MdevKind:
    """The mdev backend."""

    def check(self, snapshot: Snapshot, gpu: Gpu, function: Function, *, force_console: bool) -> None:
        """Nothing beyond the placement rules: the type directory was there."""

    def make(self, vgpu: PromisedVgpu, type_id: str | None, instances: tuple[int, ...] = ()) -> tuple[Step, ...]:
        """One create."""
        return (MakeMdev(vgpu, type_id or ""),)

    def move(self, vgpu: PromisedVgpu) -> tuple[Step, ...]:
        """One move."""
        return (MoveVgpu(vgpu),)

    def remove(self, vgpu: PromisedVgpu) -> tuple[Step, ...]:
        """One remove."""
        return (RemoveMdev(vgpu),)

    def hostdev(self, vgpu: PromisedVgpu) -> DesignHostdev:
        """Refer by UUID; `managed` means nothing for mdevs."""
        return DesignHostdev("mdev", vgpu.carrier, managed=False, alias=alias(vgpu))
