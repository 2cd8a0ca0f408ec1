# SPDX-License-Identifier: Apache-2.0
"""Detects which firmware a disk needs to boot, from the first 64 KiB that a guest would see.

GPT header and entries: UEFI specification 2.10, chapter 5; the header is in block 1, of 512 or 4096 bytes. MBR:
446 bytes of boot code, four entries of 16 bytes, 0x55AA. ISO 9660 has "CD001" at 0x8001.
"""

from __future__ import annotations

import struct

HEAD_BYTES = 65536

_EFI_SYSTEM = bytes.fromhex("28732ac11ff8d211ba4b00a0c93ec93b")  # c12a7328-f81f-11d2-ba4b-00a0c93ec93b
_BIOS_BOOT = b"Hah!IdontNeedEFI"  # 21686148-6449-6e6f-744e-656564454649
_LEGACY_BOOTABLE = 1 << 2
_MBR_EFI_TYPE, _MBR_PROTECTIVE = 0xEF, 0xEE
_MBR_CODE_BYTES = 446
_ISO_OFFSET, _ISO_MAGIC = 0x8001, b"CD001"


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
