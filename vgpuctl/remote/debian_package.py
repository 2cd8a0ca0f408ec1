# SPDX-License-Identifier: Apache-2.0
"""A local Debian package of vgpuctl. It is read completely before any connection, also where there is no dpkg.

The format is deb(5): an ar archive with debian-binary, then control.tar, whose file `control` has the fields.
"""

from __future__ import annotations

import email.parser
import hashlib
import io
import os
import shlex
import tarfile
from email.message import Message

from vgpuctl.errors import InvalidInput, NotFound
from vgpuctl.regular_file import read_regular_file
from vgpuctl.value import Value

PROGRAM = "vgpuctl"
MAX_BYTES = 64 << 20
_AR_MAGIC = b"!<arch>\n"
_AR_HEADER_BYTES, _AR_NAME, _AR_SIZE = 60, slice(0, 16), slice(48, 58)
_HINT = "python3 tests/bootstrap.py packages makes one, in dist"


class DebianPackage(Value):
    """One .deb file; `version` is the package's, such as 0.2.0-1."""

    path: str
    filename: str
    version: str
    content: bytes

    @property
    def sha256(self) -> str:
        """Return its checksum."""
        return hashlib.sha256(self.content).hexdigest()


def read_package(path: str) -> DebianPackage:
    """Return the Debian package in a file.

    Raises:
        NotFound, InvalidInput: it is not one, or not one of vgpuctl.
    """
    content = _read_file(path)
    try:
        fields = _read_fields(content)
    except (tarfile.TarError, EOFError, KeyError, ValueError, OSError) as exc:
        raise InvalidInput(f"{path} is not a complete Debian package: {exc}", hint=_HINT) from exc
    name, version = fields.get("Package"), fields.get("Version")
    if name != PROGRAM or not version:
        raise InvalidInput(f"{path} is a package of {name}, not of {PROGRAM}", hint=_HINT)
    return DebianPackage(path, os.path.basename(path), version, content)


def _read_file(path: str) -> bytes:
    try:
        return read_regular_file(path, MAX_BYTES)
    except FileNotFoundError as exc:
        raise NotFound(f"Debian package {path} does not exist", hint=_HINT) from exc
    except OSError as exc:
        raise InvalidInput(f"{path} cannot be read: {exc.strerror}", hint=f"ls -la {shlex.quote(path)}") from exc


def _read_fields(content: bytes) -> Message:
    """Return the fields of the package's control file.

    Raises:
        ValueError, KeyError, tarfile.TarError, EOFError, OSError: it is not a package.
    """
    if not content.startswith(_AR_MAGIC):
        raise ValueError("it does not begin as an ar archive")
    offset = len(_AR_MAGIC)
    while offset + _AR_HEADER_BYTES <= len(content):
        header = content[offset : offset + _AR_HEADER_BYTES]
        name, size = header[_AR_NAME].decode("ascii").rstrip(" /"), int(header[_AR_SIZE])
        member = content[offset + _AR_HEADER_BYTES : offset + _AR_HEADER_BYTES + size]
        if name.startswith("control.tar"):
            with tarfile.open(fileobj=io.BytesIO(member)) as archive:
                control = archive.extractfile("./control")
                if control is None:
                    raise ValueError("its control file is a directory")
                return email.parser.HeaderParser().parsestr(control.read().decode())
        offset += _AR_HEADER_BYTES + size + size % 2
    raise ValueError("it has no control.tar")
