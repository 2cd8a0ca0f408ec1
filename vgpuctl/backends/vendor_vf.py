# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's vendor-specific VFIO: the VF itself carries the vGPU, chosen by its `nvidia/current_vgpu_type`.

The VF stays bound to the nvidia driver: generic vfio-pci cannot bind it, and letting libvirt try
(managed='yes') hangs for ever. So the hostdev is unmanaged, which libvirt accepts from 10.0 on when the VF has
a `vfio-dev` directory. Errno of the type file: EPERM held already (or in use, for 0), EIO the driver refuses,
EBUSY the vGPU's plugin has not exited yet (retried), EINVAL no number.

Where it is on a mixed-size GPU or with MIG: `placement`.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from vgpuctl.backends.base import (
    BUSY_PAUSE_SECONDS,
    BUSY_RETRY_SECONDS,
    REMOVE_DEADLINE_SECONDS,
    alias,
    check_params,
    refuse_if_held,
    require_iommu,
    write_failed,
)
from vgpuctl.backends.placement import TURN_SECONDS, MoveVgpu, move, move_into, verify_place
from vgpuctl.errors import Busy, HostCannot, InUse, NoCapacity, VerifyFailed
from vgpuctl.model.gpu import Function, Gpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Step
from vgpuctl.model.vm import PromisedVgpu
from vgpuctl.model.wish import DesignHostdev
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.model.world import World

LIBVIRT_WITH_VARIANTS = 10_000_000


def _base(vgpu: PromisedVgpu) -> str:
    return f"/sys/bus/pci/devices/{vgpu.carrier}/nvidia"


def current_type(world: World, vgpu: PromisedVgpu) -> str:
    """Return the type id the VF carries now; "0" for none, also when the VF is gone."""
    try:
        return world.sysfs.read(f"{_base(vgpu)}/current_vgpu_type").strip()
    except FileNotFoundError:
        return "0"


class SetType(Value):
    """Give a VF its vGPU type, its placement on a mixed-size GPU or one of some GPU instances, and its parameters."""

    vgpu: PromisedVgpu
    type_id: str
    instances: tuple[int, ...] = ()

    def describe(self) -> str:
        """Say what is made and where."""
        place = "" if self.vgpu.placement_id is None else f", placement {self.vgpu.placement_id}"
        return f"make vGPU {self.vgpu.profile} on {self.vgpu.function} (type {self.type_id}{place})"

    def perform(self, world: World) -> None:
        """Write the type id, then the placement or the GPU instance, then the parameters."""
        if self.vgpu.placement_id is None and not self.instances:
            self._set_type(world)
        else:
            with world.claims.turn(self.vgpu.gpu, TURN_SECONDS):
                self._set_type(world)
                move(world, self.vgpu)
                move_into(world, self.vgpu, self.instances)
        if self.vgpu.params:
            params = f"{_base(self.vgpu)}/vgpu_params"
            try:
                world.sysfs.write(params, f"{self.vgpu.params}\n")
            except OSError as error:
                raise write_failed(error, f"setting {self.vgpu.params} on {self.vgpu.carrier}", params) from error

    def _set_type(self, world: World) -> None:
        path = f"{_base(self.vgpu)}/current_vgpu_type"
        try:
            world.sysfs.write(path, f"{self.type_id}\n")
        except OSError as error:
            raise self._refusal(error, path) from error

    def _refusal(self, error: OSError, path: str) -> Exception:
        if error.errno == errno.EIO:
            return NoCapacity(
                f"no room for {self.vgpu.profile} on {self.vgpu.gpu}: the driver refused it on {self.vgpu.carrier}",
                hint=f"vgpuctl explain {self.vgpu.profile}",
                gpu=self.vgpu.gpu,
                errno=error.errno,
                path=path,
            )
        if error.errno == errno.EPERM:
            return InUse(
                f"{self.vgpu.carrier} carries another vGPU already",
                hint="vgpuctl list-gpus shows whose it is; run the command again",
                carrier=self.vgpu.carrier,
                errno=error.errno,
                path=path,
            )
        return write_failed(error, f"making {self.vgpu.profile} on {self.vgpu.carrier}", path)

    def verify(self, world: World) -> None:
        """Read the type back."""
        found = current_type(world, self.vgpu)
        if found != self.type_id:
            raise VerifyFailed(
                f"{self.vgpu.carrier} was given type {self.type_id} but reads back {found}",
                hint="journalctl -k -n 20",
                wanted=self.type_id,
                found=found,
            )
        verify_place(world, self.vgpu)
        check_params(world, self.vgpu, f"{_base(self.vgpu)}/vgpu_params")

    def undo(self, world: World) -> None:
        """Clear it, if it still reads as we wrote it."""
        if current_type(world, self.vgpu) == self.type_id:
            clear = ClearType(self.vgpu)
            clear.perform(world)
            clear.verify(world)


