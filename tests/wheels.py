# SPDX-License-Identifier: Apache-2.0
"""Create wheelhouses of this checkout without a package index: build vgpuctl's wheel, and repack its dependencies.

The dependencies come from the environment of these tests. Each wheel contains the installed files, except those that
pip added.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from vgpuctl import __version__

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = "vgpuctl"
DISTRO_PACKAGE = "libvirt-python"
"""No index has a wheel of it, and the distribution's package always fits the host's libvirt."""


def make(directory: Path) -> None:
    """Fill a directory with the wheels of vgpuctl and of all its dependencies except libvirt's."""
    build(directory, __version__)
    for distribution in needed():
        pack(distribution, directory)


def build(directory: Path, version: str) -> None:
    """Build vgpuctl's own wheel with the given version number."""
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary) / "tree"
        tree.mkdir()
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, tree)
        for name in ("vgpuctl", "templates"):
            shutil.copytree(ROOT / name, tree / name)
        (tree / "vgpuctl/version.py").write_text(f'"""vgpuctl."""\n\n__version__ = "{version}"\n')
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
        subprocess.run([*pip, "--wheel-dir", str(directory), str(tree)], check=True, timeout=300)


def needed() -> Iterator[metadata.Distribution]:
    """Yield the installed dependencies of vgpuctl on a host, direct and indirect."""
    seen = {PROGRAM, DISTRO_PACKAGE}
    pending = [PROGRAM]
    while pending:
        for line in metadata.distribution(pending.pop()).requires or []:
            requirement = Requirement(line)
            name = canonicalize_name(requirement.name)
            if name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": "host"})):
                continue
            seen.add(name)
            yield metadata.distribution(name)
            pending.append(name)


def pack(distribution: metadata.Distribution, directory: Path) -> None:
    """Pack an installed distribution into a wheel."""
    tags = re.findall(r"^Tag: (.*)$", distribution.read_text("WHEEL") or "", re.MULTILINE)
    name = distribution.metadata["Name"].replace("-", "_")
    file_name = f"{name}-{distribution.version}-{tags[0]}.whl"
    with zipfile.ZipFile(directory / file_name, "w", zipfile.ZIP_DEFLATED) as wheel:
        for file in distribution.files or []:
            made_by_pip = file.suffix == ".pyc" or file.name in ("INSTALLER", "REQUESTED", "direct_url.json")
            if not made_by_pip and ".." not in file.parts:
                wheel.write(str(file.locate()), str(file))
