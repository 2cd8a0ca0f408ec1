# SPDX-License-Identifier: Apache-2.0
"""Which paths lead to this host's own disks or a known server: to touch a file of one that is gone can take for ever.

So nothing below a mount of another file system is looked at to find out. What is mounted where tells
/proc/self/mountinfo (proc_pid_mountinfo(5)).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

_LOCAL = re.compile(r"bcachefs|btrfs|devtmpfs|ext[234]|f2fs|iso9660|jfs|overlay|ramfs|squashfs|tmpfs|udf|vfat|xfs|zfs")
_OCTAL = re.compile(rb"\\([0-7]{3})")
_MOST_LINKS = 40
"""The kernel follows no more either (path_resolution(7))."""


def is_near(path: str, near: Collection[str]) -> bool:
    """Say whether a path leads through file systems of this host's own disks alone, and those that `near` lead through.

    Raises:
        OSError: what is mounted cannot be read.
    """
    far = _far_mounts()
    known = {mount for one in near for mount in _passed(one, far)}
    return all(mount in known for mount in _passed(path, far))


def _passed(path: str, far: Collection[str]) -> Iterator[str]:
    """Yield the far mounts through which a path leads, by whatever links, each before it is touched."""
    left = _parts(path)
    here, links = "/", 0
    while left:
        above, here = here, os.path.normpath(os.path.join(here, left.pop()))
        if here in far:
            yield here
        try:
            target = os.readlink(here)
        except OSError:
            continue  # no link, or not there
        links += 1
        if links > _MOST_LINKS:
            return  # nobody can open it
        here = "/" if target.startswith("/") else above
        left += _parts(target)


def _parts(path: str) -> list[str]:
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _far_mounts() -> frozenset[str]:
    """Return where other file systems are mounted; of several on one place the last one counts."""
    mounts: dict[str, bool] = {}
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        place, _, kind = line.partition(b" - ")
        where = _OCTAL.sub(lambda found: bytes([int(found[1], 8)]), place.split()[4])
        mounts[os.fsdecode(where)] = _LOCAL.fullmatch(os.fsdecode(kind.split()[0])) is not None
    return frozenset(where for where, local in mounts.items() if not local)
