# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's vendor-specific VFIO: the VF itself carries the vGPU, chosen by its `nvidia/current_vgpu_type`.

The VF stays bound to the nvidia driver: generic vfio-pci cannot bind it, and an attempt by libvirt
(managed='yes') hangs for ever. So the hostdev is managed='no', which libvirt accepts from 10.0 on if the VF has
a `vfio-dev` directory. Errno of the type file: EPERM a type is set already (or in use, for 0), EIO the driver refuses,
EBUSY the vGPU's plugin has not exited yet (retried), EINVAL not a number.

`placement_id` places it on a mixed-size GPU or with MIG.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from vgpuctl.backends.base import (
    BUSY_PAUSE_SECONDS,
    BUSY_RETRY_SECONDS,
    GPU_MAKE_LOCK_SECONDS,
    REMOVE_DEADLINE_SECONDS,
    GpuBackend,
    LiveMoveVersions,
    MoveVgpu,
    move_to_gpu_instance,
    move_to_placement,
    refuse_if_held,
    require_iommu,
    verify_params,
    verify_placement,
    write_error,
)
from vgpuctl.errors import Busy, HostCannot, InUse, NoCapacity, VerifyFailed
from vgpuctl.model.gpu import Backend, Gpu, GpuFunction, GpuMode
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu
from vgpuctl.ports.step import Removal, Step

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def _nvidia_directory(vgpu: AssignedVgpu) -> str:
    return f"/sys/bus/pci/devices/{vgpu.carrier}/nvidia"


def read_type_id(host: Host, vgpu: AssignedVgpu) -> str:
    """Return the current type id of the VF; "0" for none, also if the VF is gone."""
    try:
        return host.sysfs.read(f"{_nvidia_directory(vgpu)}/current_vgpu_type").strip()
    except FileNotFoundError:
        return "0"


class SetVgpuType(Step):
    """Set a VF's vGPU type, its placement (mixed sizes) or its GPU instance (one of `gi_ids`), and its parameters."""

    vgpu: AssignedVgpu
    type_id: str
    gi_ids: tuple[int, ...] = ()

    def describe(self) -> str:
        placement = "" if self.vgpu.placement_id is None else f", placement {self.vgpu.placement_id}"
        return f"create vGPU {self.vgpu.profile} on {self.vgpu.function} (type {self.type_id}{placement})"

    def perform(self, host: Host) -> None:
        """Write the type id, then the placement or the GPU instance, then the parameters."""
        if self.vgpu.placement_id is None and not self.gi_ids:
            self._write_type(host)
        else:
            with host.claims.gpu_creation_lock(self.vgpu.gpu, GPU_MAKE_LOCK_SECONDS):
                self._write_type(host)
                move_to_placement(host, self.vgpu)
                move_to_gpu_instance(host, self.vgpu, self.gi_ids)
        if self.vgpu.params:
            path = f"{_nvidia_directory(self.vgpu)}/vgpu_params"
            try:
                host.sysfs.write(path, f"{self.vgpu.params}\n")
            except OSError as error:
                raise write_error(error, f"setting {self.vgpu.params} on {self.vgpu.carrier}", path) from error

    def _write_type(self, host: Host) -> None:
        path = f"{_nvidia_directory(self.vgpu)}/current_vgpu_type"
        try:
            host.sysfs.write(path, f"{self.type_id}\n")
        except OSError as error:
            raise self._set_error(error, path) from error

    def _set_error(self, error: OSError, path: str) -> Exception:
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
                f"{self.vgpu.carrier} already has another vGPU",
                hint="vgpuctl list-vgpus shows its owner; then run the command again",
                carrier=self.vgpu.carrier,
                errno=error.errno,
                path=path,
            )
        return write_error(error, f"creating {self.vgpu.profile} on {self.vgpu.carrier}", path)

    def verify(self, host: Host) -> None:
        """Read the type back."""
        actual = read_type_id(host, self.vgpu)
        if actual != self.type_id:
            raise VerifyFailed(
                f"{self.vgpu.carrier} was given type {self.type_id} but reads back {actual}",
                hint="journalctl -k -n 20",
                wanted=self.type_id,
                actual=actual,
            )
        verify_placement(host, self.vgpu)
        verify_params(host, self.vgpu, f"{_nvidia_directory(self.vgpu)}/vgpu_params")

    def undo(self, host: Host) -> None:
        """Clear it if it still has the type that this step wrote."""
        if read_type_id(host, self.vgpu) == self.type_id:
            clear = ClearVgpuType(self.vgpu)
            clear.perform(host)
            clear.verify(host)


