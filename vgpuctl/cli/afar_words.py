# SPDX-License-Identifier: Apache-2.0
"""The words that other hosts' vgpuctl gets: those that were typed, without what says which hosts, and with --json.

A file that -f names is read here, and goes there through standard input; every other path is a path there.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from vgpuctl.cli import typed
from vgpuctl.value import Value

HERE = frozenset({"host", "hosts", "limit", "host_deadline", "hosts_at_a_time", "json", "progress", "wheelhouse"})
"""Options that are not handed on, by their names. What --json and --progress ask for is said anew."""
FILE = "--file"
STDIN = "-"


class HandedOn(Value):
    """Words for the vgpuctl there, and the file here that it reads as its standard input; None when it reads none."""

    words: tuple[str, ...]
    file: str | None = None


def handed_on(words: Sequence[str], command: click.Command, front: Sequence[click.Parameter]) -> HandedOn:
    """Return what is handed on. The words were parsed before, so `front` and `command` know each of them."""
    outer, rest = typed.front(list(words), dict(typed.spelled(front)))
    inner = list(typed.pieces_of(rest[1:], dict(typed.spelled(command.params))))
    kept = [piece for piece in inner if not _is_here(piece)]
    given = [typed.value_of(piece) for piece in kept if piece.option is not None and FILE in piece.option.opts]
    lone = [STDIN for piece in kept if piece.option is None and piece.words == (STDIN,)]
    found = [word for piece in outer if not _is_here(piece) for word in piece.words]
    found += [*rest[:1], *(word for piece in kept for word in _from_stdin(piece).words)]
    return HandedOn(tuple(found), next(iter([*reversed(given), *lone]), None))


def _from_stdin(piece: typed.Piece) -> typed.Piece:
    """Return the piece with standard input in the place of a file that is here."""
    if piece.option is None or FILE not in piece.option.opts:
        return piece
    *before, last = piece.words
    return typed.Piece((*before, last[: piece.attached or 0] + STDIN), piece.option, piece.attached)


def _is_here(piece: typed.Piece) -> bool:
    return piece.option is not None and str(piece.option.name).removeprefix("global_") in HERE
