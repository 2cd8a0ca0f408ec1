# SPDX-License-Identifier: Apache-2.0
"""A wheelhouse without a network: this checkout, and what it needs packed again from the tests' environment."""

from __future__ import annotations

import importlib.metadata
import re
import sys
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OF_THE_DISTRIBUTION = "libvirt-python"
"""Debian's package has it, which an environment with the system's packages sees."""


def make_wheelhouse(place: Path) -> Path:
    """Write the wheels of vgpuctl and of all that it needs into a directory, and return it."""
    place.mkdir()
    for name in _needed("vgpuctl"):
        found = from_wheel(name)
        files = _of_checkout() if name == "vgpuctl" else _of_environment(found)
        _write(place, found, files)
    return place


def _needed(name: str) -> set[str]:
    """Return the name of a distribution and those of all that it needs, without extras and other systems' needs."""
    names, due = set[str](), [name]
    while due:
        names.add(one := due.pop())
        for line in from_wheel(one).requires or ():
            need = re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0]
            if need not in {*names, OF_THE_DISTRIBUTION} and _is_there(need, line):
                due.append(need)
    return names


def from_wheel(name: str, places: Sequence[str] = tuple(sys.path)) -> importlib.metadata.Distribution:
    """Return the distribution of a name that says which files are its own.

    Debian's python3-cryptography is there twice, and the half that is an egg-info names no files; which of the two
    `importlib.metadata.distribution` finds depends on the order in which the directory was written.

    Raises:
        PackageNotFoundError: there is none, or none that was made from a wheel.
    """
    for found in importlib.metadata.distributions(name=name, path=list(places)):
        if found.read_text("WHEEL"):
            return found
    raise importlib.metadata.PackageNotFoundError(name)


def _is_there(name: str, line: str) -> bool:
    if "extra ==" in line:
        return False
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _of_checkout() -> Mapping[str, Path]:
    """Return the files of vgpuctl's wheel as pyproject.toml names them."""
    packed = {f"vgpuctl/{path.relative_to(ROOT / 'vgpuctl')}": path for path in _files(ROOT / "vgpuctl")}
    packed |= {
        f"vgpuctl/_templates/{path.relative_to(ROOT / 'templates')}": path for path in _files(ROOT / "templates")
    }
    version = importlib.metadata.version("vgpuctl")
    return packed | {f"vgpuctl-{version}.data/scripts/vgpuctl": ROOT / "vgpuctl/_program/vgpuctl"} | _about("vgpuctl")


def _files(directory: Path) -> Iterable[Path]:
    return (path for path in directory.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _about(name: str) -> Mapping[str, Path]:
    files = importlib.metadata.files(name) or ()
    kept = ("METADATA", "WHEEL", "entry_points.txt")
    return {str(f): Path(str(f.locate())) for f in files if f.parent.suffix == ".dist-info" and f.name in kept}


def _of_environment(found: importlib.metadata.Distribution) -> Mapping[str, Path]:
    left_out = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
    files = found.files or ()
    return {
        str(f): Path(str(f.locate()))
        for f in files
        if ".." not in f.parts and "__pycache__" not in f.parts and f.name not in left_out
    }


def _write(place: Path, found: importlib.metadata.Distribution, files: Mapping[str, Path]) -> None:
    about = next(Path(name).parent for name in files if name.endswith(".dist-info/WHEEL"))
    tag = re.search(r"^Tag: (.*)$", found.read_text("WHEEL") or "", re.MULTILINE)
    assert tag is not None
    name = about.name.removesuffix(".dist-info")
    with zipfile.ZipFile(place / f"{name}-{tag[1]}.whl", "w") as wheel:
        for inside, path in files.items():
            wheel.write(path, inside)
        record = f"{about}/RECORD"
        wheel.writestr(record, "".join(f"{inside},,\n" for inside in [*files, record]))
