# SPDX-License-Identifier: Apache-2.0
"""Suggests the command or option that was probably meant by an unknown one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

import click

from vgpuctl.cli.command_table import OPTION_SYNONYMS, SYNONYMS


class UsageErrorWithHint(click.UsageError):
    """A usage error with a hint."""

    def __init__(self, message: str, hint: str, ctx: click.Context | None) -> None:
        super().__init__(message, ctx)
        self.hint = hint


def unknown_command(args: list[str], commands: Iterable[str], ctx: click.Context) -> UsageErrorWithHint:
    """Explain a command that does not exist: `vm create`, `list-gpu`, `destroy`."""
    names = list(commands)
    given = args[0]
    suggestion = suggest_command(args, names)
    path = ctx.command_path
    hint = f"did you mean '{path} {suggestion}'?" if suggestion else f"'{path} --help' lists the commands"
    return UsageErrorWithHint(f"no such command '{given}'", hint, ctx)


def suggest_command(args: list[str], names: list[str]) -> str | None:
    """Return the command that was probably meant, or None."""
    first = args[0].lower().replace("_", "-")
    candidates = [first]
    if len(args) > 1:
        second = args[1].lower()
        candidates = [f"{first}-{second}", f"{second}-{first}", f"{first}-{second}s", *candidates]
        candidates += [f"{second}-{first}s"]
    for candidate in [*candidates, f"{first}s", first.removesuffix("s")]:
        if candidate in names:
            return candidate
    if SYNONYMS.get(first) in names:
        return SYNONYMS[first]
    for candidate in candidates:
        close = get_close_matches(candidate, names, n=1, cutoff=0.7)
        if close:
            return close[0]
    with_verb = [name for name in names if name.startswith(f"{first}-")]
    return with_verb[0] if with_verb else None


def suggest_option(given: str, options: Iterable[str]) -> str | None:
    """Return the option that was probably meant, or None."""
    names = list(options)
    lowered = given.lower().replace("_", "-").split("=")[0]
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
