# SPDX-License-Identifier: Apache-2.0
"""The files of images that a controller brings to this host; implements `ports.system.ImageFolders`."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from vgpuctl.host.atomic_files import sync_directory
from vgpuctl.host.qemu_access import QemuUser, read_qemu_user

MODE, OPEN_MODE = 0o640, 0o644


class HostImageFolders:
    """Images in folders of this host. `find_qemu_user`: who reads them besides root."""

    def __init__(self, find_qemu_user: Callable[[], QemuUser] = read_qemu_user) -> None:
        self._user = find_qemu_user

    def local_path(self, path: str) -> str:
        """Return the path."""
        return path

    def file_bytes(self, path: str) -> int | None:
        """Return the size of a regular file or a device, None if there is none."""
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not stat.S_ISBLK(status.st_mode):
            return status.st_size
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.lseek(descriptor, 0, os.SEEK_END)
        finally:
            os.close(descriptor)

    def free_bytes(self, directory: str) -> int:
        """Return how much a file system has free."""
        status = os.statvfs(directory)
        return status.f_bavail * status.f_frsize

    def publish(self, part: str, path: str, format_name: str, size_bytes: int) -> None:
        """Let QEMU's group read a file, and give it its name: all or nothing, also after a power cut.

        Raises:
            FileExistsError: there is a file of this name.
        """
        user = self._user()
        descriptor = os.open(part, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            group = min(user.groups - {0}, default=None)
            if group is not None and os.geteuid() == 0:
                os.fchown(descriptor, 0, group)
            os.fchmod(descriptor, OPEN_MODE if group is None else MODE)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.link(part, path)
        os.unlink(part)
        sync_directory(Path(path).parent)

    def remove(self, path: str) -> None:
        """Delete a file; a missing one is no error."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        sync_directory(Path(path).parent)
