# SPDX-License-Identifier: Apache-2.0
"""Steps that move a disk into the bin of its storage pool, out of it, and delete it there for good.

The record of the VM has the entry before the disk moves, so whoever finishes a removal moves it to the same entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.errors import HostCannot, Refused, VerifyFailed
from vgpuctl.model.deleted_disk import BINNED_KINDS, BinEntry, parse_bin_entry
from vgpuctl.model.numbers import count_text
from vgpuctl.model.vm import DiskRole, ManagedDisk
from vgpuctl.operations.steps.storage import DeleteVolume
from vgpuctl.ports.step import Removal, Step

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host
    from vgpuctl.ports.libvirt import VolumeBin


def volume_bin(host: Host) -> VolumeBin:
    """Return the port of the bins.

    Raises:
        HostCannot: this host has none.
    """
    if host.volume_bin is None:
        raise HostCannot("deleted disks cannot be reached on this host", check="pool")
    return host.volume_bin


def has_entry(host: Host, pool: str, entry: str) -> bool:
    """Return whether a bin has this entry."""
    binned = volume_bin(host).volumes(pool)
    return any(one.entry is not None and one.entry.name == entry for one in binned)


def removal_of(disk: ManagedDisk) -> Step:
    """Return the step that removes a disk: into the bin if its record says so."""
    return DeleteVolume(disk) if disk.bin_entry is None else MoveToBin(disk)


class MoveToBin(Step):
    """Move a disk into the bin instead of deleting it."""

    disk: ManagedDisk

    def describe(self) -> str:
        """Say for how long it is kept."""
        what = "cloud-init seed" if self.disk.role is DiskRole.SEED else "disk"
        entry = parse_bin_entry(self.disk.bin_entry or "")
        days = "" if entry is None else f" for {count_text(entry.keep_days, 'day')}"
        return f"move {what} {self.disk.path} to the bin{days}"

    def perform(self, host: Host) -> None:
        """Move it, and start its pool first if it is inactive. A disk that is gone or in the bin is no error.

        Raises:
            HostCannot: the pool is gone or cannot be started, or the entry is damaged; the disk stays.
            Refused: volumes of this pool cannot be renamed; the disk stays.
        """
        entry = self._entry()
        if DeleteVolume(self.disk).open_pool(host):
            volume_bin(host).prepare(self.disk.pool)
            volume_bin(host).move_in(self.disk.pool, self.disk.volume, entry.name)

    def _entry(self) -> BinEntry:
        entry = parse_bin_entry(self.disk.bin_entry or "")
        if entry is None:
            raise HostCannot(
                f"the record of {self.disk.path} names no entry of a bin, but {self.disk.bin_entry!a}; the disk stays",
                hint="virsh dumpxml VM shows the record, in <metadata>",
                check="pool",
                path=self.disk.path,
            )
        return entry

    def verify(self, host: Host) -> None:
        """Check that the disk is not at its former place any more."""
        DeleteVolume(self.disk).verify(host)

    def undo(self, host: Host) -> None:
        """Move it back if it is in the bin."""
        pool, entry = self.disk.pool, self._entry().name
        if host.storage.pool(pool) is not None and has_entry(host, pool, entry):
            volume_bin(host).move_out(pool, entry, self.disk.volume)


class RestoreDisk(Step):
    """Move an entry out of the bin, under a name that is free."""

    pool: str
    entry: BinEntry
    volume: str

    def describe(self) -> str:
        """Say whose disk it was."""
        return f"move {self.entry.volume} of {self.entry.vm} out of the bin of {self.pool}, as {self.volume}"

    def perform(self, host: Host) -> None:
        """Move it; raises Exists if the name is taken."""
        volume_bin(host).move_out(self.pool, self.entry.name, self.volume)

    def verify(self, host: Host) -> None:
        """Check that it is a volume of the pool and no longer in the bin."""
        if host.storage.volume(self.pool, self.volume) is None or has_entry(host, self.pool, self.entry.name):
            raise VerifyFailed(
                f"{self.volume} is not a volume of the pool {self.pool}, or is still in its bin",
                hint=f"virsh vol-list {self.pool}; vgpuctl list-deleted",
                pool=self.pool,
            )

    def undo(self, host: Host) -> None:
        """Move it back into the bin if it was moved out."""
        if not has_entry(host, self.pool, self.entry.name):
            volume_bin(host).move_in(self.pool, self.volume, self.entry.name)


class PurgeDisk(Removal):
    """Delete an entry of the bin for good."""

    pool: str
    entry: BinEntry

    def describe(self) -> str:
        """Say whose disk it was."""
        return f"delete {self.entry.volume} of {self.entry.vm} from the bin of {self.pool}"

    def perform(self, host: Host) -> None:
        """Delete it; one that is gone already is no error."""
        volume_bin(host).delete(self.pool, self.entry.name)

    def verify(self, host: Host) -> None:
        """Check that the bin does not have it any more."""
        if has_entry(host, self.pool, self.entry.name):
            raise VerifyFailed(
                f"{self.entry.volume} was deleted from the bin of {self.pool} but is still there",
                hint="vgpuctl list-deleted",
                pool=self.pool,
            )


def refuse_pool_without_bin(host: Host, disk: ManagedDisk) -> None:
    """Refuse to remove a disk that must wait in the bin, from a pool that cannot have one.

    Raises:
        Refused: naming the pool and its kind.
    """
    pool = host.storage.pool(disk.pool) if disk.bin_entry is not None else None
    if pool is not None and pool.kind not in BINNED_KINDS:
        raise Refused(
            f"{disk.path} must wait in the bin, and the storage pool {pool.name} has none: it is of the kind "
            f"{pool.kind}, whose volumes cannot be renamed",
            hint="root can delete it; nothing was changed",
            pool=pool.name,
            path=disk.path,
            rule="agent.limits.each_account.keep_deleted_days",
        )
