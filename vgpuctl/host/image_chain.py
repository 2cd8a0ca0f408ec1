# SPDX-License-Identifier: Apache-2.0
"""What an image file is and which files lie below it, read from its first bytes, before any program opens it.

Disk images come from the network, and qemu-img opens whatever file an image names. So the format is told by
content, the header of a qcow2 is read here, and every file below it is judged first. This closes what
CVE-2015-5162 (qemu-img without limits), CVE-2022-47951 (a VMDK that names a file of the host) and
CVE-2024-32498 (a qcow2 with an external data file, or with a backing file of the host) allowed in OpenStack.

The layout of a header is in QEMU's docs/interop/qcow2.txt, "Header" and "Header extensions". The signatures of
the other formats are those by which QEMU's own drivers recognise them (block/*.c, `bdrv_probe`).
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable

from vgpuctl.host.near_files import is_near
from vgpuctl.host.partitions import HEAD_BYTES
from vgpuctl.model.records import Glance
from vgpuctl.value import Value

MOST_FILES = 64
"""More files than that in one chain are a mistake or an attack."""

_QCOW2_MAGIC = b"QFI\xfb"
_EXTERNAL_DATA_FILE = 1 << 2
_BACKING_FORMAT = 0xE2792ACA
_LONGEST_BACKING_NAME = 1023
_PROTOCOL = re.compile(r"[^/]*:")
"""QEMU takes a name for a protocol's when a ':' comes before any '/' (block.c, path_has_protocol)."""
_OTHER_FORMATS = (
    (0, b"KDMV", "vmdk"),
    (0, b"COWD", "vmdk"),
    (0, b"conectix", "vpc"),
    (0, b"vhdxfile", "vhdx"),
    (0, b"QED\0", "qed"),
    (0, b"LUKS\xba\xbe", "luks"),
    (0, b"WithoutFreeSpace", "parallels"),
    (0, b"WithouFreSpacExt", "parallels"),
    (0, b"Bochs Virtual HD Image", "bochs"),
    (0, b"#!/bin/sh\n#V2.0 Format\nmodprobe cloop", "cloop"),
    (64, b"\x7f\x10\xda\xbe", "vdi"),
)
_VMDK_DESCRIPTOR = re.compile(rb"(?:[ \t]*(?:#[^\n]*)?\r?\n)*version=[0-9]+\s*\n")


class Header(Value):
    """The format of an image and what it names; `below` as it is written there."""

    format: str
    size_bytes: int
    below: str | None = None
    below_format: str | None = None
    data_file: bool = False


class Refusal(Exception):
    """An image that is not given to QEMU: why, and as which format qemu-img would convert it, None for not at all."""

    def __init__(self, text: str, convert: str | None = None) -> None:
        super().__init__(text)
        self.convert = convert


def read_head(path: str) -> tuple[os.stat_result, int, bytes]:
    """Return what a file is, its size and its first bytes; a block device's size is where its end is.

    Raises:
        OSError: it cannot be opened, is a directory (EISDIR), or neither a file nor a block device (EINVAL).
    """
    _require_image(path, os.stat(path))  # to open a device can have effects
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        seen = os.fstat(number)
        _require_image(path, seen)
        return seen, os.lseek(number, 0, os.SEEK_END), os.pread(number, HEAD_BYTES, 0)
    finally:
        os.close(number)


