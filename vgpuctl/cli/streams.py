# SPDX-License-Identifier: Apache-2.0
"""Writing to stdout and stderr: a reader that went away is no error, and no text can steer the terminal."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import TextIO

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """Replace control characters: names come from libvirt, drivers and files."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def escaped(text: str) -> str:
    """Write control characters of a JSON text as JSON's escapes; json leaves those beyond ASCII's as they are."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def write_out(text: str) -> None:
    """Write to stdout and flush.

    Raises:
        OSError: it could not be written, other than because nobody reads it.
    """
    _write(sys.stdout, text)


def write_err(text: str) -> None:
    """Write a line to stderr; a failure to do so has nobody to be told to."""
    with contextlib.suppress(OSError, ValueError):
        _write(sys.stderr, text if text.endswith("\n") else f"{text}\n")


def is_terminal(stream: TextIO | None) -> bool:
    """Say whether a person looks at the stream on a terminal that can do more than plain text."""
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
    except ValueError:
        return False


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:
        return
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(text.encode(encoding, "replace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        _discard(stream)


def _discard(stream: TextIO) -> None:
    """Let the rest go nowhere: Python would complain when it flushes at exit."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def write_err_raw(text: str) -> None:
    """Write to stderr without ending the line."""
    with contextlib.suppress(OSError, ValueError):
        _write(sys.stderr, text)
