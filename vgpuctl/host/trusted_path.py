# SPDX-License-Identifier: Apache-2.0
"""Where a path leads, and whether root alone decides that.

A program that checks a path for somebody else, and opens it later, is only safe if nobody but root can put another file
there meanwhile. So the path is followed here part by part from the root directory, and each directory that is crossed,
also those that hold a link, must be root's and writable by root alone: then no later lookup leads elsewhere. Mode bits
tell it also with POSIX ACLs: an entry that lets somebody write shows in the group's bits, which are then the mask
(acl(5)).

A file system that a user mounted (FUSE, option `user_id`) shows whatever its program wants, so it counts as that
user's.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection
from pathlib import Path

from vgpuctl.model.port_values import ResolvedPath

MOUNTINFO = "/proc/self/mountinfo"
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_OCTAL = re.compile(rb"\\([0-7]{3})")
_USER = b"user_id="
_MAX_LINKS = 40
"""The kernel follows no more than this either (path_resolution(7))."""


def resolve_path(
    path: str,
    file_owners: Collection[int],
    *,
    root: str = "",
    root_uid: int = 0,
    mountinfo: str = MOUNTINFO,
) -> ResolvedPath | None:
    """Follow a path to a file; None when nothing is there, or when it is neither a file nor a directory.

    `file_owners`: who besides root may own the file itself. `root`: the directory that stands for `/`, without a slash
    at its end; `root_uid`: who counts as root. Both are for tests, and for captured trees.

    Raises:
        OSError: a part cannot be read.
    """
    current, links = "/", 0
    exposure = _find_exposure(root, current, os.lstat(root or "/"), {root_uid})
    pending = path.split("/")[::-1]
    while pending:
        part = pending.pop()
        if part in ("", "."):
            continue
        if part == "..":
            current = os.path.dirname(current)
            continue
        following = os.path.join(current, part)
        try:
            status = os.lstat(root + following)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _MAX_LINKS:
                return None
            target = os.readlink(root + following)
            current = "/" if target.startswith("/") else current
            pending += target.split("/")[::-1]
            continue
        is_directory = stat.S_ISDIR(status.st_mode)
        if not is_directory and (any(pending) or not stat.S_ISREG(status.st_mode)):
            return None
        owners = {root_uid} if is_directory else {root_uid, *file_owners}
        exposure = exposure or _find_exposure(root, following, status, owners)
        current = following
    return ResolvedPath(current, exposure or _find_user_mount(root + current, mountinfo))


def _find_exposure(root: str, path: str, status: os.stat_result, owners: Collection[int]) -> str | None:
    kind = "folder" if stat.S_ISDIR(status.st_mode) else "file"
    if status.st_uid not in owners:
        return f"the {kind} {root + path} belongs to uid {status.st_uid}"
    by_group = status.st_mode & stat.S_IWGRP and status.st_gid != 0
    if (kind == "folder" and status.st_mode & _WRITABLE_BY_OTHERS) or status.st_mode & stat.S_IWOTH or by_group:
        return f"users other than root can write to the {kind} {root + path} (mode {stat.S_IMODE(status.st_mode):04o})"
    return None


def _find_user_mount(path: str, mountinfo: str) -> str | None:
    """Return the sentence about a file system of a user that the path is on (proc_pid_mountinfo(5))."""
    for line in Path(mountinfo).read_bytes().splitlines():
        fields, _, rest = line.partition(b" - ")
        kind, *_, options = rest.split()
        mount_point = os.fsdecode(_OCTAL.sub(lambda match: bytes([int(match[1], 8)]), fields.split()[4]))
        user = next((o[len(_USER) :] for o in options.split(b",") if o.startswith(_USER)), b"0")
        if kind.startswith(b"fuse") and user != b"0" and f"{path}/".startswith(f"{mount_point}/"):
            return f"{mount_point} is a file system that uid {os.fsdecode(user)} mounted"
    return None


def require_trusted_program(path: str, *, owner: int = 0, top: str = "/") -> None:
    """Check that only `owner` can change which program a path leads to: the file, and each directory on the way.

    `top`: directories above it are not checked, because tests cannot make theirs at the root. A link can only be
    replaced by who may write to its directory.

    Raises:
        PermissionError: somebody else can change it.
        OSError: there is no such program.
    """
    pending, current, links = path.split("/"), "/", 0
    while pending:
        _require_unwritable(current, owner, top)
        name = pending.pop(0)
        following = os.path.normpath(os.path.join(current, name))
        if name in ("", ".", ".."):
            current = following
            continue
        if stat.S_ISLNK(os.lstat(following).st_mode):
            links += 1
            if links > _MAX_LINKS:
                raise OSError(f"{path}: too many symbolic links")
            target = os.readlink(following)
            pending = [*target.split("/"), *pending]
            current = "/" if target.startswith("/") else current
        else:
            current = following
    _require_unwritable(current, owner, top)
    if not stat.S_ISREG(os.stat(current).st_mode) or not os.access(current, os.X_OK):
        raise PermissionError(f"{path} is not a program")


def _require_unwritable(path: str, owner: int, top: str) -> None:
    if os.path.commonpath((path, top)) != os.path.normpath(top):
        return
    status = os.stat(path)
    group_is_root = status.st_gid == 0 and not status.st_mode & stat.S_IWOTH
    if status.st_uid != owner or (status.st_mode & _WRITABLE_BY_OTHERS and not group_is_root):
        raise PermissionError(f"{path} must belong to root and be writable by root alone: ls -ld {path}")