class ClearVgpuType(Removal):
    """Clear the vGPU type of a VF that nobody holds."""

    vgpu: AssignedVgpu

    def describe(self) -> str:
        return f"remove vGPU {self.vgpu.profile} from {self.vgpu.carrier}"

    def perform(self, host: Host) -> None:
        """Write 0 in a child process, and retry while the plugin process exits. A VF without a type is no error."""
        if read_type_id(host, self.vgpu) == "0":
            return
        refuse_if_held(host, self.vgpu.carrier, f"/sys/bus/pci/devices/{self.vgpu.carrier}")
        path = f"{_nvidia_directory(self.vgpu)}/current_vgpu_type"
        deadline = host.clock.monotonic() + BUSY_RETRY_SECONDS
        while True:
            try:
                host.sysfs.write_uninterruptible(
                    path, "0\n", gpu=self.vgpu.gpu, deadline_seconds=REMOVE_DEADLINE_SECONDS
                )
                return
            except OSError as error:
                if error.errno != errno.EBUSY or host.clock.monotonic() >= deadline:
                    raise self._clear_error(error, path) from error
            host.clock.sleep(BUSY_PAUSE_SECONDS)

    def _clear_error(self, error: OSError, path: str) -> Exception:
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
                hint="systemctl status nvidia-vgpu-mgr; run the command again in a minute",
                carrier=self.vgpu.carrier,
                path=path,
            )
        return write_error(error, f"clearing the vGPU type of {self.vgpu.carrier}", path)

    def verify(self, host: Host) -> None:
        """Check that the VF has no type."""
        type_id = read_type_id(host, self.vgpu)
        if type_id != "0":
            raise VerifyFailed(f"{self.vgpu.carrier} was cleared but still has type {type_id}")


class VendorVfBackend(GpuBackend):
    """The vendor-vf backend."""

    name = Backend.VENDOR_VF
    mode = GpuMode.VGPU
    creates_devices = True
    on_vfs = True
    functions_stay_bound = True
    min_kernel = (6, 1)  # the first with `vfio-dev` below a PCI function
    min_libvirt = 10_000_000  # the first with VFIO variant drivers
    display_since = 10_002_000  # display= and ramfb= of a PCI function
    gpu_reset_hangs_since = (7,)
    live_move = LiveMoveVersions(10_000_000, 8_002_002)

    def function_problem(self, function: GpuFunction) -> str | None:
        """Name a missing VFIO device."""
        return None if function.has_vfio_dev else "no vfio-dev directory"

    def is_unproven(self, gpu: Gpu, vgpu: AssignedVgpu) -> bool:
        """Compare the types: the VF carries one that is unknown or not the assigned one."""
        function = gpu.find_function(vgpu.carrier)
        if function is None or function.current_type is None:
            return False
        vgpu_type = gpu.find_type(function.current_type)
        return vgpu_type is None or vgpu_type.profile != vgpu.profile

    def check(self, snapshot: Snapshot, gpu: Gpu, function: GpuFunction, *, force_console: bool) -> None:
        """Check the IOMMU, the variant VFIO device and, if its version is known, that libvirt accepts managed='no'."""
        require_iommu(function)
        version = snapshot.hypervisor.libvirt_version
        if version is not None and version < self.min_libvirt:
            shown = f"{version // 1_000_000}.{version // 1000 % 1000}.{version % 1000}"
            raise HostCannot(
                f"libvirt {shown} refuses vendor-specific VFIO functions such as {function.address}; 10.0 accepts them",
                hint="use libvirt 10.0 or newer (Debian 13, Ubuntu 24.04, RHEL 10)",
                check="libvirt-variant",
                libvirt=shown,
                function=function.address,
            )
        if self.function_problem(function) is not None:
            raise HostCannot(
                f"{function.address} has no vfio-dev directory: the vGPU driver does not offer it to VFIO",
                hint="systemctl status nvidia-vgpu-mgr; then /usr/lib/nvidia/sriov-manage -e " + gpu.address,
                check="vfio-dev",
                function=function.address,
            )

    def create_steps(self, vgpu: AssignedVgpu, type_id: str | None, gi_ids: tuple[int, ...] = ()) -> tuple[Step, ...]:
        """Return one step that sets the type."""
        return (SetVgpuType(vgpu, type_id or "", gi_ids),)

    def move_steps(self, vgpu: AssignedVgpu) -> tuple[Step, ...]:
        """Return one move step."""
        return (MoveVgpu(vgpu),)

    def remove_steps(self, vgpu: AssignedVgpu) -> tuple[Step, ...]:
        """Return one step that clears the type."""
        return (ClearVgpuType(vgpu),)

    def removal_commands(self, carrier: str) -> tuple[str, ...]:
        """Name the file that holds its type; 0 removes it."""
        return (f"echo 0 > /sys/bus/pci/devices/{carrier}/nvidia/current_vgpu_type",)
