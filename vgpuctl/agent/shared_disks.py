# SPDX-License-Identifier: Apache-2.0
"""Finds disks of a VM that another host may use, too: two hosts that write to one disk destroy it.

Local is what is provably so: files on local file systems, and block devices whose disks below are on this machine's own
buses. A LUN of a storage network (Fibre Channel, iSCSI, NVMe over fabrics), a network disk, and what cannot be found
out, count as shared. What a block device lies on is in /sys/dev/block and its `slaves` (kernel's
Documentation/ABI/stable/sysfs-block); the path of a device names the bus.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator

from vgpuctl.model.vm import DiskRef, Vm
from vgpuctl.ports.host import Host

_LOCAL_POOLS = frozenset({"dir", "fs", "logical"})
_NETWORK_PATHS = re.compile(r"/(session|rport-|nvme-fabrics)")
"""Parts of a SCSI disk's path over iSCSI (drivers/scsi/scsi_transport_iscsi.c) and Fibre Channel, and NVMe's."""
_LOCAL_VIRTUAL = re.compile(r"(loop|ram|zram|zd|pmem)[0-9]")
_MAX_DEVICES = 256


def find_shared_disk(host: Host, vm: Vm) -> str | None:
    """Return a disk of a VM that another host may use, too, or that is missing; None: all are local.

    Raises:
        VgpuctlError: libvirt does not say where a volume is.
    """
    paths: list[str] = []
    for disk in (disk for disk in vm.disks if disk.device in ("disk", "lun")):
        path = _path_of(host, disk)
        if path is None:
            return _name_of(disk)
        paths.append(path)
    local = host.storage.image_files(paths, reachable=())
    for path in paths:
        file = local.get(path)
        if file is None or (file.identity.startswith("device ") and not _is_local_device(host, file.identity)):
            return path
    return None


def _path_of(host: Host, disk: DiskRef) -> str | None:
    if disk.volume is None:
        return disk.source
    pool = host.storage.pool(disk.volume[0])
    return None if pool is None or pool.kind not in _LOCAL_POOLS or not pool.path else f"{pool.path}/{disk.volume[1]}"


def _name_of(disk: DiskRef) -> str:
    return f"the disk {disk.target}" if disk.volume is None else f"{disk.volume[1]} of the pool {disk.volume[0]}"


def _is_local_device(host: Host, identity: str) -> bool:
    """Return whether a block device, named by its number, lies on disks of this machine alone."""
    number = int(identity.removeprefix("device "))
    try:
        disks = list(_disks_below(host, f"/sys/dev/block/{os.major(number)}:{os.minor(number)}"))
        return all(_is_local_disk(host, path) for path in disks)
    except OSError:
        return False


def _disks_below(host: Host, start: str) -> Iterator[str]:
    """Yield the paths in /sys/devices of the disks and partitions that a block device lies on.

    Raises:
        OSError: one of them cannot be read.
    """
    waiting, count = [start], 0
    while waiting:
        link, count = waiting.pop(), count + 1
        path = posixpath.normpath(posixpath.join(posixpath.dirname(link), host.sysfs.readlink(link)))
        try:
            slaves = host.sysfs.listdir(f"{path}/slaves")
        except FileNotFoundError:  # a partition
            slaves = ()
        if count > _MAX_DEVICES:
            raise OSError(f"{start} lies on too many devices")
        if slaves:
            waiting += [f"/sys/class/block/{name}" for name in slaves]
        else:
            yield path


def _is_local_disk(host: Host, path: str) -> bool:
    if "/nvme-subsystem/" in path:  # the kernel's multipath: the disk has a path of each controller
        folder = posixpath.dirname(path)
        controllers = [name for name in host.sysfs.listdir(folder) if re.fullmatch("nvme[0-9]+", name)]
        transports = {host.sysfs.read(f"{folder}/{name}/transport").strip() for name in controllers}
        return transports == {"pcie"}
    if "/devices/virtual/" in path:
        return _LOCAL_VIRTUAL.match(posixpath.basename(path)) is not None
    return _NETWORK_PATHS.search(path) is None and not posixpath.basename(path).startswith("rbd")
