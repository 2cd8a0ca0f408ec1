# SPDX-License-Identifier: Apache-2.0
"""docs/cli.md, generated from the command tree: all help pages on one page, without line wrapping."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from vgpuctl.cli.app import PROGRAM, cli
from vgpuctl.cli.command import Command, LazyGroup
from vgpuctl.cli.settings import list_options, watch_options

STATUSES = (
    (0, "it worked, or there was nothing to do"),
    (1, "it failed and was undone"),
    (2, "invalid input or usage"),
    (3, "refused: it would break something in use, or touch what vgpuctl does not own"),
    (4, "no capacity"),
    (5, "partly applied: it failed and could not be undone completely; the message says what is left"),
    (6, "this host cannot; the message names the check"),
    (7, "diff and assert: something differs"),
    (75, "temporary, try again: another vgpuctl holds the lock, or a kernel write is stuck"),
    (130, "interrupted by SIGINT"),
    (143, "interrupted by SIGTERM"),
)


def render_markdown() -> str:
    """Return the page."""
    return "\n".join(_page()).rstrip() + "\n"


def walk_commands() -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its full name, groups before their commands."""
    yield from _walk_group(cli, PROGRAM)


def _walk_group(group: LazyGroup, path: str) -> Iterator[tuple[str, click.Command]]:
    for name in group.help_texts:
        command = group.load(name)
        yield f"{path} {name}", command
        if isinstance(command, LazyGroup):
            yield from _walk_group(command, f"{path} {name}")


def _page() -> Iterator[str]:
    yield "# The command line"
    yield ""
    yield "<!-- Made from the program by tests/unit/cli/test_docs.py with VGPUCTL_REGENERATE=1. Do not edit. -->"
    yield ""
    yield cli.help or ""
    yield ""
    yield f"    {PROGRAM} [OPTIONS] COMMAND [ARGUMENTS]"
    yield ""
    yield "## Options of every command"
    yield ""
    yield "They may stand before or after the command's name."
    yield ""
    yield from _options([p for p in cli.params if isinstance(p, click.Option)])
    yield "## Options of lists"
    yield ""
    yield from _options([*list_options(), *watch_options()])
    yield "## Exit status"
    yield ""
    yield "| status | meaning |"
    yield "|---|---|"
    yield from (f"| {status} | {meaning} |" for status, meaning in STATUSES)
    yield ""
    for full_name, command in walk_commands():
        yield from _command(full_name, command)


def _command(full_name: str, command: click.Command) -> Iterator[str]:
    yield f"## {full_name}"
    yield ""
    if isinstance(command, LazyGroup):
        yield command.help or ""
        yield ""
        return
    yield f"    {' '.join([full_name, *usage_words(command)])}"
    yield ""
    yield from inspect.cleandoc(command.help or "").splitlines()
    yield ""
    if isinstance(command, Command):
        yield from _options(command.own_params)
        yield "```sh"
        for line, purpose in command.examples:
            yield f"# {purpose}"
            yield line
        yield "```"
        yield ""


def usage_words(command: click.Command) -> list[str]:
    """Return what follows the command's name on its usage line."""
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    words = ["[OPTIONS]"]
    for argument in arguments:
        name = "|".join(_choices(argument)) or (argument.name or "").upper()
        words.append(name if argument.required else f"[{name}]")
    return words


def _options(options: list[click.Option]) -> Iterator[str]:
    if not options:
        return
    yield "| option | meaning |"
    yield "|---|---|"
    for option in options:
        value = "" if option.is_flag else f" {_metavar(option)}"
        spellings = ", ".join(f"`{opt}`" for opt in option.opts)
        shown = f"{spellings} `{value.strip()}`" if value else spellings
        yield f"| {_cell(shown)} | {_cell(option.help or '')} |"
    yield ""


def option_words(option: click.Option) -> str:
    """Return an option as it is typed."""
    return ", ".join(option.opts) + ("" if option.is_flag else f" {_metavar(option)}")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _metavar(option: click.Option) -> str:
    return option.metavar or "|".join(_choices(option)) or "TEXT"


def _choices(parameter: click.Parameter) -> list[str]:
    return [str(choice) for choice in parameter.type.choices] if isinstance(parameter.type, click.Choice) else []
