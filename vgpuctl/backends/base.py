# SPDX-License-Identifier: Apache-2.0
"""The protocol of every backend, and the helpers that their steps share."""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING, Protocol

from vgpuctl.errors import DeviceFailed, HostCannot, InUse, VerifyFailed, VgpuctlError
from vgpuctl.model.gpu import Gpu, GpuFunction
from vgpuctl.model.request import DesignHostdev
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu
from vgpuctl.ports.step import Step

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

REMOVE_DEADLINE_SECONDS = 30.0
BUSY_RETRY_SECONDS = 5.0
BUSY_PAUSE_SECONDS = 0.2


class BackendOps(Protocol):
    """One framework: its checks before anything is written, its steps, and how a domain refers to it."""

    def check(self, snapshot: Snapshot, gpu: Gpu, function: GpuFunction, *, force_console: bool) -> None:
        """Check the host requirements of a carrier on this GPU; raises HostCannot or Refused."""

    def create_steps(self, vgpu: AssignedVgpu, type_id: str | None, gi_ids: tuple[int, ...] = ()) -> tuple[Step, ...]:
        """Return the steps that create the carrier's device.

        `gi_ids`: the GPU instances to try, best first; if empty, the driver chooses.
        """

    def move_steps(self, vgpu: AssignedVgpu) -> tuple[Step, ...]:
        """Return the steps that move an existing device to its placement; none where the driver fixes the placement."""

    def remove_steps(self, vgpu: AssignedVgpu) -> tuple[Step, ...]:
        """Return the steps that remove it."""

    def hostdev(self, vgpu: AssignedVgpu) -> DesignHostdev:
        """Return how a domain refers to the carrier."""


def hostdev_alias(vgpu: AssignedVgpu) -> str:
    """Return the user alias that marks a managed device in a domain; libvirt requires the prefix ua-."""
    return f"ua-vgpuctl-{vgpu.index}"


def require_iommu(function: GpuFunction) -> None:
    """Refuse a PCI carrier without an IOMMU group: VFIO cannot give it to a VM."""
    if function.iommu_group is None:
        raise HostCannot(
            f"{function.address} has no IOMMU group, so no VM can get it",
            hint="enable VT-d or AMD-Vi in the firmware and boot with intel_iommu=on (AMD: on by default)",
            check="iommu",
            function=function.address,
        )


def vfio_nodes(host: Host, function_path: str) -> tuple[str, ...]:
    """Return the device nodes through which a VM holds a carrier: the IOMMU group's and iommufd's."""
    nodes = []
    with contextlib.suppress(FileNotFoundError):
        nodes.append(f"/dev/vfio/{host.sysfs.readlink(f'{function_path}/iommu_group').rpartition('/')[2]}")
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        nodes += [f"/dev/vfio/devices/{name}" for name in host.sysfs.listdir(f"{function_path}/vfio-dev")]
    return tuple(nodes)


def refuse_if_held(host: Host, carrier: str, function_path: str) -> None:
    """Refuse to remove a device that a process has open. An unreadable list does not count as "nobody".

    Raises:
        InUse: a process holds it, or that cannot be read.
    """
    try:
        holders = host.processes.find_holders(vfio_nodes(host, function_path))
    except OSError as error:
        raise InUse(f"whether {carrier} is in use cannot be seen", hint="run this as root", carrier=carrier) from error
    if holders:
        users = ", ".join(f"{h.command} (pid {h.pid})" for h in holders)
        raise InUse(
            f"{carrier} is in use by {users}",
            hint="stop the VM first",
            carrier=carrier,
            pids=[h.pid for h in holders],
        )


def verify_params(host: Host, vgpu: AssignedVgpu, path: str) -> None:
    """Read a vGPU's plugin parameters back. The driver may list them in another order.

    Raises:
        VerifyFailed: one of them is missing.
    """
    if not vgpu.params:
        return
    text = host.sysfs.read(path).strip()
    if not set(vgpu.params.split(",")) <= set(text.replace(",", " ").split()):
        raise VerifyFailed(
            f"{vgpu.carrier} was given the parameters {vgpu.params} but reads back '{text}'",
            hint="journalctl -k -n 20",
            path=path,
        )


def write_error(error: OSError, action: str, path: str, hint: str | None = None) -> VgpuctlError:
    """Return the error for a write that the kernel or driver refused, with its errno and path."""
    name = errno.errorcode.get(error.errno or 0, str(error.errno))
    return DeviceFailed(
        f"{action} failed: {error.strerror or error} ({name}) writing {path}",
        hint=hint or "the kernel log says more: journalctl -k -n 20",
        errno=error.errno,
        errno_name=name,
        path=path,
    )
