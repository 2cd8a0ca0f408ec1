# SPDX-License-Identifier: Apache-2.0
"""A vGPU's position: NVIDIA's file `placement_id` of a VF or mdev (mixed sizes), and a VF's `gpu_instance_id` (MIG).

The driver puts a new vGPU at the first free placement of its type. Until its VM starts, a write moves it. Before the
move it may occupy the placement of another vGPU: so each command takes the GPU's make lock to create and move a vGPU.
A GPU instance is in neither claim nor record: its number may change at a boot.
A GPU without mixed sizes shows 65535 (VF) or "Not Applicable" (mdev); older drivers have no file.
Errno of a write: EIO placement not available, EPERM a VM uses the vGPU, ENXIO no vGPU. With MIG the driver takes the
lowest GPU instance with room; a write to `gpu_instance_id` moves the vGPU to another one, with the same errnos.

Sources: kernel_vgpu_mgr.c of NVIDIA's open kernel modules (kvgpumgrCreateRequestVgpu, kvgpumgrSetPlacementId);
gentlemanautomaton/machina, which reads and writes the file of mdevs.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from vgpuctl.backends.base import write_error
from vgpuctl.errors import DeviceFailed, NoCapacity, VerifyFailed
from vgpuctl.model.gpu import Backend, parse_driver_id
from vgpuctl.model.vm import AssignedVgpu
from vgpuctl.ports.step import Step

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

GPU_MAKE_LOCK_SECONDS = 15.0


def placement_path(vgpu: AssignedVgpu) -> str:
    """Return the path of the vGPU's `placement_id`."""
    bus = "mdev" if vgpu.backend in (Backend.MDEV_PF, Backend.MDEV_VF) else "pci"
    return f"/sys/bus/{bus}/devices/{vgpu.carrier}/nvidia/placement_id"


def _read_attribute(host: Host, path: str, carrier: str) -> str | None:
    """Return the text of a file of an existing vGPU; None if the driver has no such file.

    Raises:
        DeviceFailed: it cannot be read.
    """
    try:
        return host.sysfs.read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, str(error.errno))
        raise DeviceFailed(
            f"cannot read the placement of {carrier}: {error.strerror or error} ({name}) reading {path}",
            hint="journalctl -k -n 20 shows the kernel log",
            errno=error.errno,
            path=path,
        ) from error


def move_to_placement(host: Host, vgpu: AssignedVgpu) -> None:
    """Write the placement, unless the vGPU is there already or has no writable placement.

    A vGPU that shows no placement may still accept one: some drivers show an mdev's only while a VM uses it. If the
    driver refuses the write then, mixed sizes are off.
    """
    requested, path = vgpu.placement_id, placement_path(vgpu)
    text = _read_attribute(host, path, vgpu.carrier) if requested is not None else None
    current = parse_driver_id(text or "")
    if text is None or requested == current:
        return
    try:
        host.sysfs.write(path, f"{requested}\n")
    except OSError as error:
        if error.errno != errno.EIO:
            raise write_error(error, f"moving {vgpu.carrier} to placement {requested}", path) from error
        if current is None:
            return
        raise NoCapacity(
            f"no room for {vgpu.profile} at placement {requested} of {vgpu.gpu}: the driver refused to move "
            f"{vgpu.carrier} there from placement {current}",
            hint=f"vgpuctl show-gpu {vgpu.gpu} shows every placement",
            gpu=vgpu.gpu,
            placement_id=requested,
            errno=error.errno,
            path=path,
        ) from error


def move_to_gpu_instance(host: Host, vgpu: AssignedVgpu, gi_ids: tuple[int, ...]) -> None:
    """Move a new vGPU into the first of these GPU instances that accepts it.

    An instance that was filled meanwhile refuses it (EIO), and the next one is tried. If none accepts it, or the driver
    has no such file, the vGPU stays where the driver put it.

    Raises:
        DeviceFailed: the file cannot be read or written.
        VerifyFailed: the write succeeded, but the vGPU is in another instance.
    """
    path = f"{placement_path(vgpu).rpartition('/')[0]}/gpu_instance_id"
    for gi_id in gi_ids:
        text = _read_attribute(host, path, vgpu.carrier)
        if text is None or parse_driver_id(text) == gi_id:
            return
        try:
            host.sysfs.write(path, f"{gi_id}\n")
        except OSError as error:
            if error.errno == errno.EIO:
                continue
            raise write_error(error, f"moving {vgpu.carrier} to GPU instance {gi_id}", path) from error
        actual = parse_driver_id(_read_attribute(host, path, vgpu.carrier) or "")
        if actual != gi_id:
            raise VerifyFailed(
                f"{vgpu.carrier} was moved to GPU instance {gi_id} but reads back {actual}",
                hint="journalctl -k -n 20",
                wanted=gi_id,
                actual=actual,
            )
        return


def verify_placement(host: Host, vgpu: AssignedVgpu) -> None:
    """Read the placement back.

    Raises:
        VerifyFailed: it is another placement.
    """
    actual = (
        None
        if vgpu.placement_id is None
        else parse_driver_id(_read_attribute(host, placement_path(vgpu), vgpu.carrier) or "")
    )
    if actual not in (None, vgpu.placement_id):
        raise VerifyFailed(
            f"{vgpu.carrier} was moved to placement {vgpu.placement_id} but reads back {actual}",
            hint="journalctl -k -n 20",
            wanted=vgpu.placement_id,
            actual=actual,
        )


class MoveVgpu(Step):
    """Move an existing vGPU, in no running VM, to its placement: its creator was killed before the move."""

    vgpu: AssignedVgpu

    def describe(self) -> str:
        return f"move vGPU {self.vgpu.profile} on {self.vgpu.function} to placement {self.vgpu.placement_id}"

    def perform(self, host: Host) -> None:
        """Write the placement."""
        if self.vgpu.placement_id is not None:
            with host.claims.gpu_creation_lock(self.vgpu.gpu, GPU_MAKE_LOCK_SECONDS):
                move_to_placement(host, self.vgpu)

    def verify(self, host: Host) -> None:
        verify_placement(host, self.vgpu)

    def undo(self, host: Host) -> None:
        """Nothing: the vGPU is now where its record says."""
