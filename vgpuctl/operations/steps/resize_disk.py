# SPDX-License-Identifier: Apache-2.0
"""Grow a VM's disk. A disk never shrinks, so this cannot be undone; a larger disk does no harm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.errors import InUse, VerifyFailed
from vgpuctl.model.numbers import format_bytes
from vgpuctl.model.vm import ManagedDisk
from vgpuctl.operations.steps.domain import STOPPED_STATES
from vgpuctl.ports.step import Step

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


class GrowDisk(Step):
    """Grow a disk to `capacity_bytes`; `live`: its VM runs, and QEMU tells the guest."""

    name: str
    uuid: str
    disk: ManagedDisk
    capacity_bytes: int
    live: bool

    def describe(self) -> str:
        """Say from which size to which."""
        size = f"{format_bytes(self.disk.capacity_bytes)} -> {format_bytes(self.capacity_bytes)}"
        return f"grow disk {self.disk.path} of {self.name}: {size}{', while it runs' if self.live else ''}"

    def perform(self, host: Host) -> None:
        """Grow the volume, and the disk of the running VM.

        QEMU changes the file of a running VM's disk itself. A logical volume grows first, and QEMU takes its new size.

        Raises:
            InUse: the VM was started or stopped since it was read; nothing was changed.
            NoSpace: the volume group has too little free space.
        """
        domain = host.hypervisor.find_domain(self.uuid)
        if domain is None or (domain.state not in STOPPED_STATES) != self.live:
            what = "deleted" if domain is None else "stopped" if self.live else "started"
            raise InUse(f"{self.name} was {what} just now", hint="run the command again", vm=self.name)
        capacity_bytes = self.capacity_bytes
        if not self.live or self.disk.format == "raw":
            volume = host.storage.resize_volume(self.disk.pool, self.disk.volume, capacity_bytes)
            capacity_bytes = volume.capacity_bytes
        if self.live:
            host.hypervisor.resize_disk(self.uuid, self.disk.path, capacity_bytes)

    def verify(self, host: Host) -> None:
        """Read the size back."""
        size = self._read_size(host)
        if size < self.capacity_bytes:
            raise VerifyFailed(
                f"{self.disk.path} has {format_bytes(size)} after it was resized",
                hint=f"virsh vol-info --pool {self.disk.pool} {self.disk.volume}",
                wanted=self.capacity_bytes,
            )

    def undo(self, host: Host) -> None:
        """Check that it has not grown: what has grown stays so.

        Raises:
            VerifyFailed: it has grown.
        """
        size = self._read_size(host)
        if size >= self.capacity_bytes:
            raise VerifyFailed(f"it has {format_bytes(size)} now, and vgpuctl never shrinks a disk")

    def _read_size(self, host: Host) -> int:
        volume = host.storage.volume(self.disk.pool, self.disk.volume)
        return 0 if volume is None else volume.capacity_bytes
