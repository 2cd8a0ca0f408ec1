# SPDX-License-Identifier: Apache-2.0
"""Writing to stdout and stderr. After an error a stream goes to /dev/null.

Callers pass text of other programs through `sanitize` first, so that it cannot control the terminal.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import sys
from typing import TextIO

from vgpuctl.model.names import is_visible

_ASCII_FALLBACKS = {ord(character): fallback for character, fallback in {
    "×": "x", "…": "...", "✓": "ok", "✗": "x", "↶": "<", "°": "", "\N{REPLACEMENT CHARACTER}": "?",
}.items()}  # fmt: skip
"""Every non-ASCII character that the program itself prints, with its form where the terminal's encoding lacks it."""
_ERROR_HANDLER = "vgpuctl-ascii"

_NOT_PLAIN_ASCII = re.compile(r"[^\t\n -~]")
"""A fast filter: only these characters may be invisible."""


def sanitize(text: str) -> str:
    """Replace invisible characters except tabs and line ends: a name could hold a terminal's control sequence."""
    return _NOT_PLAIN_ASCII.sub(lambda match: match[0] if is_visible(match[0]) else "\N{REPLACEMENT CHARACTER}", text)


def escape_invisible(text: str) -> str:
    """Return JSON with invisible characters as escapes; the json module escapes only ASCII control characters."""
    return _NOT_PLAIN_ASCII.sub(lambda match: match[0] if is_visible(match[0]) else _escape(match[0]), text)


def _escape(character: str) -> str:
    utf16 = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{utf16[index]:02x}{utf16[index + 1]:02x}" for index in range(0, len(utf16), 2))


def write_out(text: str) -> None:
    """Write to stdout and flush.

    Raises:
        OSError: it could not be written; BrokenPipeError: the reader is gone.
    """
    _write(sys.stdout, text)


def write_err(text: str) -> None:
    """Write a line to stderr; a failure is ignored, because it cannot be reported anywhere."""
    with contextlib.suppress(OSError, ValueError):
        _write(sys.stderr, text if text.endswith("\n") else f"{text}\n")


def is_terminal(stream: TextIO | None) -> bool:
    """Say whether the stream is a terminal that can do more than plain text (TERM is set, and not dumb)."""
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
    except ValueError:
        return False


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:
        return
    try:
        stream.write(_encodable_text(stream, text))
        stream.flush()
    except OSError:
        _discard(stream)
        raise


def supports_unicode(stream: TextIO | None) -> bool:
    """Say whether the stream's reader can display every character.

    In the C locale Python turns on its UTF-8 mode (PEP 540), although the terminal may display only ASCII. There the
    locale's own character set decides.
    """
    if not (getattr(stream, "encoding", None) or "utf-8").lower().startswith("utf"):
        return False
    if stream not in (sys.__stdout__, sys.__stderr__) or not sys.flags.utf8_mode:
        return True
    from _locale import CODESET, nl_langinfo

    return nl_langinfo(CODESET).upper().startswith("UTF")


def _encodable_text(stream: TextIO, text: str) -> str:
    """Return the text as the stream can show it: the program's own symbols become ASCII where it lacks them."""
    if text.isascii() or supports_unicode(stream):
        return text.encode("utf-8", "replace").decode()  # lone surrogates cannot be written
    encoding = stream.encoding
    if encoding.lower().startswith("utf"):  # UTF-8 mode in the C locale
        return text.translate(_ASCII_FALLBACKS).encode("utf-8", "replace").decode()
    return text.encode(encoding, _ERROR_HANDLER).decode(encoding)


def _replace_with_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    unencodable = error.object[error.start : error.end]
    return "".join(_ASCII_FALLBACKS.get(ord(character), "?") for character in unencodable), error.end


def _discard(stream: TextIO) -> None:
    """Redirect the stream to /dev/null; otherwise Python reports an error when it flushes at exit."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def write_err_raw(text: str) -> None:
    """Write to stderr without ending the line."""
    with contextlib.suppress(OSError, ValueError):
        _write(sys.stderr, text)


codecs.register_error(_ERROR_HANDLER, _replace_with_ascii)
