# SPDX-License-Identifier: Apache-2.0
"""Pools and volumes as steps. Volumes are created exclusively: an existing name is never overwritten; one may grow."""

from __future__ import annotations

import posixpath
from contextlib import suppress
from typing import TYPE_CHECKING

from vgpuctl.errors import Busy, Exists, HostCannot, InUse, LibvirtFailed, VerifyFailed
from vgpuctl.model.numbers import format_bytes
from vgpuctl.model.port_values import ImageFile
from vgpuctl.model.vm import DiskRole, ManagedDisk
from vgpuctl.operations.steps.domain import STOPPED_STATES
from vgpuctl.ports.step import LongStep, Removal, Step, StepReport, ignore_progress

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

POOL_DEADLINE_SECONDS = 10.0
POOL_POLL_SECONDS = 0.1


class CreatePool(Step):
    """Create libvirt's usual directory pool on a fresh host that has none."""

    name: str
    path: str

    def describe(self) -> str:
        return f"create storage pool {self.name} at {self.path}"

    def perform(self, host: Host) -> None:
        """Create it unless another vgpuctl creates it first: its pool may stay inactive for a moment."""
        if host.storage.pool(self.name) is None:
            with suppress(Exists):
                host.storage.create_pool(self.name, self.path)
        deadline = host.clock.monotonic() + POOL_DEADLINE_SECONDS
        while not self._is_active(host) and host.clock.monotonic() < deadline:
            host.clock.sleep(POOL_POLL_SECONDS)

    def _is_active(self, host: Host) -> bool:
        pool = host.storage.pool(self.name)
        return pool is not None and pool.active

    def verify(self, host: Host) -> None:
        """Check that it is active at its path."""
        pool = host.storage.pool(self.name)
        if pool is None or not pool.active or pool.path != self.path:
            raise VerifyFailed(
                f"the storage pool {self.name} is not active at {self.path}",
                hint=f"virsh pool-info {self.name}; virsh pool-dumpxml {self.name} shows where it is",
                actual=str(pool),
            )

    def undo(self, host: Host) -> None:
        """Nothing: an empty directory pool does no harm, and another VM may already use it."""


class StartPool(Step):
    """Start a pool that is defined but inactive."""

    name: str

    def describe(self) -> str:
        return f"start storage pool {self.name}"

    def perform(self, host: Host) -> None:
        """Start it unless another vgpuctl has already started it."""
        pool = host.storage.pool(self.name)
        if pool is None or pool.active:
            return
        try:
            host.storage.start_pool(self.name)
        except LibvirtFailed:
            pool = host.storage.pool(self.name)
            if pool is None or not pool.active:
                raise

    def verify(self, host: Host) -> None:
        """Check that it is active."""
        pool = host.storage.pool(self.name)
        if pool is None or not pool.active:
            raise VerifyFailed(
                f"the storage pool {self.name} was started but is not active",
                hint=f"virsh pool-info {self.name}; journalctl -n 20 shows libvirt's errors",
                pool=self.name,
            )

    def undo(self, host: Host) -> None:
        """Nothing: an active pool does no harm."""


