# SPDX-License-Identifier: Apache-2.0
"""Which paths lead to this host's own disks or to a known server: accessing a file on a lost server can hang forever.

So the check accesses nothing inside a mount of a remote file system. It reads the mounts from /proc/self/mountinfo
(proc_pid_mountinfo(5)).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

_LOCAL_FILE_SYSTEMS = re.compile(
    r"bcachefs|btrfs|devtmpfs|ext[234]|f2fs|iso9660|jfs|overlay|ramfs|squashfs|tmpfs|udf|vfat|xfs|zfs"
)
_OCTAL = re.compile(rb"\\([0-7]{3})")
_MAX_LINKS = 40
"""The kernel follows no more than this either (path_resolution(7))."""


def is_reachable(path: str, reachable: Collection[str]) -> bool:
    """Return whether a path crosses only local file systems, and those that the paths in `reachable` cross.

    Raises:
        OSError: the mounts cannot be read.
    """
    remote_mounts = _read_remote_mounts()
    allowed_mounts = {mount for other in reachable for mount in _crossed_mounts(other, remote_mounts)}
    return all(mount in allowed_mounts for mount in _crossed_mounts(path, remote_mounts))


def _crossed_mounts(path: str, remote_mounts: Collection[str]) -> Iterator[str]:
    """Yield the remote mounts that a path crosses, also through links, each before it is accessed."""
    pending = _reversed_parts(path)
    current, links = "/", 0
    while pending:
        parent, current = current, os.path.normpath(os.path.join(current, pending.pop()))
        if current in remote_mounts:
            yield current
        try:
            target = os.readlink(current)
        except OSError:
            continue  # no link, or missing
        links += 1
        if links > _MAX_LINKS:
            return  # nobody can open it
        current = "/" if target.startswith("/") else parent
        pending += _reversed_parts(target)


def _reversed_parts(path: str) -> list[str]:
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _read_remote_mounts() -> frozenset[str]:
    """Return the mount points of remote file systems; of several mounts on one path the last one counts."""
    mounts: dict[str, bool] = {}
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        fields, _, kind = line.partition(b" - ")
        mount_point = _OCTAL.sub(lambda match: bytes([int(match[1], 8)]), fields.split()[4])
        mounts[os.fsdecode(mount_point)] = _LOCAL_FILE_SYSTEMS.fullmatch(os.fsdecode(kind.split()[0])) is not None
    return frozenset(mount_point for mount_point, local in mounts.items() if not local)
