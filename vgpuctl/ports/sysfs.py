# SPDX-License-Identifier: Apache-2.0
"""The port to the host's file tree: sysfs, procfs and the names in /dev."""

from __future__ import annotations

from typing import Protocol

from vgpuctl.model.port_values import FilePermissions


class Sysfs(Protocol):
    """The host's file tree: /sys, /proc, the names in /dev, /etc/vgpuctl. Paths are absolute.

    Every method raises OSError with the kernel's errno.
    """

    def read(self, path: str) -> str:
        """Return the whole file as text (undecodable bytes replaced)."""

    def listdir(self, path: str) -> tuple[str, ...]:
        """Return the sorted names in a directory."""

    def readlink(self, path: str) -> str:
        """Return a symbolic link's target; callers mostly need its last component."""

    def permissions(self, path: str) -> FilePermissions:
        """Return the owner, group and mode of a file or directory; a link is followed."""

    def write(self, path: str, text: str) -> None:
        """Write `text` in one write call, in this process: for creating a device, which never hangs in the kernel."""

    def write_uninterruptible(self, path: str, text: str, *, gpu: str, deadline_seconds: float) -> None:
        """Write in a child process, which may hang uninterruptibly in the kernel, and wait until the deadline at most.

        For removing and unbinding devices. The child is never signalled.

        Raises:
            OSError: the kernel refused it.
            Stuck: the deadline passed; the write is recorded in /run/vgpuctl/stuck and continues.
        """
