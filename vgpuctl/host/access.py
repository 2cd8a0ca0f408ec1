# SPDX-License-Identifier: Apache-2.0
"""Whether QEMU's user can reach a disk image.

libvirt runs QEMU as an ordinary user (qemu.conf: user, group) and, unless dynamic_ownership is 0, makes the
image file itself that user's when the VM starts. It never changes directories: one without "x" for that user,
as /root or a home directory, is the usual reason for "Permission denied" at the first start.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import stat

from vgpuctl.model.digits import whole
from vgpuctl.regular_file import read_regular
from vgpuctl.value import Value

_MOST_BYTES = 1 << 20
_SETTING = re.compile(r"^\s*(user|group|dynamic_ownership)\s*=\s*\"?([^\"#\s]+)\"?", re.M)
_USERS = ("libvirt-qemu", "qemu")  # Debian and Ubuntu; Red Hat, SUSE, Arch
_ACL = "system.posix_acl_access"


class QemuUser(Value):
    """Who opens disk images. `owns_files`: libvirt gives image files to this user."""

    name: str
    uid: int
    groups: frozenset[int]
    owns_files: bool


def qemu_user(conf: str = "/etc/libvirt/qemu.conf") -> QemuUser:
    """Return the user that the system's libvirt runs QEMU as."""
    try:
        settings = dict(_SETTING.findall(read_regular(conf, _MOST_BYTES).decode("utf-8", "replace")))
    except OSError:  # readable by root alone on some hosts, and absent where defaults are meant
        settings = {}
    names = (settings["user"],) if "user" in settings else (*_USERS, "root")
    entry = next((found for found in map(_user, names) if found is not None), None)
    owns_files = settings.get("dynamic_ownership", "1") != "0"
    if entry is None:
        return QemuUser(names[0], -1, frozenset(), owns_files)
    groups = set(os.getgrouplist(entry.pw_name, entry.pw_gid))
    group = _group(settings["group"]) if "group" in settings else None
    return QemuUser(
        entry.pw_name, entry.pw_uid, frozenset(groups | ({group} if group is not None else set())), owns_files
    )


def this_user() -> QemuUser:
    """Return ourselves: qemu:///session runs QEMU as the caller and changes no owner."""
    uid = os.geteuid()
    entry = _user(f"+{uid}")
    name = entry.pw_name if entry is not None else str(uid)
    return QemuUser(name, uid, frozenset({os.getegid(), *os.getgroups()}), owns_files=False)


def problem(path: str, user: QemuUser) -> str | None:
    """Say why the user cannot read an image, or None. POSIX ACLs are not evaluated: they count as allowed."""
    if user.uid in (0, -1):
        return None
    for directory in _ancestors(path):
        try:
            allowed = _may(directory, user, 0o1)
        except OSError as error:
            return f"{directory}: {error.strerror}"
        if not allowed:
            return (
                f"directory {directory} ({_described(directory)}) is closed to QEMU's user {user.name}: "
                f"chmod o+x {directory}, or setfacl -m u:{user.name}:x {directory}"
            )
    if user.owns_files or _may(path, user, 0o4):
        return None
    return (
        f"file {path} ({_described(path)}) cannot be read by QEMU's user {user.name}: "
        f"chmod o+r {path}, or setfacl -m u:{user.name}:r {path}"
    )


def exposure(path: str, user: QemuUser) -> str | None:
    """Say where somebody else than root and QEMU's user could change an image, or None.

    In a directory with the sticky bit, as /tmp, nobody can replace a file of somebody else.
    """
    trusted = {0, user.uid} if user.owns_files else {0, user.uid, os.geteuid()}
    for place in (*_ancestors(path), path):
        try:
            seen = os.stat(place)
        except OSError as error:
            return f"{place}: {error.strerror}"
        directory = stat.S_ISDIR(seen.st_mode)
        by_group = seen.st_mode & stat.S_IWGRP and seen.st_gid not in {0, *user.groups}
        open_to_more = bool(by_group or seen.st_mode & stat.S_IWOTH) and not (directory and seen.st_mode & stat.S_ISVTX)
        if open_to_more or seen.st_uid not in trusted:
            what = "directory" if directory else "file"
            return f"others than root and {user.name} can change the {what} {place} ({_described(place)})"
    return None


def _ancestors(path: str) -> list[str]:
    """Return the directories on the way to a file, outermost first: those named, then those links lead to."""
    found: list[str] = []
    for way in (os.path.abspath(path), os.path.realpath(path)):
        parts = way.split("/")[1:-1]
        for directory in ("/" + "/".join(parts[:count]) for count in range(len(parts) + 1)):
            if directory not in found:
                found.append(directory)
    return found


def _may(path: str, user: QemuUser, bit: int) -> bool:
    """Say whether a permission (4 read, 1 pass) is given: the first class that fits decides, as in the kernel."""
    found = os.stat(path)
    shift = 6 if found.st_uid == user.uid else 3 if found.st_gid in user.groups else 0
    return bool(found.st_mode >> shift & bit) or _has_acl(path)


def _has_acl(path: str) -> bool:
    try:
        return bool(os.getxattr(path, _ACL))
    except OSError:
        return False


def _described(path: str) -> str:
    found = os.stat(path)
    owner = _user(f"+{found.st_uid}")
    return f"mode {stat.S_IMODE(found.st_mode):04o}, owner {owner.pw_name if owner else found.st_uid}"


def _user(name: str) -> pwd.struct_passwd | None:
    """Look a user up; libvirt reads "+107" and, when there is no such name, "107" as a number."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        pass
    try:
        return pwd.getpwuid(int(name.removeprefix("+")))
    except (KeyError, ValueError):
        return None


def _group(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return whole(name.removeprefix("+"))
