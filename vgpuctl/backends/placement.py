# SPDX-License-Identifier: Apache-2.0
"""Where a vGPU is: NVIDIA's file `placement_id` of a VF and of an mdev, for mixed sizes; and a VF's `gpu_instance_id`.

The driver puts a new vGPU at the first of its type's placements that is free; a write moves it until its VM starts. For
that moment it is where another one may have to go: so who makes one there waits for a turn on the GPU, and moves it
before that ends. A GPU without mixed sizes shows 65535 (VF) or "Not Applicable" (mdev); older drivers have no file.
Errno of a write: EIO the placement cannot be had, EPERM a VM uses the vGPU, ENXIO no vGPU. With MIG the driver takes
the lowest GPU instance that has room, and `gpu_instance_id` moves a vGPU to another one with the same errnos.

Sources: kernel_vgpu_mgr.c of NVIDIA's open kernel modules (kvgpumgrCreateRequestVgpu, kvgpumgrSetPlacementId);
gentlemanautomaton/machina, which reads and writes the file of mdevs.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from vgpuctl.backends.base import write_failed
from vgpuctl.errors import DeviceFailed, NoCapacity, VerifyFailed
from vgpuctl.model.gpu import MDEV
from vgpuctl.model.partition import shown_number
from vgpuctl.model.vm import PromisedVgpu
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.model.world import World

TURN_SECONDS = 15.0


def file_of(vgpu: PromisedVgpu) -> str:
    """Return the path of the file."""
    bus = "mdev" if vgpu.backend in MDEV else "pci"
    return f"/sys/bus/{bus}/devices/{vgpu.carrier}/nvidia/placement_id"


def _shown(world: World, path: str, carrier: str) -> str | None:
    """Return what a file of a vGPU that is made shows; None where the driver has no such file.

    Raises:
        DeviceFailed: it cannot be read.
    """
    try:
        return world.sysfs.read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, str(error.errno))
        raise DeviceFailed(
            f"where {carrier} is cannot be read: {error.strerror or error} ({name}) reading {path}",
            hint="the kernel log says more: journalctl -k -n 20",
            errno=error.errno,
            path=path,
        ) from error


def move(world: World, vgpu: PromisedVgpu) -> None:
    """Write the placement, unless the vGPU is there, or has none that could be written.

    A GPU that shows none may still take one: some drivers show an mdev's only while a VM uses it. Where it refuses, it
    has no mixed sizes now.
    """
    place, path = vgpu.placement_id, file_of(vgpu)
    text = _shown(world, path, vgpu.carrier) if place is not None else None
    now = shown_number(text or "")
    if text is None or place == now:
        return
    try:
        world.sysfs.write(path, f"{place}\n")
    except OSError as error:
        if error.errno != errno.EIO:
            raise write_failed(error, f"moving {vgpu.carrier} to placement {place}", path) from error
        if now is None:
            return
        raise NoCapacity(
            f"no room for {vgpu.profile} at placement {place} of {vgpu.gpu}: the driver refused to move "
            f"{vgpu.carrier} there from placement {now}",
            hint=f"vgpuctl show-gpu {vgpu.gpu} tells who is where",
            gpu=vgpu.gpu,
            placement_id=place,
            errno=error.errno,
            path=path,
        ) from error


def move_into(world: World, vgpu: PromisedVgpu, instances: tuple[int, ...]) -> None:
    """Move a vGPU that was made a moment ago into the first of these GPU instances that takes it.

    An instance that somebody filled meanwhile refuses it (EIO), and the next one is tried. Where none takes it, or the
    driver has no file for it, it stays where the driver put it.

    Raises:
        DeviceFailed: the file cannot be read or written.
        VerifyFailed: it was moved, and is elsewhere.
    """
    path = f"{file_of(vgpu).rpartition('/')[0]}/gpu_instance_id"
    for number in instances:
        text = _shown(world, path, vgpu.carrier)
        if text is None or shown_number(text) == number:
            return
        try:
            world.sysfs.write(path, f"{number}\n")
        except OSError as error:
            if error.errno == errno.EIO:
                continue
            raise write_failed(error, f"moving {vgpu.carrier} to GPU instance {number}", path) from error
        found = shown_number(_shown(world, path, vgpu.carrier) or "")
        if found != number:
            raise VerifyFailed(
                f"{vgpu.carrier} was moved to GPU instance {number} but reads back {found}",
                hint="journalctl -k -n 20",
                wanted=number,
                found=found,
            )
        return


def verify_place(world: World, vgpu: PromisedVgpu) -> None:
    """Read the placement back.

    Raises:
        VerifyFailed: it is another one.
    """
    place = None if vgpu.placement_id is None else shown_number(_shown(world, file_of(vgpu), vgpu.carrier) or "")
    if place not in (None, vgpu.placement_id):
        raise VerifyFailed(
            f"{vgpu.carrier} was moved to placement {vgpu.placement_id} but reads back {place}",
            hint="journalctl -k -n 20",
            wanted=vgpu.placement_id,
            found=place,
        )


class MoveVgpu(Value):
    """Move a vGPU that is made, and in no running VM, to its placement: who made it was killed before it did so."""

    vgpu: PromisedVgpu

    def describe(self) -> str:
        """Say what is moved, and where to."""
        return f"move vGPU {self.vgpu.profile} on {self.vgpu.function} to placement {self.vgpu.placement_id}"

    def perform(self, world: World) -> None:
        """Write the placement."""
        if self.vgpu.placement_id is not None:
            with world.claims.turn(self.vgpu.gpu, TURN_SECONDS):
                move(world, self.vgpu)

    def verify(self, world: World) -> None:
        """Read it back."""
        verify_place(world, self.vgpu)

    def undo(self, world: World) -> None:
        """Nothing: where it is now its record says that it is."""
