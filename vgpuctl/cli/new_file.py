# SPDX-License-Identifier: Apache-2.0
"""Files that a command writes to a path given by the user: only new files, written completely or not at all."""

from __future__ import annotations

import os
from contextlib import suppress

from vgpuctl.errors import Exists, FileFailed, InvalidInput


def require_new(path: str, option: str) -> None:
    """Check that a file can be created, before the work for its content begins.

    Raises:
        Exists: the name is taken, also by a pipe or a device, on which another process may be waiting.
        InvalidInput: there is no such directory, or it is not writable.
    """
    directory = os.path.dirname(path) or "."
    if os.path.lexists(path):
        raise _exists(path, option)
    if not os.path.isdir(directory):
        raise InvalidInput(f"{option} {path}: there is no directory {directory}", hint=f"mkdir -p {directory}")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise InvalidInput(f"{option} {path}: {directory} is not writable", hint=f"ls -ld {directory}")


def write_new(path: str, content: bytes, option: str) -> None:
    """Create a file; remove it again if it cannot be written completely.

    Raises:
        Exists: the name is taken by now.
        FileFailed: the system refused it, for example because the disk is full.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError as exc:
        raise _exists(path, option) from exc
    except OSError as exc:
        raise _failed(exc, path, option) from exc
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException as exc:
        with suppress(OSError):
            os.unlink(path)
        if isinstance(exc, OSError):
            raise _failed(exc, path, option) from exc
        raise


def _exists(path: str, option: str) -> Exists:
    return Exists(
        f"{option} {path}: the file already exists", hint="use another name, or remove the file first", path=path
    )


def _failed(exc: OSError, path: str, option: str) -> FileFailed:
    full = os.path.abspath(path)
    hint = f"df -h {os.path.dirname(full)}; ls -ld {os.path.dirname(full)}"
    return FileFailed(f"{option} {path} cannot be written: {exc.strerror}", hint=hint, errno=exc.errno, path=full)
