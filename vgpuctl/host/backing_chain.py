# SPDX-License-Identifier: Apache-2.0
"""Reads an image's format, backing chain and firmware from its first bytes, before any program opens the image.

Disk images come from the network, and qemu-img opens whatever file an image names. So vgpuctl detects the format by
content, parses a qcow2 header itself, and checks every backing file first. This prevents what CVE-2015-5162 (qemu-img
without limits), CVE-2022-47951 (a VMDK that names a file of the host) and CVE-2024-32498 (a qcow2 with an external data
file, or with a backing file of the host) allowed in OpenStack.

The layout of a header is in QEMU's docs/interop/qcow2.txt, "Header" and "Header extensions". The signatures of
the other formats are those by which QEMU's own drivers recognise them (block/*.c, `bdrv_probe`).

Accessing a file on a lost server can hang forever. So the check whether a path leads to this host's own disks or to a
known server accesses nothing inside a mount of a remote file system: it reads the mounts from /proc/self/mountinfo
(proc_pid_mountinfo(5)).

Which firmware a disk needs to boot shows in the first 64 KiB that a guest would see. GPT header and entries: UEFI
specification 2.10, chapter 5; the header is in block 1, of 512 or 4096 bytes. MBR: 446 bytes of boot code, four entries
of 16 bytes, 0x55AA. ISO 9660 has "CD001" at 0x8001.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from vgpuctl.model.port_values import ImageFile
from vgpuctl.value import Value

MAX_CHAIN_FILES = 64
"""A chain with more files is a mistake or an attack."""

_QCOW2_MAGIC = b"QFI\xfb"
_EXTERNAL_DATA_FILE = 1 << 2
_BACKING_FORMAT = 0xE2792ACA
_MAX_BACKING_NAME_BYTES = 1023
_PROTOCOL = re.compile(r"[^/]*:")
"""QEMU treats a name as a protocol if a ':' comes before any '/' (block.c, path_has_protocol)."""
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

HEAD_BYTES = 65536
_EFI_SYSTEM = bytes.fromhex("28732ac11ff8d211ba4b00a0c93ec93b")  # c12a7328-f81f-11d2-ba4b-00a0c93ec93b
_BIOS_BOOT = b"Hah!IdontNeedEFI"  # 21686148-6449-6e6f-744e-656564454649
_LEGACY_BOOTABLE = 1 << 2
_MBR_EFI_TYPE, _MBR_PROTECTIVE = 0xEF, 0xEE
_MBR_CODE_BYTES = 446
_ISO_OFFSET, _ISO_MAGIC = 0x8001, b"CD001"


class ImageHeader(Value):
    """The format of an image and the files that it names; `backing_file` exactly as in the header."""

    format: str
    size_bytes: int
    backing_file: str | None = None
    backing_format: str | None = None
    has_data_file: bool = False


class UnsafeImage(Exception):
    """Why an image is never given to QEMU; `convert_format`: from which format qemu-img could convert it, or None."""

    def __init__(self, text: str, convert: str | None = None) -> None:
        super().__init__(text)
        self.convert_format = convert


def read_image_head(path: str) -> tuple[os.stat_result, int, bytes]:
    """Return a file's status, its size and its first bytes; a block device's size is the offset of its end.

    Raises:
        OSError: it cannot be opened, is a directory (EISDIR), or is neither a file nor a block device (EINVAL).
    """
    _require_image(path, os.stat(path))  # before open(): opening a device can have effects
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        _require_image(path, status)
        return status, os.lseek(descriptor, 0, os.SEEK_END), os.pread(descriptor, HEAD_BYTES, 0)
    finally:
        os.close(descriptor)


def _require_image(path: str, seen: os.stat_result) -> None:
    if stat.S_ISDIR(seen.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(seen.st_mode) and not stat.S_ISBLK(seen.st_mode):
        raise OSError(errno.EINVAL, "it is not a file or a block device", path)


def parse_header(head: bytes, size: int) -> ImageHeader:
    """Parse the first bytes of an image.

    Raises:
        ValueError: they begin like a qcow2, but the header is invalid.
    """
    if head.startswith(_QCOW2_MAGIC):
        return _parse_qcow2(head)
    if _VMDK_DESCRIPTOR.match(head):
        return ImageHeader("vmdk", 0)
    for offset, magic, name in _OTHER_FORMATS:
        if head[offset : offset + len(magic)] == magic:
            return ImageHeader(name, 0)
    return ImageHeader("raw", -(-size // 512) * 512)  # QEMU counts in sectors


def _parse_qcow2(head: bytes) -> ImageHeader:
    def number(offset: int, length: int) -> int:
        if offset + length > len(head):
            raise ValueError("its header is truncated")
        return int.from_bytes(head[offset : offset + length], "big")

    version = number(4, 4)
    if version == 1:
        return ImageHeader("qcow", number(24, 8))
    if version not in (2, 3):
        raise ValueError(f"its header names version {version} of qcow2, which does not exist")
    offset, length = number(8, 8), number(16, 4)
    backing_file = None
    if offset:
        if not 0 < length <= _MAX_BACKING_NAME_BYTES or offset + length > len(head):
            raise ValueError(f"its header names a backing file of {length} bytes at byte {offset}")
        backing_file = os.fsdecode(head[offset : offset + length])
    extensions = 72 if version == 2 else number(100, 4)
    data_file = version == 3 and bool(number(72, 8) & _EXTERNAL_DATA_FILE)
    return ImageHeader("qcow2", number(24, 8), backing_file, _parse_backing_format(head, extensions), data_file)


def _parse_backing_format(head: bytes, offset: int) -> str | None:
    """Return the backing file's format from the header extension that names it."""
    while offset + 8 <= len(head):
        kind, length = (int.from_bytes(head[at : at + 4], "big") for at in (offset, offset + 4))
        if kind == 0:
            break
        if kind == _BACKING_FORMAT:
            return head[offset + 8 : offset + 8 + min(length, 16)].decode("ascii", "replace")
        offset += 8 + -(-length // 8) * 8
    return None


def read_image_files(paths: Iterable[str], *, reachable: Collection[str] | None = None) -> dict[str, ImageFile]:
    """Return, by path, the files that paths lead to, with their backing files; without those that cannot be read.

    With `reachable` it accesses no servers except those of the `reachable` files, and reads no devices. The mounts are
    read once for all paths.
    """
    files: dict[str, ImageFile] = {}
    with suppress(OSError):  # without the list of mounts, nothing is accessed
        mounts = None if reachable is None else Mounts.read(reachable)
        for path in paths:
            with suppress(OSError):
                if mounts is None:
                    files[path] = _read_image_file(path)[0]
                elif mounts.may_access(path):
                    files[path] = _read_without_devices(path)
    return files


def _read_without_devices(path: str) -> ImageFile:
    status = os.stat(path)
    if stat.S_ISBLK(status.st_mode):
        return ImageFile(path, _file_identity(status), None, "")
    return _read_image_file(path)[0]


def _read_image_file(path: str) -> tuple[ImageFile, ImageHeader | ValueError]:
    status, size, head = read_image_head(path)
    device = stat.S_ISBLK(status.st_mode)
    header: ImageHeader | ValueError
    try:
        header = parse_header(head, size)
    except ValueError as error:
        header = error
    backing_path = None if isinstance(header, ValueError) else _resolve_backing_path(path, header.backing_file)
    content = repr(header) if isinstance(header, ValueError) else f"{header.format} {header.backing_format}"
    # No ctime: when a VM with a clone of a base image starts, libvirt changes the base's owner (dynamic_ownership).
    stamp = f"{size} {0 if device else status.st_mtime_ns} {content}"
    return ImageFile(path, _file_identity(status), backing_path, stamp), header


def _file_identity(seen: os.stat_result) -> str:
    return f"device {seen.st_rdev}" if stat.S_ISBLK(seen.st_mode) else f"{seen.st_dev}:{seen.st_ino}"


def _resolve_backing_path(path: str, below: str | None) -> str | None:
    """Return the path of a backing file: QEMU resolves the name from the directory of the file that contains it."""
    if below is None or _PROTOCOL.match(below):
        return None
    return os.path.join(os.path.dirname(path), below)


def read_backing_chain(
    path: str, pool_directories: Callable[[], Iterable[str]]
) -> tuple[ImageHeader, tuple[ImageFile, ...]]:
    """Return an image's header, and the image with its backing files, from the top down, all checked.

    The planner decides whether vgpuctl accepts the image's own format. `pool_directories` returns the directories in
    which backing files may be; it is called only if the image has a backing file.

    Raises:
        UnsafeImage: the image is unsafe for QEMU.
        OSError: the image itself cannot be read.
    """
    top, header_or_error = _read_image_file(path)
    first = header = _require_safe_header(path, header_or_error)
    chain = [top]
    while header.backing_file is not None:
        backing_path = chain[-1].backing_path
        name = repr(header.backing_file)[1:-1][:200]
        parent = "it" if len(chain) == 1 else chain[-1].path
        if backing_path is None:
            raise UnsafeImage(f"{parent} names the backing file '{name}', which is not a local file")
        if header.backing_format not in ("raw", "qcow2"):
            description = f"as {header.backing_format}" if header.backing_format else "without its format"
            raise UnsafeImage(
                f"{parent} names its backing file {backing_path} {description}, so QEMU would have to guess", "qcow2"
            )
        _require_in_pool(parent, backing_path, pool_directories)
        try:
            backing, header_or_error = _read_image_file(backing_path)
        except OSError as error:
            raise UnsafeImage(
                f"{parent} has the backing file {backing_path}, which cannot be read: {error.strerror}"
            ) from error
        if any(backing.identity == file.identity for file in chain):
            raise UnsafeImage(f"its backing files form a loop through {backing_path}")
        if len(chain) == MAX_CHAIN_FILES:
            raise UnsafeImage(f"it has more than {MAX_CHAIN_FILES} backing filesin its chain", "qcow2")
        if header.backing_format == "raw":
            chain.append(ImageFile(backing_path, backing.identity, None, backing.content_stamp))
            break
        chain.append(backing)
        header = _require_safe_header(backing_path, header_or_error)
        if header.format != "qcow2":
            raise UnsafeImage(f"{parent} names its backing file {backing_path} as qcow2, and it is {header.format}")
    return first, tuple(chain)


def _require_safe_header(path: str, header: ImageHeader | ValueError) -> ImageHeader:
    if isinstance(header, ValueError):
        raise UnsafeImage(f"{path} looks like a qcow2 image, but {header}")
    if header.has_data_file:
        raise UnsafeImage(f"{path} keeps its data in another file (data_file)", "qcow2")
    return header


def _require_in_pool(where: str, below: str, pools: Callable[[], Iterable[str]]) -> None:
    real = os.path.realpath(below)
    if not any(real.startswith(os.path.realpath(pool).rstrip("/") + "/") for pool in pools()):
        raise UnsafeImage(f"{where} has the backing file {real}, which is in no storage pool of this host", "qcow2")


_LOCAL_FILE_SYSTEMS = re.compile(
    r"bcachefs|btrfs|devtmpfs|ext[234]|f2fs|iso9660|jfs|overlay|ramfs|squashfs|tmpfs|udf|vfat|xfs|zfs"
)
_OCTAL = re.compile(rb"\\([0-7]{3})")
_MAX_LINKS = 40
"""The kernel follows no more than this either (path_resolution(7))."""


class Mounts(Value):
    """The mount points of remote file systems, `remote`, and those of them that may be accessed, `allowed`."""

    remote: frozenset[str]
    allowed: frozenset[str]

    @classmethod
    def read(cls, reachable: Collection[str]) -> Mounts:
        """Read the mounts of this host; those that the paths in `reachable` cross may be accessed.

        Raises:
            OSError: they cannot be read.
        """
        remote = _read_remote_mounts()
        return cls(remote, frozenset(mount for path in reachable for mount in _crossed_mounts(path, remote)))

    def may_access(self, path: str) -> bool:
        """Return whether a path crosses only local file systems, and those that may be accessed."""
        return all(mount in self.allowed for mount in _crossed_mounts(path, self.remote))


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


def detect_firmware(head: bytes) -> str:
    """Return uefi, bios, both, none (an empty disk) or unknown."""
    if not head.strip(b"\0"):
        return "none"
    if head[_ISO_OFFSET : _ISO_OFFSET + len(_ISO_MAGIC)] == _ISO_MAGIC or head[510:512] != b"\x55\xaa":
        return "unknown"
    entries = _gpt_entries(head)
    if entries is None:
        uefi, bios = _detect_mbr_firmware(head)
    else:
        uefi = any(kind == _EFI_SYSTEM for kind, _ in entries)
        bios = any(kind == _BIOS_BOOT or flags & _LEGACY_BOOTABLE for kind, flags in entries)
        bios = bios and bool(head[:_MBR_CODE_BYTES].strip(b"\0"))
    return {(True, True): "both", (True, False): "uefi", (False, True): "bios"}.get((uefi, bios), "unknown")


def _gpt_entries(head: bytes) -> list[tuple[bytes, int]] | None:
    """Return type and attributes of each partition, or None when there is no GPT."""
    for block in (512, 4096):
        if head[block : block + 8] != b"EFI PART":
            continue
        start, count, size = struct.unpack_from("<QII", head, block + 72)
        if size < 128 or count > 1024:
            return []
        offsets = range(start * block, min(start * block + count * size, len(head) - 127), size)
        entries = [(head[offset : offset + 16], struct.unpack_from("<Q", head, offset + 48)[0]) for offset in offsets]
        return [entry for entry in entries if entry[0].strip(b"\0")]
    return None


def _detect_mbr_firmware(head: bytes) -> tuple[bool, bool]:
    """Return whether an MBR disk boots with UEFI, and with BIOS.

    A BIOS runs the boot code regardless of the active flag, but only GRUB's code boots without an active partition.
    """
    entries = [head[at : at + 16] for at in range(_MBR_CODE_BYTES, 510, 16)]
    if _has_file_system_boot_sector(head, entries):
        return False, True
    kinds = {entry[4] for entry in entries} - {0, _MBR_PROTECTIVE}
    code = head[:_MBR_CODE_BYTES]
    active = any(entry[0] == 0x80 and entry[4] for entry in entries)
    return _MBR_EFI_TYPE in kinds, bool(code.strip(b"\0")) and (active or (bool(kinds) and b"GRUB" in code))


def _has_file_system_boot_sector(head: bytes, entries: list[bytes]) -> bool:
    """Return whether block 0 is a file system's own boot sector: a jump over its parameters, and no partitions.

    A BIOS runs it (SYSLINUX installs itself there). The bytes in place of the partition entries are code then.
    """
    jumps = (head[0] == 0xEB and head[2] == 0x90) or head[0] == 0xE9
    return jumps and (not any(e[4] for e in entries) or any(e[0] not in (0, 0x80) for e in entries))
