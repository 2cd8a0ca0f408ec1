# SPDX-License-Identifier: Apache-2.0
"""Disk images and ISOs that people name by path: format, size, what they boot with, and who can read them.

`qemu-img info -U` looks without taking the image's lock, so an image in use can be looked at too. Without
qemu-img the first bytes tell the formats that matter (docs/interop/qcow2.txt of QEMU).
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable

from vgpuctl.host import access, partitions
from vgpuctl.model.records import ImageRecord

_QCOW2_MAGIC = b"QFI\xfb"
_DEADLINE_SECONDS = 30.0


class Images:
    """Looks at image files for QEMU's user; `tool` is where qemu-img is, None when it is not installed."""

    def __init__(self, user: Callable[[], access.QemuUser | None], tool: Callable[[], str | None]) -> None:
        self._user = user
        self._tool = tool

    def look(self, path: str) -> ImageRecord | None:
        """Return what is known of an image, or None when there is no such file."""
        try:
            found = os.stat(path)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return None
            return ImageRecord(path, "unknown", 0, problem=f"{path}: {error.strerror}")
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISBLK(found.st_mode):
            return ImageRecord(path, "unknown", 0, problem=f"{path} is not a file or a block device")
        try:
            head = _head(path)
        except OSError as error:
            return ImageRecord(path, "unknown", found.st_size, problem=f"{path}: {error.strerror}")
        user = self._user()
        problem = None if user is None else access.problem(path, user)
        tool = self._tool()
        kind, size, complaint = _plain(head, path) if tool is None else _asked(tool, path)
        return ImageRecord(path, kind, size, self._firmware(tool, path, kind, head), problem or complaint)

    def _firmware(self, tool: str | None, path: str, kind: str, head: bytes) -> str:
        if kind == "raw":
            return partitions.firmware(head)
        if tool is None or kind == "unknown":
            return "unknown"
        inside = _guest_head(tool, path, kind)
        return "unknown" if inside is None else partitions.firmware(inside)


def _asked(tool: str, path: str) -> tuple[str, int, str | None]:
    """Return format, size and a complaint by qemu-img."""
    from vgpuctl.host import commands

    try:
        result = commands.run([tool, "info", "--output=json", "-U", "--", path], deadline_seconds=_DEADLINE_SECONDS)
    except OSError as error:
        return "unknown", 0, f"{path} cannot be looked at: {error}"
    if result.rc != 0:
        return "unknown", 0, result.complaint
    try:
        data = json.loads(result.stdout)
        return str(data["format"]), int(data["virtual-size"]), None
    except (ValueError, KeyError, TypeError):
        return "unknown", 0, f"qemu-img says nothing that can be read about {path}"


def _plain(head: bytes, path: str) -> tuple[str, int, str | None]:
    """Return format, size and a complaint by the first bytes alone."""
    if head.startswith(_QCOW2_MAGIC):
        return "qcow2", int.from_bytes(head[24:32], "big"), None
    with open(path, "rb") as file:
        return "raw", file.seek(0, os.SEEK_END), None


def _guest_head(tool: str, path: str, kind: str) -> bytes | None:
    """Return the first bytes that a guest sees in a formatted image, through a small temporary file."""
    import tempfile

    from vgpuctl.host import commands

    with tempfile.TemporaryDirectory(prefix="vgpuctl-") as directory:
        target = f"{directory}/head"
        one_block = (f"bs={partitions.HEAD_BYTES}", "count=1")
        try:
            result = commands.run(
                [tool, "dd", "-U", "-f", kind, "-O", "raw", *one_block, f"if={path}", f"of={target}"],
                deadline_seconds=_DEADLINE_SECONDS,
            )
            return _head(target) if result.rc == 0 else None
        except OSError:
            return None


def _head(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(partitions.HEAD_BYTES)
