# SPDX-License-Identifier: Apache-2.0
"""Writing to stdout and stderr: no text can steer the terminal, and what cannot be written is not tried again."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import sys
from typing import TextIO

from vgpuctl.letters import is_shown

_IN_ASCII = {ord(sign): instead for sign, instead in {
    "×": "x", "…": "...", "✓": "ok", "✗": "x", "↶": "<", "\N{REPLACEMENT CHARACTER}": "?",
}.items()}  # fmt: skip
"""Every sign beyond ASCII that the program itself prints, as it is where the terminal's encoding lacks it."""
_HANDLER = "vgpuctl-ascii"

_TO_LOOK_AT = re.compile(r"[^\t\n -~]")


def clean(text: str) -> str:
    """Replace what nobody would see, but for tabs and line ends: names come from libvirt, drivers and files."""
    return _TO_LOOK_AT.sub(lambda found: found[0] if is_shown(found[0]) else "\N{REPLACEMENT CHARACTER}", text)


def escaped(text: str) -> str:
    """Write what nobody would see as JSON's escapes; json does so with ASCII's control characters alone."""
    return _TO_LOOK_AT.sub(lambda found: found[0] if is_shown(found[0]) else _escape(found[0]), text)


def _escape(character: str) -> str:
    pairs = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{pairs[at]:02x}{pairs[at + 1]:02x}" for at in range(0, len(pairs), 2))


def write_out(text: str) -> None:
    """Write to stdout and flush.

    Raises:
        OSError: it could not be written; BrokenPipeError: because nobody reads it any more.
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
    try:
        stream.write(_fitting(stream, text))
        stream.flush()
    except OSError:
        _discard(stream)
        raise


def is_unicode(stream: TextIO | None) -> bool:
    """Say whether the stream's reader takes every letter.

    Python writes UTF-8 in the C locale (PEP 540), whose terminal knows ASCII alone.
    """
    if not (getattr(stream, "encoding", None) or "utf-8").lower().startswith("utf"):
        return False
    if stream not in (sys.__stdout__, sys.__stderr__) or not sys.flags.utf8_mode:
        return True
    from _locale import CODESET, nl_langinfo

    return nl_langinfo(CODESET).upper().startswith("UTF")


def _fitting(stream: TextIO, text: str) -> str:
    """Return the text as the stream can show it: our own signs by ASCII's letters where it lacks them."""
    if text.isascii() or is_unicode(stream):
        return text.encode("utf-8", "replace").decode()
    encoding = stream.encoding
    if encoding.lower().startswith("utf"):
        return text.translate(_IN_ASCII).encode("utf-8", "replace").decode()
    return text.encode(encoding, _HANDLER).decode(encoding)


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(_IN_ASCII.get(ord(letter), "?") for letter in lost), error.end


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


codecs.register_error(_HANDLER, _in_ascii)
