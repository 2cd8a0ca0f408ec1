# SPDX-License-Identifier: Apache-2.0
"""Image files, created with qemu-img, and what disks need to boot."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from tests.unit.host.disks import BIOS_BOOT, ESP, LINUX, SIZE, gpt, iso, mbr
from vgpuctl.host.boot_firmware import HEAD_BYTES, detect_firmware
from vgpuctl.host.commands import find_command
from vgpuctl.host.image_inspector import ImageInspector
from vgpuctl.host.qemu_access import QemuUser

TOOL = find_command("qemu-img")


def images(tool=TOOL, user=None):
    return ImageInspector(lambda: user, lambda name: tool and find_command(name))


@pytest.fixture
def raw(tmp_path):
    path = tmp_path / "disk.raw"
    path.write_bytes(gpt(BIOS_BOOT, ESP, code=b"boot"))
    return path


def converted(raw, *options):
    target = raw.with_suffix(".out")
    subprocess.run([TOOL, "convert", *options, raw, target], check=True)
    return str(target)


@pytest.mark.parametrize("tool", [None, TOOL])
def test_a_raw_disk(raw, tool):
    record = images(tool).inspect(str(raw))
    assert (record.format, record.virtual_size_bytes, record.firmware, record.access_problem) == (
        "raw",
        SIZE,
        "both",
        None,
    )


@pytest.mark.parametrize("tool", [None, TOOL])
def test_an_iso_is_raw_and_no_disk(tmp_path, tool):
    (tmp_path / "a.iso").write_bytes(iso())
    record = images(tool).inspect(str(tmp_path / "a.iso"))
    assert (record.format, record.firmware) == ("raw", "unknown")


@pytest.mark.parametrize("options", [["-Oqcow2"], ["-Oqcow2", "-c"], ["-Oqcow2", "-ocluster_size=512"]])
def test_a_formatted_disk_is_judged_by_what_the_guest_sees(raw, options):
    path = converted(raw, *options)
    before = Path(path).read_bytes()
    record = images().inspect(path)
    assert (record.format, record.virtual_size_bytes, record.firmware) == (options[0][2:], SIZE, "both")
    assert Path(path).read_bytes() == before


def test_a_linked_clone_shows_its_bases_partitions(raw):
    clone = str(raw.with_name("clone"))
    subprocess.run([TOOL, "create", "-q", "-fqcow2", f"-b{raw}", "-Fraw", clone], check=True)
    record = images().inspect(clone, lambda: [str(raw.parent)])
    assert (record.firmware, record.unsafe_reason) == ("both", None)
    assert [one.path for one in record.backing_chain] == [clone, str(raw)]


def test_an_empty_disk_needs_nothing(tmp_path):
    path = str(tmp_path / "empty.qcow2")
    subprocess.run([TOOL, "create", "-q", "-fqcow2", path, "1G"], check=True)
    record = images().inspect(path)
    assert (record.virtual_size_bytes, record.firmware) == (1 << 30, "none")


def test_without_the_tool_a_qcow2_is_known_but_not_what_is_in_it(raw):
    record = images(None).inspect(converted(raw, "-Oqcow2"))
    assert (record.format, record.virtual_size_bytes, record.firmware) == ("qcow2", SIZE, "unknown")


def test_a_broken_image_says_so(tmp_path):
    path = tmp_path / "broken.qcow2"
    path.write_bytes(b"QFI\xfb" + b"\xff" * 200)
    record = images().inspect(str(path))
    assert record.format == "unknown"
    assert "broken.qcow2 looks like a qcow2 image" in record.unsafe_reason


def test_a_name_that_looks_like_an_option_or_a_protocol_is_a_file(tmp_path, raw, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.link(raw, tmp_path / "-U")
    assert images().inspect(f"{tmp_path}/-U").format == "raw"
    os.link(raw, tmp_path / "nbd:x:1")
    assert images().inspect(f"{tmp_path}/nbd:x:1").firmware == "both"


def test_no_file_no_record(tmp_path, raw):
    assert images().inspect(str(tmp_path / "none")) is None
    assert images().inspect(f"{raw}/none") is None


def test_what_is_no_file_is_a_problem(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    assert images().inspect(str(tmp_path)).format == "directory"
    assert "not a file or a block device" in images().inspect(str(tmp_path / "fifo")).access_problem
    assert "not a file or a block device" in images().inspect("/dev/zero").access_problem


def test_who_cannot_reach_it_is_named(tmp_path, raw):
    user = QemuUser("libvirt-qemu", 64055, frozenset({64055}), owns_files=True)
    os.chmod(tmp_path, 0o700)
    problem = images(user=user).inspect(str(raw)).access_problem
    assert "libvirt-qemu" in problem


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
