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
from email.message import Message

from vgpuctl.errors import InvalidInput, NotFound
from vgpuctl.value import Value

PROGRAM = "vgpuctl"
OF_THE_DISTRIBUTION = "libvirt-python"
"""It has no wheel on any index, and the distribution's always fits the host's libvirt."""
MOST_BYTES = 512 << 20
_HOW = "docs/remote.md tells how a wheelhouse is made"
_WHEEL = re.compile(r"(?P<name>[A-Za-z0-9_.]+)-(?P<version>[A-Za-z0-9_.!+]+)(-[0-9][^-]*)?(-[^-]+){3}\.whl", re.ASCII)
_VERSION = re.compile(
    r"v?((?P<epoch>[0-9]+)!)?(?P<release>[0-9]+(\.[0-9]+)*)"
    r"([-_.]?(?P<pre>alpha|a|beta|b|preview|pre|rc|c)[-_.]?(?P<pre_number>[0-9]*))?"
    r"((?P<post>-[0-9]+|[-_.]?(post|rev|r)[-_.]?[0-9]*))?([-_.]?(?P<dev>dev[-_.]?[0-9]*))?(\+[a-z0-9._-]+)?",
    re.ASCII | re.IGNORECASE,
)
_STAGES = {"alpha": 0, "a": 0, "beta": 1, "b": 1, "preview": 2, "pre": 2, "rc": 2, "c": 2}
_DEV, _FINAL = -1, 3
_OLDEST_PYTHON = re.compile(r">=\s*([0-9]+)\.([0-9]+)", re.ASCII)
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
    """The wheels that a host gets, and the version of vgpuctl among them, with the oldest Python that it runs on.

    `digest` tells wheelhouses apart.
    """

    directory: str
    version: str
    wheels: tuple[Wheel, ...]
    digest: str
    oldest_python: tuple[int, int] = (0, 0)

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
    if not directory:
        raise InvalidInput("the wheelhouse has no name: --wheelhouse was given an empty text", hint=_HOW)
    wheels = _wheels(directory)
    own = [wheel for wheel in wheels if wheel.name == PROGRAM]
    if not own:
        raise InvalidInput(f"{directory} has no wheel of {PROGRAM} among its {len(wheels)}", hint=_HOW)
    program = _newest(directory, own)
    about = _metadata(directory, program)
    missing = sorted(_needed(about) - {wheel.name for wheel in wheels})
    if missing:
        raise InvalidInput(
            f"{directory} has no wheel of {', '.join(missing)}, which {program.file} needs", hint=_HOW, missing=missing
        )
    kept = tuple(wheel for wheel in wheels if wheel.name != PROGRAM or wheel is program)
    digest = hashlib.sha256("".join(f"{wheel.file} {wheel.sha256}\n" for wheel in kept).encode()).hexdigest()
    oldest = _OLDEST_PYTHON.search(about.get("Requires-Python", ""))
    python = (int(oldest[1]), int(oldest[2])) if oldest else (0, 0)
    return Wheelhouse(directory, program.version, kept, digest, python)


def order(version: str) -> tuple[tuple[int, ...], ...] | None:
    """Return what versions are compared by; None for one that is none.

    PEP 440, "Summary of permitted suffixes and relative ordering": 1.0.dev1, 1.0a1, 1.0b1, 1.0rc1, 1.0, 1.0.post1;
    zeros at the end of the numbers do not count. Here a local label (+ubuntu1) does not count either.
    """
    found = _VERSION.fullmatch(version)
    if found is None:
        return None
    numbers = [int(part) for part in found["release"].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    plain = found["pre"] is None and found["post"] is None
    stage = _STAGES[found["pre"].lower()] if found["pre"] else _DEV if plain and found["dev"] else _FINAL
    post, dev = _trailing(found["post"]), _trailing(found["dev"])
    return (
        (int(found["epoch"] or 0),),
        tuple(numbers),
        (stage, int(found["pre_number"] or 0)),
        (-1 if post is None else post,),
        (1, 0) if dev is None else (0, dev),
    )


def _trailing(part: str | None) -> int | None:
    """Return the number at the end of a suffix, 0 when it has none; None for no suffix."""
    return None if part is None else int(re.sub(r"^.*?([0-9]*)$", r"\1", part) or 0)


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
    if len(own) == 1:
        return own[0]
    ordered = sorted(own, key=lambda wheel: order(wheel.version) or ())
    orders = [order(wheel.version) for wheel in ordered]
    if None in orders or orders[-1] == orders[-2]:
        files = ", ".join(wheel.file for wheel in own)
        raise InvalidInput(f"{directory} has several wheels of {PROGRAM}: {files}", hint="leave one there")
    return ordered[-1]


def _metadata(directory: str, program: Wheel) -> Message:
    """Return what a wheel says of itself."""
    path = f"{PROGRAM}-{program.version}.dist-info/METADATA"
    try:
        with zipfile.ZipFile(io.BytesIO(program.content)) as opened:
            text = opened.read(path).decode()
    except (KeyError, ValueError, zipfile.BadZipFile) as exc:
        message = f"{os.path.join(directory, program.file)} is no wheel of {PROGRAM}: its {path} cannot be read"
        raise InvalidInput(message, hint=_HOW) from exc
    return email.parser.HeaderParser().parsestr(text)


def _needed(about: Message) -> set[str]:
    """Return the names of what vgpuctl needs itself, without its extras and what comes from the distribution."""
    found = set()
    for line in about.get_all("Requires-Dist", []):
        requirement, _, marker = line.partition(";")
        name = _NAME.match(requirement.strip())
        if name is not None and "extra" not in marker:
            found.add(normal(name[0]))
    return found - {OF_THE_DISTRIBUTION}
