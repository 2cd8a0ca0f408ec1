# SPDX-License-Identifier: Apache-2.0
"""Reads a secret from a file that its owner alone can read. No error quotes what is in it."""

from __future__ import annotations

import os
import shlex
import stat

from vgpuctl.errors import FileFailed, Refused
from vgpuctl.regular_file import read_regular_file

MAX_SECRET_BYTES = 4096
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def read_secret(path: str) -> str:
    """Return the one line of a file, without its end.

    Raises:
        Refused: others may use the file. FileFailed: it cannot be read, or is not one line of text.
    """
    quoted = shlex.quote(path)
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
        if mode & _OTHERS:
            raise Refused(
                f"{path} has a secret, and mode {mode:04o} lets others use it", hint=f"chmod 600 {quoted}", path=path
            )
        content = read_regular_file(path, MAX_SECRET_BYTES)
    except OSError as error:
        raise FileFailed(
            f"{path} cannot be read: {error.strerror}", hint=f"ls -l {quoted}", path=path, errno=error.errno
        ) from error
    text, problem = "", None
    try:
        text = content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:  # which has the bytes in it
        problem = "is not UTF-8"
    if problem is None and not text:
        problem = "is empty"
    if problem is None and not text.isprintable():
        problem = "is not one line of printable characters"
    if problem is not None:
        raise FileFailed(f"{path}: the secret {problem}", hint=f"write it there as one line; ls -l {quoted}", path=path)
    return text
