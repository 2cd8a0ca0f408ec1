# SPDX-License-Identifier: Apache-2.0
"""What every backend does, as one protocol, and what their steps share."""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING, Protocol

from vgpuctl.errors import DeviceFailed, HostCannot, InUse, VerifyFailed, VgpuctlError
from vgpuctl.model.gpu import Function, Gpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Step
from vgpuctl.model.vm import PromisedVgpu
from vgpuctl.model.wish import DesignHostdev

if TYPE_CHECKING:
    from vgpuctl.model.world import World

REMOVE_DEADLINE_SECONDS = 30.0
BUSY_RETRY_SECONDS = 5.0
BUSY_PAUSE_SECONDS = 0.2


class BackendKind(Protocol):
    """One framework: its checks before anything is written, its steps, and how a domain refers to it."""

    def check(self, snapshot: Snapshot, gpu: Gpu, function: Function, *, force_console: bool) -> None:
        """Check what the host must have for a carrier here; raises HostCannot or Refused."""

    def make(self, vgpu: PromisedVgpu, type_id: str | None, instances: tuple[int, ...] = ()) -> tuple[Step, ...]:
        """Return the steps that make the carrier's device.

        `instances`: the GPU instances that it is to be in, the best first; without them the driver chooses.
        """

    def move(self, vgpu: PromisedVgpu) -> tuple[Step, ...]:
        """Return the steps that bring a made device to its placement; none where the driver chose for good."""

    def remove(self, vgpu: PromisedVgpu) -> tuple[Step, ...]:
        """Return the steps that remove it."""

    def hostdev(self, vgpu: PromisedVgpu) -> DesignHostdev:
        """Return how a domain refers to the carrier."""


def alias(vgpu: PromisedVgpu) -> str:
    """Return the user alias that marks our device in a domain; libvirt wants the prefix ua-."""
    return f"ua-vgpuctl-{vgpu.index}"


def require_iommu(function: Function) -> None:
    """Refuse a PCI carrier without an IOMMU group: VFIO cannot give it to a VM."""
    if function.iommu_group is None:
        raise HostCannot(
            f"{function.address} has no IOMMU group, so no VM can get it",
            hint="enable VT-d or AMD-Vi in the firmware and boot with intel_iommu=on (AMD: on by default)",
            check="iommu",
            function=function.address,
        )


def vfio_nodes(world: World, function_path: str) -> tuple[str, ...]:
    """Return the device nodes through which a VM holds a carrier: its IOMMU group's, and iommufd's own."""
    nodes = []
    with contextlib.suppress(FileNotFoundError):
        nodes.append(f"/dev/vfio/{world.sysfs.readlink(f'{function_path}/iommu_group').rpartition('/')[2]}")
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        nodes += [f"/dev/vfio/devices/{name}" for name in world.sysfs.listdir(f"{function_path}/vfio-dev")]
    return tuple(nodes)


def refuse_if_held(world: World, carrier: str, function_path: str) -> None:
    """Refuse to take away a device that a process has open; unreadable is not "nobody".

    Raises:
        InUse: a process holds it, or it cannot be known.
    """
    try:
        holders = world.processes.holders(vfio_nodes(world, function_path))
    except OSError as error:
        raise InUse(f"whether {carrier} is in use cannot be seen", hint="run this as root", carrier=carrier) from error
    if holders:
        who = ", ".join(f"{h.command} (pid {h.pid})" for h in holders)
        raise InUse(
            f"{carrier} is in use by {who}",
            hint="stop the VM first",
            carrier=carrier,
            pids=[h.pid for h in holders],
        )


def check_params(world: World, vgpu: PromisedVgpu, path: str) -> None:
    """Read a vGPU's plugin parameters back; the driver may list them in another order.

    Raises:
        VerifyFailed: one of them is not there.
    """
    if not vgpu.params:
        return
    found = world.sysfs.read(path).strip()
    if not set(vgpu.params.split(",")) <= set(found.replace(",", " ").split()):
        raise VerifyFailed(
            f"{vgpu.carrier} was given the parameters {vgpu.params} but reads back '{found}'",
            hint="journalctl -k -n 20",
            path=path,
        )


def write_failed(error: OSError, doing: str, path: str, hint: str | None = None) -> VgpuctlError:
    """Return the error for a write that the kernel or driver refused, with its errno and path."""
    name = errno.errorcode.get(error.errno or 0, str(error.errno))
    return DeviceFailed(
        f"{doing} failed: {error.strerror or error} ({name}) writing {path}",
        hint=hint or "the kernel log says more: journalctl -k -n 20",
        errno=error.errno,
        errno_name=name,
        path=path,
    )
