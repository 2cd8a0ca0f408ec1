# SPDX-License-Identifier: Apache-2.0
"""Whether QEMU's user reaches an image."""

import os
import struct

import pytest

from vgpuctl.host import qemu_access
from vgpuctl.host.qemu_access import QemuUser, read_qemu_user

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
