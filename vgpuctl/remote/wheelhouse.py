# SPDX-License-Identifier: Apache-2.0
"""A directory here with the wheels of vgpuctl and of all that it needs. It is read as a whole before anything connects.

What a wheel is called, and where its metadata lie, is in the packaging specifications, "Binary distribution format";
how names are compared in "Names and normalization".
"""

from __future__ import annotations

import email.parser
import hashlib
import io
import os
import re
import zipfile
from collections.abc import Sequence

from vgpuctl.errors import InvalidInput, NotFound
from vgpuctl.value import Value

PROGRAM = "vgpuctl"
OF_THE_DISTRIBUTION = "libvirt-python"
"""It has no wheel on any index, and the distribution's always fits the host's libvirt."""
MOST_BYTES = 512 << 20
_HOW = "docs/remote.md tells how a wheelhouse is made"
_WHEEL = re.compile(r"(?P<name>[A-Za-z0-9_.]+)-(?P<version>[A-Za-z0-9_.!+]+)(-[0-9][^-]*)?(-[^-]+){3}\.whl", re.ASCII)
_NUMBERS = re.compile(r"[0-9]+(\.[0-9]+)*", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)


class Wheel(Value):
    """A wheel's file."""

    file: str
    name: str
    version: str
    content: bytes

    @property
    def sha256(self) -> str:
        """Return its checksum."""
        return hashlib.sha256(self.content).hexdigest()


class Wheelhouse(Value):
    """The wheels that a host gets, and the version of vgpuctl among them. `digest` tells wheelhouses apart."""

    directory: str
    version: str
    wheels: tuple[Wheel, ...]
    digest: str

    @property
    def size_bytes(self) -> int:
        """Return how much is copied."""
        return sum(len(wheel.content) for wheel in self.wheels)

    def has(self, name: str) -> bool:
        """Say whether there is a wheel of that name."""
        return any(wheel.name == name for wheel in self.wheels)


def read(directory: str) -> Wheelhouse:
    """Return the wheelhouse in a directory. Files that are no wheels do not count.

    Raises:
        NotFound, InvalidInput: it is none; the message says what is there instead.
    """
    wheels = _wheels(directory)
    own = [wheel for wheel in wheels if wheel.name == PROGRAM]
    if not own:
        raise InvalidInput(f"{directory} has no wheel of {PROGRAM} among its {len(wheels)}", hint=_HOW)
    program = _newest(directory, own)
    missing = sorted(_needed(directory, program) - {wheel.name for wheel in wheels})
    if missing:
        raise InvalidInput(
            f"{directory} has no wheel of {', '.join(missing)}, which {program.file} needs", hint=_HOW, missing=missing
        )
    kept = tuple(wheel for wheel in wheels if wheel.name != PROGRAM or wheel is program)
    digest = hashlib.sha256("".join(f"{wheel.file} {wheel.sha256}\n" for wheel in kept).encode()).hexdigest()
    return Wheelhouse(directory, program.version, kept, digest)


def numbers(version: str) -> tuple[int, ...] | None:
    """Return a version's numbers, without zeros at the end; None for one that is not numbers alone."""
    if not _NUMBERS.fullmatch(version):
        return None
    found = [int(part) for part in version.split(".")]
    while found and found[-1] == 0:
        found.pop()
    return tuple(found)


def release(version: str) -> tuple[int, ...] | None:
    """Return the numbers that a version begins with, as 0.2.0rc1 does; None for one that begins with none."""
    found = _NUMBERS.match(version)
    return None if found is None else numbers(found[0])


def normal(name: str) -> str:
    """Return a name as names are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _wheels(directory: str) -> list[Wheel]:
    try:
        names = sorted(os.listdir(directory))
        found = [name for name in names if name.endswith(".whl")]
        if not found:
            there = f"{len(names)} other files" if names else "nothing"
            raise InvalidInput(f"{directory} has no wheels: there is {there}", hint=_HOW)
        size = sum(os.stat(os.path.join(directory, name)).st_size for name in found)
        if size > MOST_BYTES:
            message = f"{directory} has {size >> 20} MiB of wheels, and at most {MOST_BYTES >> 20} MiB are copied"
            raise InvalidInput(message, hint="keep the wheels of vgpuctl and of what it needs alone")
        return [_wheel(directory, name) for name in found]
    except OSError as exc:
        if isinstance(exc, FileNotFoundError) and exc.filename == directory:
            raise NotFound(f"there is no wheelhouse {directory}", hint=_HOW) from exc
        raise InvalidInput(f"{exc.filename} cannot be read: {exc.strerror}", hint=f"ls -la {directory}") from exc


def _wheel(directory: str, file: str) -> Wheel:
    path = os.path.join(directory, file)
    named = _WHEEL.fullmatch(file)
    if named is None:
        raise InvalidInput(f"{path} is not called as a wheel is: NAME-VERSION-PYTHON-ABI-PLATFORM.whl", hint=_HOW)
    with open(path, "rb") as opened:
        content = opened.read()
    if not zipfile.is_zipfile(io.BytesIO(content)):
        raise InvalidInput(f"{path} is no wheel, or not all of one: {len(content)} bytes", hint="copy it again")
    return Wheel(file, normal(named["name"]), named["version"], content)


def _newest(directory: str, own: Sequence[Wheel]) -> Wheel:
    """Return the newest, where that can be told."""
    ordered = sorted(own, key=lambda wheel: numbers(wheel.version) or ())
    versions = [numbers(wheel.version) for wheel in ordered]
    if len(own) > 1 and (None in versions or versions[-1] == versions[-2]):
        files = ", ".join(wheel.file for wheel in own)
        raise InvalidInput(f"{directory} has several wheels of {PROGRAM}: {files}", hint="leave one there")
    return ordered[-1]


def _needed(directory: str, program: Wheel) -> set[str]:
    """Return the names of what vgpuctl needs itself, without its extras and what comes from the distribution."""
    path = f"{PROGRAM}-{program.version}.dist-info/METADATA"
    try:
        with zipfile.ZipFile(io.BytesIO(program.content)) as opened:
            text = opened.read(path).decode()
    except (KeyError, ValueError, zipfile.BadZipFile) as exc:
        message = f"{os.path.join(directory, program.file)} is no wheel of {PROGRAM}: its {path} cannot be read"
        raise InvalidInput(message, hint=_HOW) from exc
    found = set()
    for line in email.parser.HeaderParser().parsestr(text).get_all("Requires-Dist", []):
        requirement, _, marker = line.partition(";")
        name = _NAME.match(requirement.strip())
        if name is not None and "extra" not in marker:
            found.add(normal(name[0]))
    return found - {OF_THE_DISTRIBUTION}
