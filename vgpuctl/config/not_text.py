# SPDX-License-Identifier: Apache-2.0
"""Errors for files that are not the text that they should be: where, and the command that converts or examines them.

Windows' programs write UTF-16, often with a byte order mark, and older ones one byte for each character.
"""

from __future__ import annotations

from shlex import quote

from vgpuctl.errors import InvalidInput

_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def not_utf8_error(name: str, path: str, content: bytes, start: int, *, printer: str = "") -> InvalidInput:
    """Return the error for bytes that are not UTF-8 from byte `start` on.

    `name`: what messages call the file; `path`: what commands call it, empty for standard input. `printer`: the command
    that prints a text which is in no file of its own.
    """
    encoding = "UTF-16" if content.startswith(_UTF16_MARKS) else ""
    line = 1 if encoding else content.count(b"\n", 0, start) + 1
    kind = f": it begins like {encoding}" if encoding else ""
    problem = f"this is not UTF-8 text: byte {start} is wrong{kind}"
    return _error(name, line, problem, to_utf8(path, encoding, printer=printer))


def to_utf8(path: str, encoding: str = "", *, printer: str = "", without: str = "") -> str:
    """Return a hint that saves a file as UTF-8, named as in `not_utf8_error`.

    `encoding`: its own, if that is known. `without`: a pattern of sed for lines to drop.
    """
    steps = [printer] if printer else []
    steps.append(f"iconv -f {quote(encoding or 'LATIN1')} -t UTF-8{f' {quote(path)}' if path else ''}")
    steps += [f"sed {quote(f'/{without}/Id')}"] if without else []
    target = f" > {quote(f'{path}.utf8')}" if path else ""
    return f"save it as UTF-8, like: {' | '.join(steps)}{target}"


def refuse_nul(name: str, path: str, text: str) -> None:
    """Refuse a text with a NUL: it is a binary file, or UTF-16 without its first bytes. Names as in `not_utf8_error`.

    Raises:
        InvalidInput: it has one; with its line.
    """
    position = text.find("\0")
    if position < 0:
        return
    hint = {0: to_utf8(path, "UTF-16BE"), 1: to_utf8(path, "UTF-16LE")}.get(position)
    hint = hint or (f"file {quote(path)} shows what it is" if path else "pipe text")
    raise _error(name, text.count("\n", 0, position) + 1, "it has a NUL byte: this is no text file", hint)


def _error(name: str, line: int, problem: str, hint: str) -> InvalidInput:
    facts = [{"file": name, "line": line, "column": 1, "path": "", "problem": problem}]
    return InvalidInput(f"{name}:{line}: {problem}", hint=hint, problems=facts)
