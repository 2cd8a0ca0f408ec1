# SPDX-License-Identifier: Apache-2.0
"""Whether a VM that moves finds its disks and discs on the other host, or can take them along."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterator

from vgpuctl.model.numbers import format_bytes
from vgpuctl.model.results.migration import MigratingDiskResult, MigrationReasonResult
from vgpuctl.model.vm import VmState
from vgpuctl.operations.plans.facts import DEFAULT_POOL, DEFAULT_POOL_PATH, DIRECTORY_POOLS, MIN_POOL_FREE_BYTES
from vgpuctl.operations.plans.migration_target import Pair, copied_file

Reasons = Iterator[MigrationReasonResult]
_SHARED_HINT = "stop the VM, and move its disks to storage that both hosts mount at the same path"


def is_copied(disk: MigratingDiskResult) -> bool:
    """Return whether a disk goes along only with --copy-storage; a disc that vgpuctl did not make never does."""
    return not disk.is_shared and (disk.made or disk.kind == "disk")


def _is_block_device(pair: Pair, disk: MigratingDiskResult) -> bool:
    kind = next((known.kind for known in pair.domain.disks if known.target == disk.device), None)
    return kind == "block" or (kind == "volume" and disk.path.startswith("/dev/"))


def _block_device_reasons(pair: Pair) -> Reasons:
    for disk in pair.offer.disks:
        if is_copied(disk) and _is_block_device(pair, disk):
            yield pair.here(
                f"disk {disk.device} ({disk.path}) is a logical volume or another block device, and --copy-storage "
                "copies only files",
                _SHARED_HINT,
            )


def disk_reasons(pair: Pair) -> Reasons:
    """Yield why a disk would be missing there, or cannot be copied."""
    copied = [disk for disk in pair.offer.disks if is_copied(disk) and not _is_block_device(pair, disk)]
    yield from _block_device_reasons(pair)
    if copied and not pair.copies_disks:
        files = " and ".join(f"{disk.device} ({disk.path or 'a file'})" for disk in copied)
        noun, verb = ("disks", "are") if len(copied) > 1 else ("disk", "is")
        add = "add --copy-storage; or " if all(map(_is_in_pool, copied)) else ""
        yield pair.here(f"{noun} {files} {verb} only on {pair.source}", f"{add}{_SHARED_HINT}")
    for disk in copied if pair.copies_disks else ():
        yield from _copy_reasons(pair, disk)
    shared = [disk.device for disk in pair.offer.disks if disk.made and disk.is_shared]
    alone = [disk.device for disk in copied if disk.made]
    if pair.copies_disks and shared and alone:
        yield pair.here(
            f"{_are(shared)} shared and {_are(alone)} only on {pair.source}: --copy-storage cannot mix them",
            f"{_SHARED_HINT}: all of its disks, or none",
        )
    for disk in pair.offer.disks:
        if disk.is_shared or pair.copies_disks:
            yield from _base_reasons(pair, disk)
        if not is_copied(disk) and pair.facts.files.get(disk.path) is False and not _is_optional(pair, disk):
            yield pair.there(*_missing_text(pair, disk))
    for path in pair.domain.files:
        if path != pair.vm.render_node and pair.facts.files.get(path) is False:
            yield pair.there(f"{path} is missing, which the VM needs to start", _copy_hint(pair, path))
    node = pair.vm.render_node
    if node is not None and pair.facts.files.get(node) is False:
        yield pair.there(
            f"QEMU draws for the VM on {node}, which this host does not have",
            f"on {pair.source}: vgpuctl stop-vm {shlex.quote(pair.offer.name)}, then vgpuctl set-vm "
            f"{shlex.quote(pair.offer.name)} --gpu ADDRESS: the PCI address of a GPU for drawing that both hosts have",
        )


def _are(names: list[str]) -> str:
    return f"{', '.join(names)} {'are' if len(names) > 1 else 'is'}"


def _copy_hint(pair: Pair, path: str) -> str:
    return pair.on_source(f"scp -p {shlex.quote(path)} root@{pair.target}:{shlex.quote(path)}")


def _is_optional(pair: Pair, disk: MigratingDiskResult) -> bool:
    return any(d.target == disk.device and d.is_optional for d in pair.domain.disks)


def _missing_text(pair: Pair, disk: MigratingDiskResult) -> tuple[str, str]:
    if disk.kind in ("cdrom", "floppy"):
        return (
            f"the file {disk.path} of the VM's {disk.kind} {disk.device} is missing",
            f"copy it to {pair.target}, or take it out on {pair.source}: virsh change-media "
            f"{shlex.quote(pair.offer.name)} {disk.device} --eject {_scope(pair)}",
        )
    return (
        f"the VM's disk {disk.device} is shared ({disk.path}), and this host has no such file",
        f"{pair.on_target('mount its file system at the same path')}; on {pair.source}, findmnt -T "
        f"{shlex.quote(disk.path)} shows it",
    )


def _scope(pair: Pair) -> str:
    return "--config" if pair.offer.state == VmState.STOPPED else "--live --config"


def is_made_with_pool(disk: MigratingDiskResult) -> bool:
    """Return whether a copy of a disk may be in libvirt's usual pool, which is made there as for a new VM."""
    return disk.pool == DEFAULT_POOL and posixpath.dirname(disk.path) == DEFAULT_POOL_PATH


