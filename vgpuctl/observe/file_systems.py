# SPDX-License-Identifier: Apache-2.0
"""Which files of a host are on a file system that other hosts have, too: /proc/self/mountinfo (proc_pid_mountinfo(5)).

The kinds are those that libvirt treats as shared (virFileIsSharedFS in virfile.c), and Lustre.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vgpuctl.value import EMPTY_MAPPING, Value

if TYPE_CHECKING:
    from vgpuctl.ports.devices import Sysfs

_MOUNTINFO = "/proc/self/mountinfo"
_SHARED_KINDS = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "fuse.ceph", "fuse.ceph-fuse", "glusterfs", "fuse.glusterfs",
    "ocfs2", "gfs2", "lustre", "gpfs", "afs", "acfs", "beegfs", "fuse.quobyte", "quobyte",
})  # fmt: skip
_ESCAPE = re.compile(r"\\([0-7]{3})", re.ASCII)


class FileSystems(Value):
    """The kinds of the file systems of a host by their directories; empty where they could not be read."""

    kinds: Mapping[str, str] = EMPTY_MAPPING

    def is_shared(self, path: str) -> bool:
        """Return whether a path, without links, is on a file system that other hosts have, too; False if unknown."""
        directory = path
        while directory not in self.kinds and directory not in ("", "/"):
            directory = directory.rpartition("/")[0] or "/"
        return self.kinds.get(directory) in _SHARED_KINDS


def read_file_systems(sysfs: Sysfs) -> FileSystems:
    """Return the mounted file systems."""
    try:
        return parse_file_systems(sysfs.read(_MOUNTINFO))
    except OSError:
        return FileSystems()


def parse_file_systems(text: str) -> FileSystems:
    """Return what mountinfo says: the fifth word is the directory, the one after the hyphen the kind.

    Of several on one directory the last one is on top.
    """
    kinds: dict[str, str] = {}
    for line in text.splitlines():
        mount, hyphen, rest = line.partition(" - ")
        words, kind = mount.split(" "), rest.split(" ")[0]
        if hyphen and len(words) > 4 and kind:
            kinds[_ESCAPE.sub(lambda match: chr(int(match[1], 8)), words[4])] = kind
    return FileSystems(kinds)
