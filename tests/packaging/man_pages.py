# SPDX-License-Identifier: Apache-2.0
"""Manual pages, one for vgpuctl and one for each command, from the same command tree as --help.

click-man would drop the examples, the groups' lists of commands, and each line that begins with an apostrophe.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Iterator

import click

from tests.unit.cli.command_tree import walk_commands
from vgpuctl.cli.command import PROGRAM, Command, Example, LazyGroup, cli
from vgpuctl.version import __version__

STATUSES = (
    (0, "it worked, or there was nothing to do"),
    (1, "it failed and was undone"),
    (2, "invalid input or usage"),
    (3, "refused: it would break something in use, or touch what vgpuctl does not manage"),
    (4, "no capacity"),
    (5, "partly applied: it failed and could not be undone completely; the message says what is left"),
    (6, "this host cannot do it; the message names the check"),
    (7, "diff: something differs"),
    (75, "temporary, try again: another vgpuctl holds the lock, or a kernel write is stuck"),
    (130, "interrupted by SIGINT"),
    (143, "interrupted by SIGTERM"),
)


def render_pages(epoch: int) -> dict[str, str]:
    """Return file name -> page."""
    date = time.strftime("%Y-%m-%d", time.gmtime(epoch))
    pages = {PROGRAM: _page(PROGRAM, cli, date)}
    pages |= {name.replace(" ", "-"): _page(name, command, date) for name, command in walk_commands()}
    return {f"{name}.1": text for name, text in pages.items()}


def _page(full_name: str, command: click.Command, date: str) -> str:
    title = full_name.replace(" ", "-")
    group = command if isinstance(command, LazyGroup) else None
    purpose = "give virtual machines a slice of a GPU, or a whole one" if command is cli else _purpose(command)
    usage = ["[OPTIONS]", "COMMAND [ARGUMENTS]"] if group else _usage_words(command)
    options = command.own_params if isinstance(command, Command) else _options(command)
    lines = [f'.TH "{title.upper()}" "1" "{date}" "vgpuctl {__version__}" "vgpuctl"']
    lines += [".SH NAME", f"{_escape(title)} \\- {_escape(purpose)}"]
    lines += [".SH SYNOPSIS", f".B {_escape(full_name)}", _escape(" ".join(usage))]
    lines += [".SH DESCRIPTION", *_paragraphs(command.help or "")]
    if group is not None:
        lines += [".SH COMMANDS"]
        for heading, texts in group.headings.items():
            lines += [f".SS {_escape(heading)}"] if len(group.headings) > 1 else []
            lines += _terms((f"{full_name} {name}", text) for name, text in texts.items())
    if options:
        lines += [".SH OPTIONS", *_terms((_option_words(option, command), option.help or "") for option in options)]
    if command is cli:
        lines += [".SH EXIT STATUS", *_terms((str(status), meaning) for status, meaning in STATUSES)]
    lines += _examples(command.examples if isinstance(command, Command | LazyGroup) else ())
    if command is not cli:
        lines += [".SH SEE ALSO", ".BR vgpuctl (1)", "explains the options of every command and the exit status."]
    return "\n".join(lines) + "\n"


def _purpose(command: click.Command) -> str:
    return (command.short_help or (command.help or "").partition(".")[0]).rstrip(".")


def _usage_words(command: click.Command) -> list[str]:
    """Return what follows the command's name on its usage line."""
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    return ["[OPTIONS]", *(_metavar(argument, command) for argument in arguments)]


def _metavar(param: click.Parameter, command: click.Command) -> str:
    """Return a parameter's value as its usage line shows it; click before 8.2 needs no context for that."""
    make: Callable[..., str] = param.make_metavar
    return make(click.Context(command)) if inspect.signature(make).parameters else make()


def _option_words(option: click.Option, command: click.Command) -> str:
    """Return an option as it is typed."""
    value = "" if option.is_flag else f" {_metavar(option, command)}"
    return ", ".join(option.opts) + value


def _options(command: click.Command) -> list[click.Option]:
    return [param for param in command.params if isinstance(param, click.Option)]


def _paragraphs(text: str) -> Iterator[str]:
    for number, paragraph in enumerate(inspect.cleandoc(text).split("\n\n")):
        if number:
            yield ".PP"
        lines = paragraph.splitlines()
        is_verbatim = lines[:1] == ["\b"]
        yield from [".nf", *map(_escape, lines[1:]), ".fi"] if is_verbatim else map(_escape, lines)


def _terms(terms: Iterable[tuple[str, str]]) -> Iterator[str]:
    for term, text in terms:
        yield from (".TP", f".B {_escape(term)}", *map(_escape, inspect.cleandoc(text).splitlines()))


def _examples(examples: tuple[Example, ...]) -> Iterator[str]:
    if not examples:
        return
    yield ".SH EXAMPLES"
    for line, purpose in examples:
        yield from (".TP", f".B {_escape(line)}", _escape(purpose))


def _escape(text: str) -> str:
    """Return a line of text for roff: a dot or an apostrophe at its beginning would make it a request."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return f"\\&{escaped}" if escaped.startswith(".") else escaped
