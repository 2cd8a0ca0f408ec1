# SPDX-License-Identifier: Apache-2.0
"""Whether QEMU's user can reach a disk image.

libvirt runs QEMU as an ordinary user (qemu.conf: user, group). Unless dynamic_ownership is 0, it changes the owner of
the image file to that user when the VM starts. It never changes directories: one without "x" for that user, such as
/root or a home directory, is the usual reason for "Permission denied" at the first start.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import stat

from vgpuctl.model.numbers import parse_integer
from vgpuctl.regular_file import read_regular_file
from vgpuctl.value import Value

_MAX_BYTES = 1 << 20
_SETTING = re.compile(r"^\s*(user|group|dynamic_ownership)\s*=\s*\"?([^\"#\s]+)\"?", re.M)
_USERS = ("libvirt-qemu", "qemu")  # Debian and Ubuntu; Red Hat, SUSE, Arch
_ACL = "system.posix_acl_access"


class QemuUser(Value):
    """The user who opens disk images. `owns_files`: libvirt makes this user the owner of image files."""

    name: str
    uid: int
    groups: frozenset[int]
    owns_files: bool


def read_qemu_user(config_path: str = "/etc/libvirt/qemu.conf") -> QemuUser:
    """Return the user as which the system's libvirt runs QEMU."""
    try:
        settings = dict(_SETTING.findall(read_regular_file(config_path, _MAX_BYTES).decode("utf-8", "replace")))
    except OSError:  # readable only by root on some hosts, and missing where the defaults apply
        settings = {}
    names = (settings["user"],) if "user" in settings else (*_USERS, "root")
    entry = next((user for user in map(_find_user, names) if user is not None), None)
    owns_files = settings.get("dynamic_ownership", "1") != "0"
    if entry is None:
        return QemuUser(names[0], -1, frozenset(), owns_files)
    groups = set(os.getgrouplist(entry.pw_name, entry.pw_gid))
    group = _find_group_id(settings["group"]) if "group" in settings else None
    return QemuUser(
        entry.pw_name, entry.pw_uid, frozenset(groups | ({group} if group is not None else set())), owns_files
    )


def session_qemu_user() -> QemuUser:
    """Return the current user: qemu:///session runs QEMU as the caller and changes no owner."""
    uid = os.geteuid()
    entry = _find_user(f"+{uid}")
    name = entry.pw_name if entry is not None else str(uid)
    return QemuUser(name, uid, frozenset({os.getegid(), *os.getgroups()}), owns_files=False)


def find_access_problem(path: str, user: QemuUser) -> str | None:
    """Return why the user cannot read an image, or None. POSIX ACLs are not evaluated: they count as permission."""
    if user.uid in (0, -1):
        return None
    for directory in _ancestors(path):
        try:
            allowed = _has_permission(directory, user, 0o1)
        except OSError as error:
            return f"{directory}: {error.strerror}"
        if not allowed:
            return (
                f"directory {directory} ({_describe_owner(directory)}) is not accessible to QEMU's user {user.name}: "
                f"chmod o+x {directory}, or setfacl -m u:{user.name}:x {directory}"
            )
    if user.owns_files or _has_permission(path, user, 0o4):
        return None
    return (
        f"file {path} ({_describe_owner(path)}) cannot be read by QEMU's user {user.name}: "
        f"chmod o+r {path}, or setfacl -m u:{user.name}:r {path}"
    )


def find_exposure(path: str, user: QemuUser) -> str | None:
    """Return which file or directory lets users other than root and QEMU's user change an image, or None.

    In a directory with the sticky bit, such as /tmp, nobody can replace another user's file.
    """
    trusted = {0, user.uid} if user.owns_files else {0, user.uid, os.geteuid()}
    for ancestor in (*_ancestors(path), path):
        try:
            status = os.stat(ancestor)
        except OSError as error:
            return f"{ancestor}: {error.strerror}"
        is_directory = stat.S_ISDIR(status.st_mode)
        by_group = status.st_mode & stat.S_IWGRP and status.st_gid not in {0, *user.groups}
        writable_by_others = bool(by_group or status.st_mode & stat.S_IWOTH) and not (
            is_directory and status.st_mode & stat.S_ISVTX
        )
        if writable_by_others or status.st_uid not in trusted:
            kind = "directory" if is_directory else "file"
            return (
                f"users other than root and {user.name} can change the {kind} {ancestor} ({_describe_owner(ancestor)})"
            )
    return None


def _ancestors(path: str) -> list[str]:
    """Return the directories on the path to a file, outermost first: those named, then those after following links."""
    directories: list[str] = []
    for absolute_path in (os.path.abspath(path), os.path.realpath(path)):
        parts = absolute_path.split("/")[1:-1]
        for directory in ("/" + "/".join(parts[:count]) for count in range(len(parts) + 1)):
            if directory not in directories:
                directories.append(directory)
    return directories


def _has_permission(path: str, user: QemuUser, bit: int) -> bool:
    """Return whether a permission (4 read, 1 search) is granted: the first matching class decides, as in the kernel."""
    status = os.stat(path)
    shift = 6 if status.st_uid == user.uid else 3 if status.st_gid in user.groups else 0
    return bool(status.st_mode >> shift & bit) or _has_acl(path)


def _has_acl(path: str) -> bool:
    try:
        return bool(os.getxattr(path, _ACL))
    except OSError:
        return False


def _describe_owner(path: str) -> str:
    status = os.stat(path)
    owner = _find_user(f"+{status.st_uid}")
    return f"mode {stat.S_IMODE(status.st_mode):04o}, owner {owner.pw_name if owner else status.st_uid}"


def _find_user(name: str) -> pwd.struct_passwd | None:
    """Look up a user; libvirt reads "+107" and, when there is no such name, "107" as a number."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        pass
    try:
        return pwd.getpwuid(int(name.removeprefix("+")))
    except (KeyError, ValueError):
        return None


def _find_group_id(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return parse_integer(name.removeprefix("+"))