class ClearType(Value):
    """Take the vGPU type from a VF that nobody holds."""

    vgpu: PromisedVgpu

    def describe(self) -> str:
        """Say what goes."""
        return f"remove vGPU {self.vgpu.profile} from {self.vgpu.carrier}"

    def perform(self, world: World) -> None:
        """Write 0 in a child, retrying while the plugin process exits; a VF without a type is no error."""
        if current_type(world, self.vgpu) == "0":
            return
        refuse_if_held(world, self.vgpu.carrier, f"/sys/bus/pci/devices/{self.vgpu.carrier}")
        path = f"{_base(self.vgpu)}/current_vgpu_type"
        until = world.clock.monotonic() + BUSY_RETRY_SECONDS
        while True:
            try:
                world.sysfs.write_parked(path, "0\n", gpu=self.vgpu.gpu, deadline_seconds=REMOVE_DEADLINE_SECONDS)
                return
            except OSError as error:
                if error.errno != errno.EBUSY or world.clock.monotonic() >= until:
                    raise self._refusal(error, path) from error
            world.clock.pause(BUSY_PAUSE_SECONDS)

    def _refusal(self, error: OSError, path: str) -> Exception:
        if error.errno == errno.EPERM:
            return InUse(
                f"{self.vgpu.carrier} is in use by a VM",
                hint="stop the VM first",
                carrier=self.vgpu.carrier,
                path=path,
            )
        if error.errno == errno.EBUSY:
            return Busy(
                f"the vGPU plugin of {self.vgpu.carrier} has not exited after {BUSY_RETRY_SECONDS:g} s",
                hint="run the command again in a minute; systemctl status nvidia-vgpu-mgr",
                carrier=self.vgpu.carrier,
                path=path,
            )
        return write_failed(error, f"clearing the vGPU type of {self.vgpu.carrier}", path)

    def verify(self, world: World) -> None:
        """See that the VF carries nothing."""
        found = current_type(world, self.vgpu)
        if found != "0":
            raise VerifyFailed(f"{self.vgpu.carrier} was cleared but still carries type {found}")

    def undo(self, world: World) -> None:
        """Nothing: a removal is finished by reconcile, not taken back."""


class VendorVfKind:
    """The vendor-vf backend."""

    def check(self, snapshot: Snapshot, gpu: Gpu, function: Function, *, force_console: bool) -> None:
        """Check for the IOMMU, the variant VFIO device and a libvirt that accepts it unmanaged, where it was asked."""
        require_iommu(function)
        version = snapshot.hypervisor.libvirt_version
        if version is not None and version < LIBVIRT_WITH_VARIANTS:
            seen = f"{version // 1_000_000}.{version // 1000 % 1000}.{version % 1000}"
            raise HostCannot(
                f"libvirt {seen} refuses vendor-specific VFIO functions such as {function.address}; 10.0 accepts them",
                hint="use libvirt 10.0 or newer (Debian 13, Ubuntu 24.04, RHEL 10)",
                check="libvirt-variant",
                libvirt=seen,
                function=function.address,
            )
        if not function.vfio_dev:
            raise HostCannot(
                f"{function.address} has no vfio-dev directory: the vGPU driver does not offer it to VFIO",
                hint="check systemctl status nvidia-vgpu-mgr, then: /usr/lib/nvidia/sriov-manage -e " + gpu.address,
                check="vfio-dev",
                function=function.address,
            )

    def make(self, vgpu: PromisedVgpu, type_id: str | None, instances: tuple[int, ...] = ()) -> tuple[Step, ...]:
        """One type."""
        return (SetType(vgpu, type_id or "", instances),)

    def move(self, vgpu: PromisedVgpu) -> tuple[Step, ...]:
        """One move."""
        return (MoveVgpu(vgpu),)

    def remove(self, vgpu: PromisedVgpu) -> tuple[Step, ...]:
        """One clearing."""
        return (ClearType(vgpu),)

    def hostdev(self, vgpu: PromisedVgpu) -> DesignHostdev:
        """Refer to the VF, unmanaged."""
        return DesignHostdev("pci", vgpu.carrier, managed=False, alias=alias(vgpu))
