# SPDX-License-Identifier: Apache-2.0
"""Image files, created with qemu-img, what disks need to boot, and whether QEMU's user reaches an image."""

from __future__ import annotations

import os
import random
import struct
import subprocess
from pathlib import Path

import pytest

from tests.unit.host.disks import BIOS_BOOT, ESP, LINUX, SIZE, gpt, iso, mbr
from vgpuctl.host import qemu_access
from vgpuctl.host.backing_chain import HEAD_BYTES, detect_firmware
from vgpuctl.host.commands import find_command
from vgpuctl.host.images import ImageInspector
from vgpuctl.host.qemu_access import QemuUser, read_qemu_user

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


QEMU = QemuUser("libvirt-qemu", 64055, frozenset({64055, 36}), owns_files=True)
PLAIN = QemuUser("libvirt-qemu", 64055, frozenset({64055, 36}), owns_files=False)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")


@pytest.fixture
def place(tmp_path):
    """A directory that everyone can reach, even if pytest's own are private, with a file in it."""
    for directory in (tmp_path, *tmp_path.parents):
        if os.stat(directory).st_uid == os.geteuid() and str(directory) not in ("/", "/tmp"):
            os.chmod(directory, 0o755)
    (tmp_path / "a/b").mkdir(parents=True)
    image = tmp_path / "a/b/disk"
    image.write_text("")
    image.chmod(0o600)
    return tmp_path


def image_in(place):
    return str(place / "a/b/disk")


def test_open_directories_are_enough_where_libvirt_gives_the_file_away(place):
    assert qemu_access.find_access_problem(image_in(place), QEMU) is None


def test_the_first_closed_directory_is_named_with_what_opens_it(place):
    (place / "a").chmod(0o750)
    (place / "a/b").chmod(0o700)
    problem = qemu_access.find_access_problem(image_in(place), QEMU)
    assert f"directory {place}/a (mode 0750, owner" in problem
    assert "libvirt-qemu" in problem
    assert f"chmod o+x {place}/a" in problem
    assert f"setfacl -m u:libvirt-qemu:x {place}/a" in problem


def test_a_file_that_stays_its_owners_must_be_readable(place):
    assert "cannot be read" in qemu_access.find_access_problem(image_in(place), PLAIN)
    os.chmod(image_in(place), 0o604)
    assert qemu_access.find_access_problem(image_in(place), PLAIN) is None


@as_root
@pytest.mark.parametrize(
    ("owner", "group", "mode", "reached"),
    [
        (64055, 0, 0o700, True),
        (64055, 0, 0o077, False),  # the owner's bits decide for the owner, as in the kernel
        (0, 36, 0o710, True),
        (0, 36, 0o701, False),
        (0, 0, 0o701, True),
        (0, 0, 0o770, False),
    ],
)
def test_the_first_class_that_fits_decides(place, owner, group, mode, reached):
    os.chown(place / "a", owner, group)
    os.chmod(place / "a", mode)
    assert (qemu_access.find_access_problem(image_in(place), QEMU) is None) is reached


def test_root_reaches_everything(place):
    (place / "a").chmod(0o000)
    assert (
        qemu_access.find_access_problem(image_in(place), QemuUser("root", 0, frozenset({0}), owns_files=False)) is None
    )


def test_a_link_is_followed_to_the_directory_that_is_closed(place):
    (place / "closed").mkdir(mode=0o700)
    os.rename(image_in(place), place / "closed/disk")
    os.symlink(place / "closed/disk", image_in(place))
    assert f"directory {place}/closed " in qemu_access.find_access_problem(image_in(place), QEMU)


def acl(uid, mode):
    """The kernel's format of `setfacl -m u:UID:MODE` on a directory of mode 0700 (posix_acl_xattr.h)."""
    anyone = 0xFFFFFFFF
    entries = ((1, 7, anyone), (2, mode, uid), (4, 0, anyone), (16, mode, anyone), (32, 0, anyone))
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def test_an_acl_counts_as_allowed(place):
    (place / "a").chmod(0o700)
    assert qemu_access.find_access_problem(image_in(place), QEMU) is not None
    os.setxattr(place / "a", "system.posix_acl_access", acl(64055, 1))
    assert qemu_access.find_access_problem(image_in(place), QEMU) is None


def test_the_user_is_read_from_libvirts_configuration(tmp_path):
    conf = tmp_path / "qemu.conf"
    conf.write_text('#user = "nobody"\nuser = "root"  # mine\ngroup="+36"\n dynamic_ownership = 0\n')
    user = read_qemu_user(str(conf))
    assert (user.name, user.uid, user.owns_files) == ("root", 0, False)
    assert 36 in user.groups


@pytest.mark.parametrize(("text", "name"), [('user = "+65534"', "nobody"), ('user = "65534"', "nobody")])
def test_the_user_may_be_a_number(tmp_path, text, name):
    conf = tmp_path / "qemu.conf"
    conf.write_text(text)
    assert (read_qemu_user(str(conf)).name, read_qemu_user(str(conf)).owns_files) == (name, True)


def test_without_qemu_conf_the_user_is_the_distributions(tmp_path):
    assert read_qemu_user(str(tmp_path / "none")).name in ("libvirt-qemu", "qemu", "root")


def test_a_user_that_does_not_exist_is_no_ground_for_a_refusal(tmp_path, place):
    conf = tmp_path / "qemu.conf"
    conf.write_text('user = "no-such-user"')
    (place / "a").chmod(0o700)
    assert qemu_access.find_access_problem(image_in(place), read_qemu_user(str(conf))) is None


def test_a_session_has_this_user():
    user = qemu_access.session_qemu_user()
    assert (user.uid, user.owns_files) == (os.geteuid(), False)
