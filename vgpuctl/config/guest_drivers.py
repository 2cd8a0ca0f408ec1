# SPDX-License-Identifier: Apache-2.0
"""Files with NVIDIA's driver for guests: what their names say, and whether the content is what the name says.

The names are NVIDIA's: `NVIDIA-Linux-x86_64-580.159.03-grid.run`, `nvidia-linux-grid-580_580.159.03_amd64.deb` and
`nvidia-linux-grid-580-580.159.03-1.x86_64.rpm`, and for Windows
`582.53_grid_win10_win11_server2022_server2025_dch_64bit_international.exe`; without `grid`, a driver for whole GPUs
only. The builds of clouds have the cloud in the name, and their licenses are for that cloud.
"""

from __future__ import annotations

import posixpath
import re

from vgpuctl.config import rules
from vgpuctl.config.arguments import NONE
from vgpuctl.model.guest_driver import DriverName

MIN_BYTES, MAX_BYTES = 1 << 20, 2 << 30
"""NVIDIA's files have 50 to 600 MiB."""
_VERSION = r"(?P<version>[0-9]{3,4}(\.[0-9]{1,4}){1,2})"
_NAMES = tuple(
    re.compile(pattern, re.ASCII)
    for pattern in (
        rf"NVIDIA-Linux-(?P<machine>x86_64|aarch64)-{_VERSION}(?P<build>-[a-z-]+)?\.(?P<kind>run)",
        rf"nvidia-linux-grid-[0-9]+_{_VERSION}(-[0-9]+)?_(?P<machine>amd64|arm64)(?P<build>)\.(?P<kind>deb)",
        rf"nvidia-linux-grid-[0-9]+-{_VERSION}(-[0-9]+)?\.(?P<machine>x86_64|aarch64)(?P<build>)\.(?P<kind>rpm)",
        rf"{_VERSION}(?P<build>(?=[a-z0-9_-]*win1[01])[_-][a-z0-9_-]*)(?P<machine>64bit)[a-z0-9_-]*\.(?P<kind>exe)",
    )
)
_MACHINES = {"amd64": "x86_64", "64bit": "x86_64", "arm64": "aarch64"}
_CLOUDS = re.compile(r"(?<![a-z])(aws|azure|gcp|swl|oci|alibaba|tencent)(?![a-z])", re.IGNORECASE | re.ASCII)
_BEGINNINGS = {"run": b"#!", "deb": b"!<arch>\ndebian-binary", "rpm": b"\xed\xab\xee\xdb", "exe": b"MZ"}
_VERSION_IN_RUN = re.compile(rb"^(?:pkg_)?version(?:_string)?=\"?([0-9.]+)\"?$", re.MULTILINE)
_EXAMPLE = "NVIDIA-Linux-x86_64-VERSION-grid.run"
_WINDOWS_EXAMPLE = "VERSION_grid_win10_win11_server2022_server2025_dch_64bit_international.exe"


def guest_driver(value: object) -> str:
    """Check the path of a file with a driver, by its name, or `none`."""
    text = rules.as_text(value)
    if text == NONE:
        return text
    path = rules.path(text)
    parse_driver_name(path)
    return path


def parse_driver_name(path: str) -> DriverName:
    """Return what the name of a driver's file says.

    Raises:
        ValueError: it is no name of NVIDIA's drivers for guests.
    """
    name = posixpath.basename(path)
    if cloud := _CLOUDS.search(name):
        raise ValueError(
            f"{name!a} is a build for a cloud ({cloud[1]}): its license is for that cloud; use the file of NVIDIA's "
            f"licensing portal, such as {_EXAMPLE}"
        )
    if "vgpu-kvm" in name:
        raise ValueError(f"{name!a} is the driver of a host; a guest needs the one of the same archive with 'grid'")
    if name.endswith(".zip"):
        raise ValueError(f"{name!a} is an archive: unpack it, and name a file of Guest_Drivers with 'grid'")
    match = next(filter(None, (pattern.fullmatch(name) for pattern in _NAMES)), None)
    if match is None or (match["kind"] == "run" and match["build"] not in (None, "-grid")):
        raise ValueError(
            f"{name!a} is no name of NVIDIA's drivers for guests, such as {_EXAMPLE} or, for Windows, "
            f"{_WINDOWS_EXAMPLE}"
        )
    machine = _MACHINES.get(match["machine"], match["machine"])
    is_grid = match["kind"] in ("deb", "rpm") or "grid" in (match["build"] or "")
    return DriverName(match["version"], match["kind"], machine, is_grid)


def check_content(name: DriverName, head: bytes) -> None:
    """Check the first bytes of a driver's file.

    Raises:
        ValueError: it is another kind of file, or another version.
    """
    if not head.startswith(_BEGINNINGS[name.kind]):
        raise ValueError(f"it does not begin as a .{name.kind} file does")
    version = _VERSION_IN_RUN.search(head) if name.kind == "run" else None
    if version is not None and version[1].decode() != name.version:
        raise ValueError(f"its name says version {name.version}, and it has {version[1].decode()}")


def driver_file(value: object) -> str:
    """Check a file that host.yaml allows to members."""
    path = guest_driver(value)
    if path == NONE:
        raise ValueError(f"{NONE!r} is no file: a VM without a driver needs no entry")
    return path
