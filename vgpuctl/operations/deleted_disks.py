# SPDX-License-Identifier: Apache-2.0
"""Disks that wait in the bin: those that an account with `keep_deleted_days` deletes. Root can restore and purge them.

A removal writes each disk's entry into the VM's record before it changes anything, so whoever finishes it after a crash
moves the disk to the same entry. An entry is one file or volume whose name is its record (`model.deleted_disk`): what
has another name, and what is no file, is shown and never touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import TYPE_CHECKING

from vgpuctl.errors import HostCannot, InvalidInput, NotFound, Refused, VgpuctlError
from vgpuctl.model.deleted_disk import BINNED_KINDS, BinEntry, BinnedVolume
from vgpuctl.model.numbers import count_text, format_utc
from vgpuctl.model.outcome import Context, Outcome, QueryResult
from vgpuctl.model.results.deleted_disks import DeletedDiskResult, PurgedResult, RestoredDiskResult
from vgpuctl.model.vm import ManagedDisk, Vm
from vgpuctl.operations.execute import execute_plan
from vgpuctl.operations.guards import require_writable
from vgpuctl.operations.steps.volume_bin import PurgeDisk, RestoreDisk, refuse_pool_without_bin, volume_bin
from vgpuctl.ports.step import Plan
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def with_bin_entry(host: Host, context: Context, vm: Vm, disk: ManagedDisk) -> ManagedDisk:
    """Return a disk that is about to be removed, with its entry if it is to wait in the bin.

    An entry that is in the record already stays: an interrupted removal began to move the disk there.

    Raises:
        Refused: names are too long for an entry.
    """
    caller = context.caller
    days = None if caller is None else caller.limits.keep_deleted_days
    if caller is None or days is None or disk.bin_entry is not None:
        return disk
    now = int(host.clock.now())
    entry = BinEntry(now, days, caller.account, vm.uuid, vm.name, disk.volume, disk.capacity_bytes)
    try:
        return replace(disk, bin_entry=entry.name)
    except ValueError as error:
        raise Refused(
            f"{disk.path} cannot wait in the bin: {error}",
            hint="ask root to delete it",
            path=disk.path,
            rule="agent.limits.each_account.keep_deleted_days",
        ) from error


def prepare_bins(host: Host, disks: Iterable[ManagedDisk]) -> None:
    """Make the bins of the pools from which disks are about to move there, while nothing else is changed yet.

    Raises:
        Refused: a pool can have no bin.
        HostCannot: LVM's programs are missing.
    """
    binned = [disk for disk in disks if disk.bin_entry is not None]
    for disk in binned:
        refuse_pool_without_bin(host, disk)
    for name in sorted({disk.pool for disk in binned}):
        pool = host.storage.pool(name)
        if pool is not None and pool.active:  # an inactive one is started, and gets its bin, when the disk moves
            volume_bin(host).prepare(name)


class _Bins(Value):
    """What is in the bins of all pools; `warnings`: what could not be read, and what is there besides."""

    disks: tuple[tuple[BinnedVolume, BinEntry], ...]
    warnings: tuple[str, ...]


def _read_bins(host: Host) -> _Bins:
    disks: list[tuple[BinnedVolume, BinEntry]] = []
    warnings: list[str] = []
    for pool in host.storage.pools():
        if pool.kind not in BINNED_KINDS:
            continue
        if not pool.active:
            warnings.append(f"the storage pool {pool.name} is not active, so its bin is not read")
            continue
        try:
            volumes = volume_bin(host).volumes(pool.name)
        except HostCannot as error:
            if error.facts.get("check") == "libvirt":
                raise
            warnings.append(error.message)
            continue
        except VgpuctlError as error:
            warnings.append(error.message)
            continue
        disks += [(volume, volume.entry) for volume in volumes if volume.entry is not None]
        warnings += [f"{v.path}: {v.problem}; it is left alone" for v in volumes if v.entry is None]
    disks.sort(key=lambda pair: (pair[1].deleted_at, pair[1].vm, pair[1].volume, pair[0].pool))
    return _Bins(tuple(disks), tuple(warnings))


def list_deleted(host: Host) -> QueryResult[tuple[DeletedDiskResult, ...]]:
    """Return the disks in the bins of all active pools, the oldest first."""
    bins, now = _read_bins(host), host.clock.now()
    return QueryResult(tuple(_result(volume, entry, now) for volume, entry in bins.disks), bins.warnings)


def _result(volume: BinnedVolume, entry: BinEntry, now: float) -> DeletedDiskResult:
    return DeletedDiskResult(
        id=entry.id,
        vm=entry.vm,
        vm_uuid=entry.vm_uuid,
        account=entry.account,
        pool=volume.pool,
        disk=entry.volume,
        path=volume.path,
        capacity_bytes=entry.capacity_bytes or None,
        allocated_bytes=volume.allocated_bytes,
        deleted_at=format_utc(entry.deleted_at),
        purge_at=format_utc(entry.purge_at),
        expired=entry.purge_at <= now,
    )


def _matching(disks: Sequence[tuple[BinnedVolume, BinEntry]], name: str) -> list[tuple[BinnedVolume, BinEntry]]:
    """Return the disks with this id, or of the VM with this name or uuid.

    Raises:
        NotFound: there is none.
    """
    matches = [pair for pair in disks if name in (pair[1].id, pair[1].vm, pair[1].vm_uuid)]
    if not matches:
        raise NotFound(f"the bin has no disk of {name}", hint="vgpuctl list-deleted shows ids and VMs", name=name)
    return matches


def restore_disk(host: Host, context: Context, name: str) -> Outcome[RestoredDiskResult]:
    """Make a disk in the bin a volume of its pool again, under its former name, or a similar one if that is taken.

    Raises:
        NotFound: there is no such disk.
        Refused: several disks have this name.
    """
    require_writable(host, context)
    bins = _read_bins(host)
    matches = _matching(bins.disks, name)
    if len(matches) > 1:
        ids = ", ".join(f"{entry.id} ({entry.volume})" for _, entry in matches)
        hint = f"vgpuctl restore-disk {matches[0][1].id}"
        raise Refused(f"the bin has {len(matches)} disks of {name}: {ids}", hint=hint, name=name)
    binned, entry = matches[0]
    volume = next(v for v in _volume_names(entry.volume) if host.storage.volume(binned.pool, v) is None)
    pool = host.storage.pool(binned.pool)
    path = f"{pool.path if pool is not None else ''}/{volume}"
    plan = Plan((RestoreDisk(binned.pool, entry, volume),))
    steps = tuple(step.describe() for step in plan.steps)
    result = RestoredDiskResult(entry.id, entry.vm, entry.vm_uuid, binned.pool, volume, path)
    if not context.dry_run:
        execute_plan(host, plan, context.progress)
    return Outcome(True, result, steps, bins.warnings, dry_run=context.dry_run)


def _volume_names(name: str) -> Iterable[str]:
    """Return the names to try, in order: `a.qcow2`, `a-restored-1.qcow2`, ..."""
    stem, dot, suffix = name.rpartition(".")
    first, last = (stem, f"{dot}{suffix}") if stem else (name, "")
    yield name
    yield from (f"{first}-restored-{number}{last}" for number in count(1))


def purge_deleted(
    host: Host, context: Context, names: Sequence[str] = (), *, expired: bool = False, everything: bool = False
) -> Outcome[PurgedResult]:
    """Delete disks in the bin for good: those with these ids or of these VMs, those whose time is over, or all.

    Raises:
        InvalidInput: not exactly one of the three is given.
        NotFound: there is no such disk.
        VgpuctlError: a disk could not be deleted; the others are.
    """
    require_writable(host, context)
    if [bool(names), expired, everything].count(True) != 1:
        raise InvalidInput("specify disks to purge, or --expired, or --all", hint="vgpuctl list-deleted shows them")
    bins, now = _read_bins(host), host.clock.now()
    chosen = list(bins.disks)
    if names:
        chosen = list(dict.fromkeys(pair for name in names for pair in _matching(bins.disks, name)))
    elif expired:
        chosen = [pair for pair in chosen if pair[1].purge_at <= now]
    purges = [PurgeDisk(volume.pool, entry) for volume, entry in chosen]
    steps = tuple(step.describe() for step in purges)
    result = PurgedResult(tuple(_result(volume, entry, now) for volume, entry in chosen))
    if context.dry_run or not purges:
        return Outcome(bool(purges), result, steps, bins.warnings, dry_run=context.dry_run)
    if not expired:
        context.confirm(f"Delete {count_text(len(purges), 'disk')} in the bin for good?", steps)
    _purge_each(host, context, purges)
    return Outcome(True, result, steps, bins.warnings)


def _purge_each(host: Host, context: Context, purges: Sequence[PurgeDisk]) -> None:
    """Carry out each; one that fails does not keep the others."""
    errors: list[VgpuctlError] = []
    left: list[str] = []
    context.progress.on_plan(tuple(step.describe() for step in purges))
    for number, step in enumerate(purges, start=1):
        context.progress.on_step_start(number, step.describe())
        try:
            step.perform(host)
            step.verify(host)
        except VgpuctlError as error:
            errors.append(error)
            left.append(f"{step.describe()}: {error.message}")
        else:
            context.progress.on_step_finish(number, step.describe())
    if errors:
        errors[0].left, errors[0].changed = left, len(errors) < len(purges)
        raise errors[0]
