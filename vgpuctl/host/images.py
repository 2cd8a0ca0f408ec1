# SPDX-License-Identifier: Apache-2.0
"""Disk images and ISOs that people name by path: format, size, what they boot with, and who can read them.

`image_chain` says what a file is, and refuses what QEMU must not open. Only then `qemu-img dd -U` reads the first
bytes that a guest sees in a qcow2: without taking the image's lock, so an image in use can be looked at too, with the
format named, and with limits on memory and CPU time, as OpenStack's Nova has them (nova/privsep/qemu.py,
`QEMU_IMG_LIMITS`: 1 GiB, 30 s).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable

from vgpuctl.host import access, partitions
from vgpuctl.host.image_chain import Refusal, header_of, read_head, walk
from vgpuctl.model.records import ImageRecord

_DEADLINE_SECONDS = 30.0
_LIMITS = ("--as=1073741824", "--cpu=30", "--core=0", "--")


class Images:
    """Looks at image files for QEMU's user; `tool` is where a program is by name, None when it is not installed."""

    def __init__(self, user: Callable[[], access.QemuUser | None], tool: Callable[[str], str | None]) -> None:
        self._user = user
        self._tool = tool

    def look(self, path: str, pools: Callable[[], Iterable[str]] = tuple) -> ImageRecord | None:
        """Return what is known of an image, or None when there is no such file.

        `pools`: the directories in which the files below an image may be.
        """
        try:
            _, size, head = read_head(path)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return None
            kind = "directory" if error.errno == errno.EISDIR else "unknown"
            return ImageRecord(path, kind, 0, problem=f"{path}: {error.strerror}")
        user = self._user()
        problem = None if user is None else access.problem(path, user)
        try:
            header, chain = walk(path, pools)
        except Refusal as error:
            kind = _kind(head, size)
            return ImageRecord(path, kind, 0, problem=problem, refusal=str(error), convert=error.convert)
        firmware, complaint = partitions.firmware(head), None
        if header.format == "qcow2":
            firmware, complaint = self._firmware(path, header.format)
        exposed = () if user is None else tuple(e for c in chain if (e := access.exposure(c.path, user)) is not None)
        return ImageRecord(
            path, header.format, header.size_bytes, firmware, problem or complaint, chain=chain, exposed=exposed
        )

    def _firmware(self, path: str, kind: str) -> tuple[str, str | None]:
        """Return what a formatted image boots with, and why QEMU cannot open it."""
        tool, limit = self._tool("qemu-img"), self._tool("prlimit")
        if tool is None or limit is None:
            return "unknown", None
        inside, complaint = _guest_head([limit, *_LIMITS, tool], path, kind)
        return "unknown" if inside is None else partitions.firmware(inside), complaint


def _kind(head: bytes, size: int) -> str:
    try:
        return header_of(head, size).format
    except ValueError:
        return "unknown"


def _guest_head(tool: list[str], path: str, kind: str) -> tuple[bytes | None, str | None]:
    """Return the first bytes that a guest sees in a formatted image, through a small temporary file; else why not."""
    import tempfile

    from vgpuctl.host import commands

    with tempfile.TemporaryDirectory(prefix="vgpuctl-") as directory:
        target = f"{directory}/head"
        one_block = (f"bs={partitions.HEAD_BYTES}", "count=1")
        try:
            result = commands.run(
                [*tool, "dd", "-U", "-f", kind, "-O", "raw", *one_block, f"if={path}", f"of={target}"],
                deadline_seconds=_DEADLINE_SECONDS,
            )
            return (read_head(target)[2], None) if result.rc == 0 else (None, result.complaint)
        except OSError as error:
            return None, f"{path} cannot be looked at: {error}"
