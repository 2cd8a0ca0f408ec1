# SPDX-License-Identifier: Apache-2.0
"""Disks built byte by byte for the tests of images."""

import struct
import uuid

ESP = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b"
BIOS_BOOT = "21686148-6449-6e6f-744e-656564454649"
LINUX = "0fc63daf-8483-4772-8e79-3d69d8477de4"
SIZE = 1 << 20


def gpt(*kinds, block=512, code=b"", attributes=0):
    """A disk with a GPT of these partition types; `code`: boot code in its protective MBR."""
    disk = bytearray(SIZE)
    disk[: len(code)] = code
    disk[446:462] = struct.pack("<B3xB3xII", 0, 0xEE, 1, SIZE // block - 1)
    disk[510:512] = b"\x55\xaa"
    header = struct.pack("<8sIIIIQQQQ16sQIII", b"EFI PART", 0x10000, 92, 0, 0, 1, 0, 34, 0, b"d" * 16, 2, 128, 128, 0)
    disk[block : block + len(header)] = header
    for number, kind in enumerate(kinds):
        entry = struct.pack("<16s16sQQQ72s", uuid.UUID(kind).bytes_le, b"p" * 16, 64, 127, attributes, b"")
        disk[2 * block + 128 * number : 2 * block + 128 * (number + 1)] = entry
    return bytes(disk)


def mbr(*partitions, code=b""):
    """A disk with an MBR of (active, type) partitions."""
    disk = bytearray(SIZE)
    disk[: len(code)] = code
    for number, (active, kind) in enumerate(partitions):
        entry = struct.pack("<B3xB3xII", 0x80 if active else 0, kind, 64, 64)
        disk[446 + 16 * number : 462 + 16 * number] = entry
    disk[510:512] = b"\x55\xaa"
    return bytes(disk)


def iso():
    """A hybrid ISO: an ISO 9660 file system with an MBR for USB sticks in front of it."""
    disk = bytearray(mbr((True, 0xEF), code=b"isolinux"))
    disk[0x8000:0x8006] = b"\x01CD001"
    return bytes(disk)
