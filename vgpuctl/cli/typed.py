# SPDX-License-Identifier: Apache-2.0
"""Splits a typed command line into options with their values, and other words, before click parses it.

click tells neither how often an option was typed nor where its value begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import click

from vgpuctl.value import Value


class Piece(Value):
    """An option with its value, or a word that is none. `attached` is where in its one word the value begins."""

    words: tuple[str, ...]
    option: click.Option | None = None
    attached: int | None = None


def front(words: list[str], options: Mapping[str, click.Option]) -> tuple[list[Piece], list[str]]:
    """Return the options in front of the command, and the words from the command's name on."""
    found: list[Piece] = []
    while words and words[0].startswith("-"):
        found.append(_taken(words, options))
    return found, words


def pieces_of(words: Sequence[str], options: Mapping[str, click.Option]) -> Iterator[Piece]:
    """Yield the options and words of a command."""
    rest = list(words)
    while rest:
        if rest[0] == "--":
            yield from (Piece((word,)) for word in rest)
            return
        yield _taken(rest, options)


def _taken(rest: list[str], options: Mapping[str, click.Option]) -> Piece:
    """Take the next option or word, with the option's value."""
    word = rest.pop(0)
    if word.startswith("--"):
        name, equals, _ = word.partition("=")
        option = options.get(name)
        if equals or option is None or option.is_flag:
            return Piece((word,), option, len(name) + 1 if equals else None)
        return Piece((word, *_next(rest)), option)
    letters = word[1:] if word.startswith("-") else ""
    for place, letter in enumerate(letters, 1):
        option = options.get(f"-{letter}")
        if option is not None and not option.is_flag:
            attached = place + 1 < len(word)
            return Piece((word,), option, place + 1) if attached else Piece((word, *_next(rest)), option)
    return Piece((word,))


def _next(rest: list[str]) -> list[str]:
    return [rest.pop(0)] if rest else []


def value_of(piece: Piece) -> str:
    """Return the option's value as it was typed."""
    return piece.words[-1][piece.attached or 0 :]


def refuse_two_values(words: Sequence[str], context: click.Context) -> None:
    """Raise a usage error when an option that is taken once is typed twice with different values.

    A group has its own options in front of the command's name; those after it are the command's.
    """
    options = dict(spelled(context.command.get_params(context)))
    found = front(list(words), options)[0] if isinstance(context.command, click.Group) else pieces_of(words, options)
    values: dict[str, str] = {}
    for piece in found:
        option = piece.option
        if option is None or option.multiple or option.is_flag:
            continue
        value = values.setdefault(str(option.name), value_of(piece))
        if value != value_of(piece):
            from vgpuctl.cli.suggest import WrongWord

            name = max(option.opts, key=len)
            message = f"{name} is given twice: {value} and {value_of(piece)}"
            raise WrongWord(message, f"{name} takes one value: leave one out", context)


def spelled(params: Sequence[click.Parameter]) -> Iterator[tuple[str, click.Option]]:
    """Yield every way to write an option, and the option."""
    for param in params:
        if isinstance(param, click.Option):
            yield from ((spelling, param) for spelling in (*param.opts, *param.secondary_opts))
