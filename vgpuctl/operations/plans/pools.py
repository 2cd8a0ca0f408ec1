# SPDX-License-Identifier: Apache-2.0
"""Check the storage pool in which disks are to be created: its kind, and its free space.

A directory pool has thin qcow2 disks and linked clones. A logical pool (LVM) has raw volumes, each of which takes its
full size from the volume group at once; a disk with an image is a full copy of it. Others have not been tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

from vgpuctl.errors import HostCannot, NoSpace, NotFound
from vgpuctl.model.numbers import format_bytes
from vgpuctl.model.port_values import PoolInfo

DEFAULT_POOL = "default"
MIN_POOL_FREE_BYTES = 64 << 20
DIRECTORY_POOLS = ("dir", "fs", "netfs")
LOGICAL_POOL = "logical"
SEED_BYTES = 4 << 20
"""A seed for cloud-init on a logical pool: one extent of LVM's usual size."""


def is_logical(pool: PoolInfo | None) -> bool:
    """Say whether a pool is an LVM volume group: its disks are raw volumes of full size."""
    return pool is not None and pool.kind == LOGICAL_POOL


def check_pool(name: str, pool: PoolInfo | None) -> None:
    """Check the pool in which to create volumes.

    Raises:
        NotFound, HostCannot, NoSpace: as the message says.
    """
    if pool is None:
        if name == DEFAULT_POOL:
            return
        raise NotFound(
            f"libvirt has no storage pool '{name}'",
            hint="virsh pool-list --all shows the pools",
            pool=name,
        )
    if pool.path is None or pool.kind not in (*DIRECTORY_POOLS, LOGICAL_POOL):
        supported = ", ".join((*DIRECTORY_POOLS, LOGICAL_POOL))
        raise HostCannot(
            f"the storage pool '{pool.name}' is of kind {pool.kind}; vgpuctl creates disks only in pools of the kinds "
            f"{supported}",
            hint="choose another pool with --storage-pool; virsh pool-list --all --details shows them",
            check="pool-kind",
            pool=pool.name,
            kind=pool.kind,
        )
    free = pool.available_bytes
    if free is not None and free < MIN_POOL_FREE_BYTES and not is_logical(pool):
        raise NoSpace(
            f"the storage pool '{pool.name}' is full: {format_bytes(free)} free in {pool.path}",
            hint="delete what is not needed, or choose another pool with --storage-pool",
            pool=pool.name,
            available_bytes=free,
        )


def check_full_size(pool: PoolInfo | None, sizes: Sequence[int], *, vms: int = 1, growth: bool = False) -> None:
    """Check that disks of these sizes fit into a logical pool, once for each of several VMs.

    `growth`: a disk that is there grows by the size.
    An inactive pool reports no sizes: LVM itself refuses then, and what was made is undone.

    Raises:
        NoSpace: with what they need, what is free, and the pool's size.
    """
    if pool is None or pool.kind != LOGICAL_POOL or pool.available_bytes is None:
        return
    needed = sum(sizes) * vms
    if needed <= pool.available_bytes:
        return
    count = len(sizes) * vms
    what = f"{count} disks need" if count != 1 else "the disk needs"
    size = f"{format_bytes(needed)}{' more' if growth else ''}"
    total = "" if pool.capacity_bytes is None else f" of {format_bytes(pool.capacity_bytes)}"
    raise NoSpace(
        f"{what} {size}, and the storage pool '{pool.name}' has {format_bytes(pool.available_bytes)}{total} free: "
        "it is logical, where a disk takes its full size at once",
        hint=f"vgpuctl list-images --pool {quote(pool.name)} shows what takes it; or add a disk to the volume group: "
        "vgextend; or choose another pool with --storage-pool",
        pool=pool.name,
        needed_bytes=needed,
        available_bytes=pool.available_bytes,
        capacity_bytes=pool.capacity_bytes,
    )
