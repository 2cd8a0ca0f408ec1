# SPDX-License-Identifier: Apache-2.0
"""Pools and volumes as steps. Volumes are made exclusively, so a name that exists is never overwritten."""

from __future__ import annotations

import posixpath
from contextlib import suppress
from typing import TYPE_CHECKING

from vgpuctl.errors import Busy, Exists, HostCannot, LibvirtFailed, VerifyFailed
from vgpuctl.model.records import Glance
from vgpuctl.model.sizes import bytes_text
from vgpuctl.model.vm import DiskRole, MadeDisk
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.model.world import World

POOL_DEADLINE_SECONDS = 10.0
POOL_PAUSE_SECONDS = 0.1


class MakePool(Value):
    """Make libvirt's usual directory pool where a fresh host has none."""

    name: str
    path: str

    def describe(self) -> str:
        """Say what is made."""
        return f"make storage pool {self.name} at {self.path}"

    def perform(self, world: World) -> None:
        """Make it, unless another vgpuctl is faster: its pool may stay inactive for a moment."""
        if world.storage.pool(self.name) is None:
            with suppress(Exists):
                world.storage.make_pool(self.name, self.path)
        until = world.clock.monotonic() + POOL_DEADLINE_SECONDS
        while not self._active(world) and world.clock.monotonic() < until:
            world.clock.pause(POOL_PAUSE_SECONDS)

    def _active(self, world: World) -> bool:
        pool = world.storage.pool(self.name)
        return pool is not None and pool.active

    def verify(self, world: World) -> None:
        """See it active at its place."""
        pool = world.storage.pool(self.name)
        if pool is None or not pool.active or pool.path != self.path:
            raise VerifyFailed(
                f"the storage pool {self.name} is not active at {self.path}",
                hint=f"virsh pool-info {self.name}; virsh pool-dumpxml {self.name} shows where it is",
                found=str(pool),
            )

    def undo(self, world: World) -> None:
        """Nothing: an empty directory pool harms nobody, and another VM may be using it already."""


class StartPool(Value):
    """Start a pool that is defined but inactive."""

    name: str

    def describe(self) -> str:
        """Say what is started."""
        return f"start storage pool {self.name}"

    def perform(self, world: World) -> None:
        """Start it, unless another vgpuctl was faster."""
        pool = world.storage.pool(self.name)
        if pool is None or pool.active:
            return
        try:
            world.storage.start_pool(self.name)
        except LibvirtFailed:
            pool = world.storage.pool(self.name)
            if pool is None or not pool.active:
                raise

    def verify(self, world: World) -> None:
        """See it active."""
        pool = world.storage.pool(self.name)
        if pool is None or not pool.active:
            raise VerifyFailed(
                f"the storage pool {self.name} was started but is not active",
                hint=f"virsh pool-info {self.name}; journalctl -n 20 says what libvirt met",
                pool=self.name,
            )

    def undo(self, world: World) -> None:
        """Nothing: an active pool harms nobody."""


class MakeVolume(Value):
    """Make a VM's disk: empty and thin, or a linked clone of a base image.

    `checked` is the base with the files below it, as they were when the plan was made.
    """

    disk: MadeDisk
    checked: tuple[Glance, ...] = ()

    def describe(self) -> str:
        """Say how large it is and what it is a clone of."""
        size = bytes_text(self.disk.capacity_bytes)
        what = f"linked clone of {self.disk.base}" if self.disk.base else "empty, thin"
        return f"make disk {self.disk.path} ({size}, {what})"

    def perform(self, world: World) -> None:
        """Make it.

        Raises:
            Exists: the name is taken.
            Busy: the base is another file than the one that was checked, or was written to since.
        """
        disk = self.disk
        for one in self.checked:
            now = world.storage.glance(one.path)
            if now is None or (now.identity, now.stamp) != (one.identity, one.stamp):
                raise Busy(
                    f"{one.path} was {'removed' if now is None else 'changed'} since it was checked; it is not cloned",
                    hint="run the command again when nobody writes to it",
                    path=one.path,
                )
        world.storage.make_volume(disk.pool, disk.volume, disk.capacity_bytes, disk.base, disk.base_format)

    def verify(self, world: World) -> None:
        """Read path, size and base back."""
        found = world.storage.volume(self.disk.pool, self.disk.volume)
        wanted = (self.disk.path, self.disk.capacity_bytes, self.disk.base)
        seen = None if found is None else (found.path, found.capacity_bytes, found.backing_path)
        if seen != wanted:
            raise VerifyFailed(
                f"the disk {self.disk.path} reads back as {seen or 'nothing'}",
                hint=f"virsh vol-info --pool {self.disk.pool} {self.disk.volume}; qemu-img info {self.disk.path}",
                wanted=list(wanted),
            )

    def undo(self, world: World) -> None:
        """Delete it, if it still is at its path; its name carries the VM's uuid."""
        found = world.storage.volume(self.disk.pool, self.disk.volume)
        if found is not None and found.path == self.disk.path:
            remove = RemoveVolume(self.disk)
            remove.perform(world)
            remove.verify(world)


class RemoveVolume(Value):
    """Delete a disk that vgpuctl made; never a base image."""

    disk: MadeDisk

    def describe(self) -> str:
        """Say what goes."""
        what = "cloud-init seed" if self.disk.role is DiskRole.SEED else "disk"
        return f"delete {what} {self.disk.path}"

    def perform(self, world: World) -> None:
        """Delete it, starting its pool when that is off; a disk that is gone already is no error.

        Raises:
            HostCannot: the pool is gone or cannot be started, and the disk stays.
        """
        pool = world.storage.pool(self.disk.pool)
        if pool is None:
            if world.storage.image(self.disk.path) is not None:
                raise self._stays("is not there any more", f"virsh pool-define-as {self._definition()}")
            return
        if not pool.active:
            start = StartPool(self.disk.pool)
            try:
                start.perform(world)
                start.verify(world)
            except (LibvirtFailed, VerifyFailed) as error:
                raise self._stays(f"cannot be started: {error.message}", "mend it") from error
        world.storage.remove_volume(self.disk.pool, self.disk.volume)

    def _definition(self) -> str:
        return f"{self.disk.pool} dir --target {posixpath.dirname(self.disk.path)}"

    def _stays(self, why: str, first: str) -> HostCannot:
        """Return the error that names the disk: nobody would look for it once the VM is gone."""
        name = self.disk.pool
        return HostCannot(
            f"the storage pool {name} {why}; the disk {self.disk.path} stays",
            hint=f"{first}, then virsh pool-start {name}; or delete the VM with delete-vm --keep-disks",
            check="pool",
            pool=name,
            path=self.disk.path,
        )

    def verify(self, world: World) -> None:
        """See that it is gone."""
        if world.storage.pool(self.disk.pool) is None:
            return
        if world.storage.volume(self.disk.pool, self.disk.volume) is not None:
            raise VerifyFailed(
                f"the disk {self.disk.path} was deleted but is still there",
                hint=f"virsh vol-list {self.disk.pool}; ls -l {self.disk.path}",
                path=self.disk.path,
            )

    def undo(self, world: World) -> None:
        """Nothing: what is deleted is gone."""