class CreateVolume(LongStep):
    """Create a VM's disk: empty, a linked clone of an image, or a full copy of one.

    `checked_files`: the image and its backing files, as they were when the plan was made.
    """

    disk: ManagedDisk
    checked_files: tuple[ImageFile, ...] = ()

    def describe(self) -> str:
        """Say its size and its image."""
        disk = self.disk
        what = f"linked clone of {disk.base}" if disk.base else "empty, thin"
        if disk.format == "raw":
            content = f"full copy of {disk.copied_from}" if disk.copied_from else "empty, full size"
            what = f"{content}: pool {disk.pool} is logical"
        return f"create disk {disk.path} ({format_bytes(disk.capacity_bytes)}, {what})"

    def perform(self, host: Host) -> None:
        """Create it without reporting progress; raises what `perform_with_progress` raises."""
        self.perform_with_progress(host, ignore_progress)

    def perform_with_progress(self, host: Host, report: StepReport) -> None:
        """Create it, and copy the image into it if it is a full copy.

        Raises:
            Exists: the name is taken.
            Busy: the image is not the checked file any more, or was written to since.
        """
        disk = self.disk
        self._refuse_changed_image(host)
        volume = host.storage.create_volume(
            disk.pool, disk.volume, disk.capacity_bytes, disk.base, disk.base_format if disk.base else None
        )
        if disk.copied_from is not None:
            host.storage.copy_image(disk.copied_from, disk.base_format or "raw", volume, disk.format, report)
            self._refuse_changed_image(host)

    def _refuse_changed_image(self, host: Host) -> None:
        files_now = host.storage.image_files(tuple(file.path for file in self.checked_files))
        for file in self.checked_files:
            now = files_now.get(file.path)
            if now is None or (now.identity, now.content_stamp) != (
                file.identity,
                file.content_stamp,
            ):
                what = "removed" if now is None else "changed"
                raise Busy(
                    f"{file.path} was {what} since it was checked; it is not cloned",
                    hint="run the command again when no program writes to it",
                    path=file.path,
                )

    def verify(self, host: Host) -> None:
        """Read path, size and base back."""
        volume = host.storage.volume(self.disk.pool, self.disk.volume)
        expected = (self.disk.path, self.disk.capacity_bytes, self.disk.base)
        actual = None if volume is None else (volume.path, volume.capacity_bytes, volume.backing_path)
        if actual is not None and self.disk.format == "raw":  # LVM rounds a size up
            actual = (actual[0], min(actual[1], self.disk.capacity_bytes), actual[2])
        if actual != expected:
            raise VerifyFailed(
                f"the disk {self.disk.path} reads back as {actual or 'nothing'}",
                hint=f"virsh vol-info --pool {self.disk.pool} {self.disk.volume}; qemu-img info {self.disk.path}",
                wanted=list(expected),
            )

    def undo(self, host: Host) -> None:
        """Delete it if it is still at its path; its name contains the VM's uuid."""
        volume = host.storage.volume(self.disk.pool, self.disk.volume)
        if volume is not None and volume.path == self.disk.path:
            remove = DeleteVolume(self.disk)
            remove.perform(host)
            remove.verify(host)


class DeleteVolume(Removal):
    """Delete a disk that vgpuctl created; never a base image."""

    disk: ManagedDisk

    def describe(self) -> str:
        what = "cloud-init seed" if self.disk.role is DiskRole.SEED else "disk"
        return f"delete {what} {self.disk.path}"

    def perform(self, host: Host) -> None:
        """Delete it, and start its pool first if it is inactive. A disk that is gone already is no error.

        Raises:
            HostCannot: the pool is gone or cannot be started, and the disk stays.
        """
        if self.open_pool(host):
            host.storage.remove_volume(self.disk.pool, self.disk.volume)

    def open_pool(self, host: Host) -> bool:
        """Start the disk's pool if it is inactive; return False if pool and disk are gone.

        Raises:
            HostCannot: the pool is gone or cannot be started, and the disk stays.
        """
        pool = host.storage.pool(self.disk.pool)
        if pool is None:
            if host.storage.image(self.disk.path) is not None:
                raise self._disk_remains_error("no longer exists", f"virsh pool-define-as {self._pool_arguments()}")
            return False
        if not pool.active:
            start = StartPool(self.disk.pool)
            try:
                start.perform(host)
                start.verify(host)
            except (LibvirtFailed, VerifyFailed) as error:
                raise self._disk_remains_error(f"cannot be started: {error.message}", "fix it") from error
        return True

    def _pool_arguments(self) -> str:
        directory = posixpath.dirname(self.disk.path)
        is_block = self.disk.path.startswith("/dev/")
        kind = f"logical --source-name {posixpath.basename(directory)}" if is_block else "dir"
        return f"{self.disk.pool} {kind} --target {directory}"

    def _disk_remains_error(self, why: str, remedy: str) -> HostCannot:
        """Return an error that names the disk: once the VM is gone, nobody would find it."""
        name = self.disk.pool
        return HostCannot(
            f"the storage pool {name} {why}; the disk {self.disk.path} stays",
            hint=f"{remedy}, then virsh pool-start {name}; or delete the VM with delete-vm --keep-disks",
            check="pool",
            pool=name,
            path=self.disk.path,
        )

    def verify(self, host: Host) -> None:
        if host.storage.pool(self.disk.pool) is None:
            return
        if host.storage.volume(self.disk.pool, self.disk.volume) is not None:
            raise VerifyFailed(
                f"the disk {self.disk.path} was deleted but still exists",
                hint=f"virsh vol-list {self.disk.pool}; ls -l {self.disk.path}",
                path=self.disk.path,
            )


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
