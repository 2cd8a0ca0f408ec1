# SPDX-License-Identifier: Apache-2.0
"""A local directory with the wheels of vgpuctl and its dependencies. It is read completely before any connection.

The name of a wheel and the path of its metadata: Python packaging specifications, "Binary distribution format"; the
comparison of names: "Names and normalization".
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
DISTRO_PACKAGE = "libvirt-python"
"""No index has a wheel of it, and the distribution's package always fits the host's libvirt."""
MAX_BYTES = 512 << 20
_DOCS_HINT = (
    "'pip wheel --wheel-dir DIR CHECKOUT' puts the wheels of a checkout of vgpuctl and of its libraries into DIR"
)
_WHEEL = re.compile(r"(?P<name>[A-Za-z0-9_.]+)-(?P<version>[A-Za-z0-9_.!+]+)(-[0-9][^-]*)?(-[^-]+){3}\.whl", re.ASCII)
_VERSION = re.compile(
    r"v?((?P<epoch>[0-9]+)!)?(?P<release>[0-9]+(\.[0-9]+)*)"
    r"([-_.]?(?P<pre>alpha|a|beta|b|preview|pre|rc|c)[-_.]?(?P<pre_number>[0-9]*))?"
    r"((?P<post>-[0-9]+|[-_.]?(post|rev|r)[-_.]?[0-9]*))?([-_.]?(?P<dev>dev[-_.]?[0-9]*))?(\+[a-z0-9._-]+)?",
    re.ASCII | re.IGNORECASE,
)
_STAGES = {"alpha": 0, "a": 0, "beta": 1, "b": 1, "preview": 2, "pre": 2, "rc": 2, "c": 2}
_DEV, _FINAL = -1, 3
_OF_HOST = re.compile(r"extra\s*==\s*[\"']host[\"']", re.ASCII)
_OLDEST_PYTHON = re.compile(r">=\s*([0-9]+)\.([0-9]+)", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)


class Wheel(Value):
    """The file of one wheel."""

    filename: str
    name: str
    version: str
    content: bytes

    @property
    def sha256(self) -> str:
        """Return its checksum."""
        return hashlib.sha256(self.content).hexdigest()


class Wheelhouse(Value):
    """The wheels for a host, the version of vgpuctl among them, and the oldest Python that it supports.

    `digest` identifies the wheelhouse.
    """

    directory: str
    version: str
    wheels: tuple[Wheel, ...]
    digest: str
    oldest_python: tuple[int, int] = (0, 0)

    @property
    def size_bytes(self) -> int:
        """Return the number of bytes to copy."""
        return sum(len(wheel.content) for wheel in self.wheels)

    def has(self, name: str) -> bool:
        """Return whether it has a wheel of that name."""
        return any(wheel.name == name for wheel in self.wheels)


def read_wheelhouse(directory: str) -> Wheelhouse:
    """Return the wheelhouse in a directory. Other files than wheels are ignored.

    Raises:
        NotFound, InvalidInput: it is not a wheelhouse; the message says what is there instead.
    """
    if not directory:
        raise InvalidInput("--wheelhouse is empty", hint=_DOCS_HINT)
    wheels = _read_wheels(directory)
    program_wheels = [wheel for wheel in wheels if wheel.name == PROGRAM]
    if not program_wheels:
        raise InvalidInput(f"{directory} has {len(wheels)} wheels, but none of {PROGRAM}", hint=_DOCS_HINT)
    program = _find_newest(directory, program_wheels)
    metadata = _read_metadata(directory, program)
    missing = sorted(_required_packages(metadata) - {wheel.name for wheel in wheels})
    if missing:
        raise InvalidInput(
            f"{directory} has no wheel of {', '.join(missing)}, which {program.filename} needs",
            hint=_DOCS_HINT,
            missing=missing,
        )
    included = tuple(wheel for wheel in wheels if wheel.name != PROGRAM or wheel is program)
    digest = hashlib.sha256("".join(f"{wheel.filename} {wheel.sha256}\n" for wheel in included).encode()).hexdigest()
    match = _OLDEST_PYTHON.search(metadata.get("Requires-Python", ""))
    python = (int(match[1]), int(match[2])) if match else (0, 0)
    return Wheelhouse(directory, program.version, included, digest, python)


def version_key(version: str) -> tuple[tuple[int, ...], ...] | None:
    """Return the sort key of a version; None if it is not a valid version.

    PEP 440, "Summary of permitted suffixes and relative ordering": 1.0.dev1, 1.0a1, 1.0b1, 1.0rc1, 1.0, 1.0.post1;
    trailing zeros of the release are ignored. This function also ignores a local label (+ubuntu1).
    """
    match = _VERSION.fullmatch(version)
    if match is None:
        return None
    numbers = [int(part) for part in match["release"].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    is_plain = match["pre"] is None and match["post"] is None
    stage = _STAGES[match["pre"].lower()] if match["pre"] else _DEV if is_plain and match["dev"] else _FINAL
    post, dev = _trailing_number(match["post"]), _trailing_number(match["dev"])
    return (
        (int(match["epoch"] or 0),),
        tuple(numbers),
        (stage, int(match["pre_number"] or 0)),
        (-1 if post is None else post,),
        (1, 0) if dev is None else (0, dev),
    )


def _trailing_number(part: str | None) -> int | None:
    """Return the number at the end of a suffix, 0 if it has none; None for no suffix."""
    return None if part is None else int(re.sub(r"^.*?([0-9]*)$", r"\1", part) or 0)


def normalize_name(name: str) -> str:
    """Return the normalized name, for comparison."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _read_wheels(directory: str) -> list[Wheel]:
    try:
        names = sorted(os.listdir(directory))
        wheel_names = [name for name in names if name.endswith(".whl")]
        if not wheel_names:
            content = f"{len(names)} other files" if names else "nothing"
            raise InvalidInput(f"{directory} has no wheels: it contains {content}", hint=_DOCS_HINT)
        size = sum(os.stat(os.path.join(directory, name)).st_size for name in wheel_names)
        if size > MAX_BYTES:
            message = f"{directory} has {size >> 20} MiB of wheels, and at most {MAX_BYTES >> 20} MiB are copied"
            raise InvalidInput(message, hint="keep only the wheels of vgpuctl and its dependencies")
        return [_read_wheel(directory, name) for name in wheel_names]
    except OSError as exc:
        if isinstance(exc, FileNotFoundError) and exc.filename == directory:
            raise NotFound(f"wheelhouse {directory} does not exist", hint=_DOCS_HINT) from exc
        raise InvalidInput(f"{exc.filename} cannot be read: {exc.strerror}", hint=f"ls -la {directory}") from exc


