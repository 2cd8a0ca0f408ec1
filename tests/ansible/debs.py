# SPDX-License-Identifier: Apache-2.0
"""A repository of Debian packages that contain stand-in programs. apt installs them like any other package."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Mapping
from pathlib import Path

Files = Mapping[str, str]


def write_deb(place: Path, name: str, files: Files, version: str = "1.0", architecture: str = "all") -> Path:
    """Write a package whose files are executable, and return its path."""
    tree = place / f"{name}.tree"
    control = (
        f"Package: {name}\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: tests\nDescription: stand-in\n"
    )
    for path, text in {"/DEBIAN/control": control, **files}.items():
        target = tree / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(0o755)
    deb = place / f"{name}_{version}_{architecture}.deb"
    subprocess.run(["dpkg-deb", "-Znone", "--build", tree, deb], check=True, capture_output=True, timeout=60)
    return deb


def write_repository(place: Path, packages: Mapping[str, Files]) -> None:
    """Write packages and their index file for apt."""
    place.mkdir(parents=True)
    entries = []
    for name, files in packages.items():
        deb = write_deb(place, name, files)
        control = (place / f"{name}.tree/DEBIAN/control").read_text()
        data = deb.read_bytes()
        entries.append(
            f"{control}Filename: ./{deb.name}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
        )
    (place / "Packages").write_text("\n".join(entries))