def _require_image(path: str, seen: os.stat_result) -> None:
    if stat.S_ISDIR(seen.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(seen.st_mode) and not stat.S_ISBLK(seen.st_mode):
        raise OSError(errno.EINVAL, "it is not a file or a block device", path)


def header_of(head: bytes, size: int) -> Header:
    """Return what the first bytes of an image say.

    Raises:
        ValueError: they begin like a qcow2 and are none.
    """
    if head.startswith(_QCOW2_MAGIC):
        return _qcow2(head)
    if _VMDK_DESCRIPTOR.match(head):
        return Header("vmdk", 0)
    for offset, magic, name in _OTHER_FORMATS:
        if head[offset : offset + len(magic)] == magic:
            return Header(name, 0)
    return Header("raw", -(-size // 512) * 512)  # QEMU counts in sectors


def _qcow2(head: bytes) -> Header:
    def number(offset: int, length: int) -> int:
        if offset + length > len(head):
            raise ValueError("its header is cut off")
        return int.from_bytes(head[offset : offset + length], "big")

    version = number(4, 4)
    if version == 1:
        return Header("qcow", number(24, 8))
    if version not in (2, 3):
        raise ValueError(f"its header names version {version} of qcow2, which does not exist")
    offset, length = number(8, 8), number(16, 4)
    below = None
    if offset:
        if not 0 < length <= _LONGEST_BACKING_NAME or offset + length > len(head):
            raise ValueError(f"its header names a backing file of {length} bytes at byte {offset}")
        below = os.fsdecode(head[offset : offset + length])
    extensions = 72 if version == 2 else number(100, 4)
    data_file = version == 3 and bool(number(72, 8) & _EXTERNAL_DATA_FILE)
    return Header("qcow2", number(24, 8), below, _backing_format(head, extensions), data_file)


def _backing_format(head: bytes, offset: int) -> str | None:
    """Return the format of the backing file that an extension of the header names."""
    while offset + 8 <= len(head):
        kind, length = (int.from_bytes(head[at : at + 4], "big") for at in (offset, offset + 4))
        if kind == 0:
            break
        if kind == _BACKING_FORMAT:
            return head[offset + 8 : offset + 8 + min(length, 16)].decode("ascii", "replace")
        offset += 8 + -(-length // 8) * 8
    return None


def glance(path: str, *, near: Collection[str] | None = None) -> Glance | None:
    """Return which file a path leads to, and the file below it; None where it cannot be read.

    With `near` it waits for no server but for those of the `near` files, and no device is read.
    """
    try:
        if near is not None and not is_near(path, near):
            return None
        if near is not None and stat.S_ISBLK((seen := os.stat(path)).st_mode):
            return Glance(path, _identity(seen), None, "")
        return _glance(path)[0]
    except OSError:
        return None


def _glance(path: str) -> tuple[Glance, Header | ValueError]:
    seen, size, head = read_head(path)
    device = stat.S_ISBLK(seen.st_mode)
    header: Header | ValueError
    try:
        header = header_of(head, size)
    except ValueError as error:
        header = error
    below = None if isinstance(header, ValueError) else _named(path, header.below)
    known = repr(header) if isinstance(header, ValueError) else f"{header.format} {header.below_format}"
    # No ctime: libvirt gives a base image to QEMU's user when a VM with a clone of it starts (dynamic_ownership).
    stamp = f"{size} {0 if device else seen.st_mtime_ns} {known}"
    return Glance(path, _identity(seen), below, stamp), header


def _identity(seen: os.stat_result) -> str:
    return f"device {seen.st_rdev}" if stat.S_ISBLK(seen.st_mode) else f"{seen.st_dev}:{seen.st_ino}"


def _named(path: str, below: str | None) -> str | None:
    """Return the path that a backing file's name means: QEMU starts at the directory of the file that names it."""
    if below is None or _PROTOCOL.match(below):
        return None
    return os.path.join(os.path.dirname(path), below)


def walk(path: str, pools: Callable[[], Iterable[str]]) -> tuple[Header, tuple[Glance, ...]]:
    """Return an image's header, and the image with the files below it, from the top down, all judged.

    Whether the image's own format is one that vgpuctl takes, the planner says.
    `pools`: the directories in which files below an image may be; they are asked for only when there are any.

    Raises:
        Refusal: it is no image for QEMU.
        OSError: the image itself cannot be read.
    """
    top, read = _glance(path)
    first = header = _checked(path, read)
    chain = [top]
    while header.below is not None:
        below = chain[-1].below
        name = repr(header.below)[1:-1][:200]
        where = "it" if len(chain) == 1 else chain[-1].path
        if below is None:
            raise Refusal(f"{where} names the backing file '{name}', which is no file of this host by its path")
        if header.below_format not in ("raw", "qcow2"):
            what = f"as {header.below_format}" if header.below_format else "without its format"
            raise Refusal(f"{where} names its backing file {below} {what}, so that QEMU would guess", "qcow2")
        _in_a_pool(where, below, pools)
        try:
            next_one, read = _glance(below)
        except OSError as error:
            raise Refusal(f"{where} has the backing file {below}, which cannot be read: {error.strerror}") from error
        if any(next_one.identity == one.identity for one in chain):
            raise Refusal(f"its backing files lead back to {below}: such an image never ends")
        if len(chain) == MOST_FILES:
            raise Refusal(f"it has more than {MOST_FILES} backing files, one below the other", "qcow2")
        if header.below_format == "raw":
            chain.append(Glance(below, next_one.identity, None, next_one.stamp))
            break
        chain.append(next_one)
        header = _checked(below, read)
        if header.format != "qcow2":
            raise Refusal(f"{where} names its backing file {below} as qcow2, and it is {header.format}")
    return first, tuple(chain)


def _checked(path: str, header: Header | ValueError) -> Header:
    if isinstance(header, ValueError):
        raise Refusal(f"{path} begins like a qcow2 image, and {header}")
    if header.data_file:
        raise Refusal(f"{path} keeps its data in another file (data_file), whichever that is", "qcow2")
    return header


def _in_a_pool(where: str, below: str, pools: Callable[[], Iterable[str]]) -> None:
    real = os.path.realpath(below)
    if not any(real.startswith(os.path.realpath(pool).rstrip("/") + "/") for pool in pools()):
        raise Refusal(f"{where} has the backing file {real}, which is in no storage pool of this host", "qcow2")