def _is_in_pool(disk: MigratingDiskResult) -> bool:
    return disk.pool is not None and disk.volume is not None


def _copy_reasons(pair: Pair, disk: MigratingDiskResult) -> Reasons:
    name = f"disk {disk.device}"
    if disk.pool is None or disk.volume is None:  # as `_is_in_pool`
        yield pair.here(
            f"{name} ({disk.path}) is in no storage pool that vgpuctl knows: --copy-storage copies only disks of pools",
            _SHARED_HINT,
        )
        return
    pool = pair.facts.pools.get(disk.pool)
    quoted = shlex.quote(disk.pool)
    if pool is None and is_made_with_pool(disk):
        yield from _file_reasons(pair, disk)
        return
    if pool is None:
        yield pair.there(
            f"this host has no storage pool '{disk.pool}' for the copy of {name}",
            pair.on_target(
                f"virsh pool-define-as {quoted} dir --target {shlex.quote(posixpath.dirname(disk.path))}; "
                f"virsh pool-build {quoted}; virsh pool-start {quoted}; virsh pool-autostart {quoted}"
            ),
        )
    elif not pool.active:
        yield pair.there(f"the storage pool '{disk.pool}' is not active", pair.on_target(f"virsh pool-start {quoted}"))
    elif pool.kind not in DIRECTORY_POOLS:
        yield pair.there(
            f"the storage pool '{disk.pool}' is of kind {pool.kind}, and --copy-storage copies only into directories "
            f"({', '.join(DIRECTORY_POOLS)})",
            _SHARED_HINT,
        )
    else:
        path = copied_file(pool, disk.volume)
        if path != disk.path:
            yield pair.there(
                f"the storage pool '{disk.pool}' of this host is at {pool.path}, and the copy of {name} must be at "
                f"{disk.path}",
                pair.on_target(
                    f"if no VM uses {pool.path}: virsh pool-edit {quoted}: set its path to "
                    f"{posixpath.dirname(disk.path)}; then virsh pool-destroy {quoted} (it only stops it); virsh "
                    f"pool-build {quoted}; virsh pool-start {quoted}"
                ),
            )
        else:
            yield from _file_reasons(pair, disk)
        if pool.available_bytes is not None and pool.available_bytes < MIN_POOL_FREE_BYTES:
            yield pair.there(
                f"the storage pool '{disk.pool}' is full: {format_bytes(pool.available_bytes)} are free"
                + (f", and {disk.device} has up to {format_bytes(disk.size_bytes)}" if disk.size_bytes else ""),
                pair.on_target(f"df -h {shlex.quote(pool.path or '')}"),
            )


def _file_reasons(pair: Pair, disk: MigratingDiskResult) -> Reasons:
    if pair.facts.files.get(disk.path) and not _has_same_vm(pair):  # else that VM is to be looked at first
        yield pair.there(
            f"{disk.path} exists already, where the copy of disk {disk.device} would be",
            pair.on_target(
                f"grep -l {shlex.quote(disk.path)} /etc/libvirt/qemu/*.xml shows the VMs that use it; if none does, "
                "and no disk is a clone of it: rename the file"
            ),
        )


def _has_same_vm(pair: Pair) -> bool:
    return any(vm.uuid == pair.offer.uuid for vm in pair.facts.snapshot.vms)


def _base_reasons(pair: Pair, disk: MigratingDiskResult) -> Reasons:
    if disk.base is not None and pair.facts.files.get(disk.base) is False:
        yield pair.there(
            f"disk {disk.device} is a linked clone of {disk.base}, which is missing",
            _copy_hint(pair, disk.base),
        )


def disk_warnings(pair: Pair) -> Reasons:
    """Yield what of the disks may surprise."""
    for disk in pair.offer.disks:
        if not is_copied(disk) and pair.facts.files.get(disk.path) is False and _is_optional(pair, disk):
            yield pair.there(
                f"the disc {disk.path} in {disk.device} is missing: the VM arrives with an empty drive", None
            )
    if not pair.copies_disks:
        return
    sizes: dict[str, int] = {}
    for disk in filter(is_copied, pair.offer.disks):
        pool = None if disk.pool is None else pair.facts.pools.get(disk.pool)
        if pool is not None:
            sizes[pool.name] = sizes.get(pool.name, 0) + (disk.size_bytes or 0)
    for name, size in sizes.items():
        free = getattr(pair.facts.pools[name], "available_bytes", None)
        if free is not None and size > free >= MIN_POOL_FREE_BYTES:
            yield pair.there(
                f"the copied disks can grow to {format_bytes(size)}, and the storage pool '{name}' has "
                f"{format_bytes(free)} free",
                None,
            )
