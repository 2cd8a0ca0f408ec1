# SPDX-License-Identifier: Apache-2.0
"""What disks need to boot."""

import random

import pytest

from tests.unit.host.disks import BIOS_BOOT, ESP, LINUX, SIZE, gpt, iso, mbr
from vgpuctl.host.boot_firmware import HEAD_BYTES, detect_firmware

CODE = b"\xeb\x63\x90 boot"


@pytest.mark.parametrize(
    ("disk", "needs"),
    [
        (bytes(SIZE), "none"),
        (b"", "none"),
        (gpt(ESP, LINUX), "uefi"),
        (gpt(LINUX, ESP, block=4096), "uefi"),
        (gpt(BIOS_BOOT, LINUX, code=CODE), "bios"),
        (gpt(BIOS_BOOT, ESP, LINUX, code=CODE), "both"),
        (gpt(BIOS_BOOT, ESP, LINUX), "uefi"),  # space for boot code, but none written
        (gpt(LINUX, code=CODE, attributes=4), "bios"),
        (gpt(LINUX), "unknown"),
        (gpt(), "unknown"),
        (mbr((True, 0x83), code=CODE), "bios"),
        (mbr((False, 0x83), code=CODE), "unknown"),
        (mbr((False, 0x83), code=CODE + b"GRUB \0"), "bios"),
        (mbr((True, 0x83)), "unknown"),
        (mbr((False, 0xEF)), "uefi"),
        (mbr((True, 0x83), (False, 0xEF), code=CODE), "both"),
        (mbr(code=CODE), "bios"),  # a file system on the whole disk, with its boot sector
        (iso(), "unknown"),
        (b"\0" * 1024 + b"a file system on the bare disk", "unknown"),
    ],
)
def test_firmware(disk, needs):
    assert detect_firmware(disk[:HEAD_BYTES]) == needs


def test_no_disk_is_so_broken_that_it_cannot_be_judged():
    source = random.Random(1)
    whole = gpt(BIOS_BOOT, ESP, code=CODE)[:HEAD_BYTES]
    for _ in range(500):
        disk = bytearray(whole[: source.choice([100, 512, 600, 1024, 5000, HEAD_BYTES])])
        for _ in range(source.randrange(20)):
            disk[source.randrange(len(disk))] = source.randrange(256)
        assert detect_firmware(bytes(disk)) in ("uefi", "bios", "both", "none", "unknown")