def _read_wheel(directory: str, file: str) -> Wheel:
    path = os.path.join(directory, file)
    match = _WHEEL.fullmatch(file)
    if match is None:
        raise InvalidInput(f"{path} is not named like a wheel: NAME-VERSION-PYTHON-ABI-PLATFORM.whl", hint=_DOCS_HINT)
    with open(path, "rb") as wheel_file:
        content = wheel_file.read()
    if not zipfile.is_zipfile(io.BytesIO(content)):
        raise InvalidInput(f"{path} is not a wheel, or is incomplete: {len(content)} bytes", hint="copy it again")
    return Wheel(file, normalize_name(match["name"]), match["version"], content)


def _find_newest(directory: str, wheels: Sequence[Wheel]) -> Wheel:
    """Return the newest wheel, if the versions can be ordered."""
    if len(wheels) == 1:
        return wheels[0]
    ordered = sorted(wheels, key=lambda wheel: version_key(wheel.version) or ())
    keys = [version_key(wheel.version) for wheel in ordered]
    if None in keys or keys[-1] == keys[-2]:
        files = ", ".join(wheel.filename for wheel in wheels)
        raise InvalidInput(f"{directory} has several wheels of {PROGRAM}: {files}", hint="keep only one")
    return ordered[-1]


def _read_metadata(directory: str, program: Wheel) -> Message:
    """Return the metadata of a wheel."""
    path = f"{PROGRAM}-{program.version}.dist-info/METADATA"
    try:
        with zipfile.ZipFile(io.BytesIO(program.content)) as archive:
            text = archive.read(path).decode()
    except (KeyError, ValueError, zipfile.BadZipFile) as exc:
        message = f"{os.path.join(directory, program.filename)} is not a wheel of {PROGRAM}: its {path} cannot be read"
        raise InvalidInput(message, hint=_DOCS_HINT) from exc
    return email.parser.HeaderParser().parsestr(text)


def _required_packages(metadata: Message) -> set[str]:
    """Return what vgpuctl needs on a host: its own packages and those of the extra host, but the distribution's."""
    names = set()
    for line in metadata.get_all("Requires-Dist", []):
        requirement, _, marker = line.partition(";")
        name = _NAME.match(requirement.strip())
        if name is not None and ("extra" not in marker or _OF_HOST.search(marker)):
            names.add(normalize_name(name[0]))
    return names - {DISTRO_PACKAGE}
