# SPDX-License-Identifier: Apache-2.0
"""A Debian package is read without dpkg, and anything else is refused before a connection."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest

from vgpuctl.errors import InvalidInput, NotFound
from vgpuctl.remote import debian_package


def member(name: str, content: bytes) -> bytes:
    header = f"{name:<16}{'0':<12}{'0':<6}{'0':<6}{'100644':<8}{len(content):<10}`\n".encode()
    return header + content + b"\n" * (len(content) % 2)


def package(
    directory: Path, control: str, compression: str = "xz", control_name: str = "./control", data: bytes = b""
) -> Path:
    """Write a Debian package that contains only its control file; `data` stands for an archive."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode=f"w:{compression}") as archive:
        info = tarfile.TarInfo(control_name)
        info.size = len(control)
        archive.addfile(info, io.BytesIO(control.encode()))
    path = directory / "vgpuctl_0.2.0-1_all.deb"
    parts = [member("debian-binary", b"2.0\n"), member(f"control.tar.{compression}", tar.getvalue())]
    path.write_bytes(b"".join([b"!<arch>\n", *parts, member("data.tar.xz", data)]))
    return path


CONTROL = "Package: vgpuctl\nVersion: 0.2.0-1\nArchitecture: all\n"


@pytest.mark.parametrize("compression", ["xz", "gz"])
def test_version_and_checksum(tmp_path: Path, compression: str) -> None:
    path = package(tmp_path, CONTROL, compression)
    result = debian_package.read_package(str(path))
    assert (result.filename, result.version) == ("vgpuctl_0.2.0-1_all.deb", "0.2.0-1")
    assert result.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_another_package_is_refused(tmp_path: Path) -> None:
    path = package(tmp_path, CONTROL.replace("vgpuctl", "incus"))
    with pytest.raises(InvalidInput, match="is a package of incus, not of vgpuctl"):
        debian_package.read_package(str(path))


def test_no_package_is_refused(tmp_path: Path) -> None:
    whole = package(tmp_path, CONTROL).read_bytes()
    path = tmp_path / "x.deb"
    for content in (b"", b"PK\x03\x04", whole[:50], whole[:120], b"!<arch>\n", b"!<arch>\n" + b"x" * 60):
        path.write_bytes(content)
        with pytest.raises(InvalidInput, match="is not a complete Debian package"):
            debian_package.read_package(str(path))
    path.write_bytes(package(tmp_path, CONTROL, control_name="./other").read_bytes())
    with pytest.raises(InvalidInput, match="is not a complete Debian package"):
        debian_package.read_package(str(path))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="does not exist"):
        debian_package.read_package(str(tmp_path / "nowhere.deb"))
    with pytest.raises(InvalidInput, match="it is a directory"):
        debian_package.read_package(str(tmp_path))
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(InvalidInput, match="it is a pipe"):
        debian_package.read_package(str(tmp_path / "fifo"))
