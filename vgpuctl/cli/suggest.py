# SPDX-License-Identifier: Apache-2.0
"""What was probably meant by a word that is not known."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

import click

from vgpuctl.cli.table import OPTION_SYNONYMS, SYNONYMS


class WrongWord(click.UsageError):
    """A usage error with a hint."""

    def __init__(self, message: str, hint: str, ctx: click.Context | None) -> None:
        super().__init__(message, ctx)
        self.hint = hint


def unknown_command(words: list[str], known: Iterable[str], ctx: click.Context) -> WrongWord:
    """Explain a command that does not exist: `vm create`, `list-gpu`, `destroy`."""
    names = list(known)
    typed = words[0]
    found = meant_command(words, names)
    path = ctx.command_path
    hint = f"did you mean '{path} {found}'?" if found else f"'{path} --help' lists the commands"
    return WrongWord(f"no such command '{typed}'", hint, ctx)


def meant_command(words: list[str], names: list[str]) -> str | None:
    """Return the command that was meant, or None."""
    typed = words[0].lower().replace("_", "-")
    candidates = [typed]
    if len(words) > 1:
        second = words[1].lower()
        candidates = [f"{typed}-{second}", f"{second}-{typed}", f"{typed}-{second}s", *candidates]
        candidates += [f"{second}-{typed}s"]
    for candidate in [*candidates, f"{typed}s", typed.removesuffix("s")]:
        if candidate in names:
            return candidate
    if SYNONYMS.get(typed) in names:
        return SYNONYMS[typed]
    for candidate in candidates:
        close = get_close_matches(candidate, names, n=1, cutoff=0.7)
        if close:
            return close[0]
    verb = [name for name in names if name.startswith(f"{typed}-")]
    return verb[0] if verb else None


def meant_option(typed: str, known: Iterable[str]) -> str | None:
    """Return the option that was meant, or None."""
    names = list(known)
    lowered = typed.lower().replace("_", "-").split("=")[0]
    if lowered in names:
        return lowered
    if OPTION_SYNONYMS.get(lowered) in names:
        return OPTION_SYNONYMS[lowered]
    starts = [name for name in names if len(lowered) > 3 and name.startswith(lowered)]
    if starts:
        return starts[0]
    bare = {name.lstrip("-"): name for name in names if name.startswith("--")}
    close = get_close_matches(lowered.lstrip("-"), bare, n=1, cutoff=0.65)
    return bare[close[0]] if close else None
