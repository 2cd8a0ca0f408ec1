# SPDX-License-Identifier: Apache-2.0
"""Reads the folders of licenses for guests."""

from __future__ import annotations

import posixpath
import re
from shlex import quote
from typing import TYPE_CHECKING

from vgpuctl.config.licenses import LICENSE_DIRECTORY, LICENSE_PATTERN, LicenseFiles, parse_license
from vgpuctl.errors import InvalidInput, NotFound, Refused, unreadable_error
from vgpuctl.model.license import License
from vgpuctl.model.numbers import format_utc
from vgpuctl.model.port_values import FilePermissions

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

_OTHERS, _OTHERS_WRITE = 0o077, 0o022
"""The permission bits of everybody but the owner."""


def _is_roots(permissions: FilePermissions, forbidden: int) -> bool:
    """Return whether nobody but root has a file or folder in hand."""
    return permissions.owner == 0 and not permissions.mode & forbidden


def is_roots_alone(host: Host, path: str) -> bool:
    """Return whether nobody but root can read or change a file, nor put another in its place.

    Raises:
        OSError: that cannot be read.
    """
    folder = posixpath.dirname(path)
    return _is_roots(host.sysfs.permissions(path), _OTHERS) and _is_roots(host.sysfs.permissions(folder), _OTHERS_WRITE)


def list_licenses(host: Host) -> tuple[str, ...]:
    """Return the names of the licenses, sorted.

    Raises:
        OSError: the folder of all licenses exists and cannot be read.
    """
    try:
        names = host.sysfs.listdir(LICENSE_DIRECTORY)
        return tuple(name for name in names if re.fullmatch(LICENSE_PATTERN, name, re.ASCII))
    except (FileNotFoundError, NotADirectoryError):
        return ()


def read_all_licenses(host: Host) -> tuple[LicenseFiles, ...]:
    """Return the folders of all licenses, by name; where they cannot be listed, one that says so."""
    try:
        return tuple(read_license_files(host, name) for name in list_licenses(host))
    except OSError as error:
        return (LicenseFiles("", {}, problem=f"{LICENSE_DIRECTORY}: {error.strerror or error}"),)


def read_token_expiries(host: Host) -> dict[str, float]:
    """Return when the token of each license expires, in seconds since 1970, by the license's name.

    0: no guest can use it, for which `doctor` has the reason. Left out: one without an expiry, or that cannot be read
    now.
    """
    expiries: dict[str, float] = {}
    for files in read_all_licenses(host):
        if files.problem is not None:
            continue
        try:
            expiry = parse_license(files).expiry
        except ValueError:
            expiry = 0.0
        if expiry is not None:
            expiries[files.name] = expiry
    return expiries


def read_license_files(host: Host, name: str) -> LicenseFiles:
    """Return what is in the folder of a license; whatever cannot be read is its problem."""
    folder = f"{LICENSE_DIRECTORY}/{name}"
    texts, open_paths = {}, []
    try:
        paths = {folder: None, **{f"{folder}/{file}": file for file in host.sysfs.listdir(folder)}}
        if not _is_roots(host.sysfs.permissions(LICENSE_DIRECTORY), _OTHERS_WRITE):
            open_paths.append(LICENSE_DIRECTORY)
        for path, file in paths.items():
            if not _is_roots(host.sysfs.permissions(path), _OTHERS):
                open_paths.append(path)
            if file is not None:
                texts[file] = host.sysfs.read(path)
    except OSError as error:
        return LicenseFiles(name, {}, problem=f"{error.filename or folder}: {error.strerror or error}")
    return LicenseFiles(name, texts, tuple(open_paths))


def read_license(host: Host, name: str) -> License:
    """Return a license that guests can get now.

    Raises:
        NotFound: there is no such license.
        FileFailed: the folder of all licenses cannot be read.
        InvalidInput: its folder is not as it should be, or its token has expired.
        Refused: others than root can read or change it.
    """
    try:
        known = list_licenses(host)
    except OSError as error:
        raise unreadable_error(LICENSE_DIRECTORY, error) from error
    if name not in known:
        there_are = f"there are {', '.join(known)}" if known else "there is none"
        raise NotFound(
            f"there is no license {name} on this host: {there_are}",
            hint=f"make its folder, and put the token there: sudo install -d -m 700 {LICENSE_DIRECTORY}/{name} && sudo "
            f"install -m 600 client_configuration_token_*.tok {LICENSE_DIRECTORY}/{name}",
            license=name,
        )
    files = read_license_files(host, name)
    problem = ""
    try:
        read = parse_license(files)
    except ValueError as error:
        problem = str(error)
    if problem:
        raise InvalidInput(problem, hint="vgpuctl doctor license-token", license=name)
    if files.open_paths:
        paths = " ".join(map(quote, files.open_paths))
        raise Refused(
            f"the license {name} is not root's alone: {', '.join(files.open_paths)}",
            hint=f"sudo chown root: {paths} && sudo chmod go= {paths}",
            license=name,
        )
    if read.expiry is not None and read.expiry < host.clock.now():
        raise InvalidInput(
            f"the token of the license {name} expired at {format_utc(int(read.expiry))}: guests get no license with it",
            hint=f"download a new one from NVIDIA's licensing portal or license server, and put it into {files.path}",
            license=name,
        )
    return read
