# SPDX-License-Identifier: Apache-2.0
"""Reads the folders of licenses for guests."""

from __future__ import annotations

from contextlib import suppress
from shlex import quote
from typing import TYPE_CHECKING

from vgpuctl.config.licenses import LICENSE_DIRECTORY, LicenseFiles, parse_license
from vgpuctl.errors import InvalidInput, NotFound, Refused
from vgpuctl.model.license import License
from vgpuctl.model.numbers import format_utc

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

_OTHERS = 0o077
"""The permission bits of everybody but the owner."""


def list_licenses(host: Host) -> tuple[str, ...]:
    """Return the names of the licenses, sorted.

    Raises:
        OSError: the folder of all licenses exists and cannot be read.
    """
    try:
        return host.sysfs.listdir(LICENSE_DIRECTORY)
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

    Left out: one without an expiry, or that cannot be read, for which `doctor` has the reason.
    """
    expiries = {}
    for files in read_all_licenses(host):
        with suppress(ValueError):
            expiry = parse_license(files).expiry
            if expiry is not None:
                expiries[files.name] = expiry
    return expiries


def read_license_files(host: Host, name: str) -> LicenseFiles:
    """Return what is in the folder of a license; whatever cannot be read is its problem."""
    folder = f"{LICENSE_DIRECTORY}/{name}"
    texts, open_paths = {}, []
    try:
        paths = {folder: None, **{f"{folder}/{file}": file for file in host.sysfs.listdir(folder)}}
        for path, file in paths.items():
            if host.sysfs.permissions(path).mode & _OTHERS:
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
        InvalidInput: its folder is not as it should be, or its token has expired.
        Refused: others than root can read it.
    """
    known = list_licenses(host)
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
            f"others than root can read the license {name}: {', '.join(files.open_paths)}",
            hint=f"chmod go= {paths}",
            license=name,
        )
    if read.expiry is not None and read.expiry < host.clock.now():
        raise InvalidInput(
            f"the token of the license {name} expired at {format_utc(int(read.expiry))}: guests get no license with it",
            hint=f"download a new one from NVIDIA's licensing portal or the license server to {files.path}",
            license=name,
        )
    return read
