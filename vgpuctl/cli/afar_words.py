# SPDX-License-Identifier: Apache-2.0
"""The words that other hosts' vgpuctl gets: those that were typed, without what says which hosts, and with --json.

A file that -f names is read here, and goes there through standard input; every other path is a path there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import click

from vgpuctl.value import Value

HERE = frozenset({"host", "hosts", "limit", "host_deadline", "hosts_at_a_time", "json", "progress", "wheelhouse"})
"""Options that are not handed on, by their names. What --json and --progress ask for is said anew."""
FILE = "--file"
STDIN = "-"


class HandedOn(Value):
    """Words for the vgpuctl there, and the file here that it reads as its standard input; None when it reads none."""

    words: tuple[str, ...]
    file: str | None = None


class _Piece(Value):
    """An option with its value, or a word that is none. `attached` is where in its one word the value begins."""

    words: tuple[str, ...]
    option: click.Option | None = None
    attached: int | None = None


def handed_on(words: Sequence[str], command: click.Command, front: Sequence[click.Parameter]) -> HandedOn:
    """Return what is handed on. The words were parsed before, so `front` and `command` know each of them."""
    outer, rest = _front(list(words), dict(_spelled(front)))
    inner = list(_pieces(rest[1:], dict(_spelled(command.params))))
    kept = [piece for piece in inner if not _is_here(piece)]
    given = [_value_of(piece) for piece in kept if piece.option is not None and FILE in piece.option.opts]
    lone = [STDIN for piece in kept if piece.option is None and piece.words == (STDIN,)]
    found = [word for piece in outer if not _is_here(piece) for word in piece.words]
    found += [*rest[:1], *(word for piece in kept for word in _from_stdin(piece).words)]
    return HandedOn(tuple(found), next(iter([*reversed(given), *lone]), None))


def _front(words: list[str], options: Mapping[str, click.Option]) -> tuple[list[_Piece], list[str]]:
    """Return the options in front of the command, and the words from the command's name on."""
    found: list[_Piece] = []
    while words and words[0].startswith("-"):
        found.append(_taken(words, options))
    return found, words


def _pieces(words: Sequence[str], options: Mapping[str, click.Option]) -> Iterator[_Piece]:
    rest = list(words)
    while rest:
        if rest[0] == "--":
            yield from (_Piece((word,)) for word in rest)
            return
        yield _taken(rest, options)


def _taken(rest: list[str], options: Mapping[str, click.Option]) -> _Piece:
    """Take the next option or word, with the option's value."""
    word = rest.pop(0)
    if word.startswith("--"):
        name, equals, _ = word.partition("=")
        option = options.get(name)
        if equals or option is None or option.is_flag:
            return _Piece((word,), option, len(name) + 1 if equals else None)
        return _Piece((word, *_next(rest)), option)
    letters = word[1:] if word.startswith("-") else ""
    for place, letter in enumerate(letters, 1):
        option = options.get(f"-{letter}")
        if option is not None and not option.is_flag:
            attached = place + 1 < len(word)
            return _Piece((word,), option, place + 1) if attached else _Piece((word, *_next(rest)), option)
    return _Piece((word,))


def _next(rest: list[str]) -> list[str]:
    return [rest.pop(0)] if rest else []


def _value_of(piece: _Piece) -> str:
    return piece.words[-1][piece.attached or 0 :]


def _from_stdin(piece: _Piece) -> _Piece:
    """Return the piece with standard input in the place of a file that is here."""
    if piece.option is None or FILE not in piece.option.opts:
        return piece
    *before, last = piece.words
    return _Piece((*before, last[: piece.attached or 0] + STDIN), piece.option, piece.attached)


def _is_here(piece: _Piece) -> bool:
    return piece.option is not None and str(piece.option.name).removeprefix("global_") in HERE


def _spelled(params: Sequence[click.Parameter]) -> Iterator[tuple[str, click.Option]]:
    for param in params:
        if isinstance(param, click.Option):
            yield from ((spelling, param) for spelling in (*param.opts, *param.secondary_opts))
