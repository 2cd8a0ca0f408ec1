# SPDX-License-Identifier: Apache-2.0
"""Usage errors in the program's own words: one line about the problem, and a hint."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from itertools import takewhile

import click

from vgpuctl.cli.command_table import MISSING_OPTIONS, OPTION_SYNONYMS, SYNONYMS
from vgpuctl.config.name_patterns import name_range
from vgpuctl.config.vm_request import OPTION_FIELDS, OTHER_COMMANDS

_WORDS_FOR_OPTIONS = {"help": "--help", "version": "--version"}
_FILTERS = {"--owner": "owner=NAME", "--label": "labels=KEY=VALUE"}
"""Options of the commands for VMs, and what list-vms has instead."""
LIST_OPTIONS = ("--columns", "--sort-by", "--filter", "--no-headers")
_GIVEN = re.compile(r"'([^']*)'")
_EXTRA_ARGUMENT = re.compile(r"Got unexpected extra arguments? \(([^)]*)\)")


class UsageErrorWithHint(click.UsageError):
    """A usage error with a hint."""

    def __init__(self, message: str, hint: str, ctx: click.Context | None) -> None:
        super().__init__(message, ctx)
        self.hint = hint


def unknown_command(args: list[str], commands: Iterable[str], ctx: click.Context) -> UsageErrorWithHint:
    """Explain a command that does not exist: `vm create`, `list-gpu`, `destroy`."""
    names = list(commands)
    given = args[0]
    path = ctx.command_path
    if given in _WORDS_FOR_OPTIONS:
        line = " ".join([path, *[word for word in args[1:2] if word in names], _WORDS_FOR_OPTIONS[given]])
        return UsageErrorWithHint(f"no such command '{given}'", f"it is an option: {line}", ctx)
    suggestion = suggest_command(args, names)
    hint = f"did you mean '{path} {suggestion}'?" if suggestion else f"'{path} --help' lists the commands"
    return UsageErrorWithHint(f"no such command '{given}'", hint, ctx)


def refuse_spread_range(args: Sequence[str]) -> None:
    """Refuse a command line in which several addresses follow one --host, and show it with the range in quotes.

    Raises:
        UsageErrorWithHint: there are such addresses.
    """
    for number, arg in enumerate(args):
        urls = list(takewhile(lambda word: word.startswith("ssh://"), args[number + 1 :])) if arg == "--host" else []
        if len(urls) > 1:
            word = name_range(urls)
            hosts = [word] if word is not None else urls
            words = ["vgpuctl", *args[:number], *(part for host in hosts for part in ("--host", host))]
            raise UsageErrorWithHint(
                f"{urls[1]} follows --host {urls[0]}, and --host takes one address: the shell makes several words of a"
                " range that is not in quotes",
                f"{'quote the range' if word is not None else 'repeat --host'}:"
                f" {shlex.join([*words, *args[number + 1 + len(urls) :]])}",
                None,
            )


def list_commands(context: click.Context) -> str:
    """Return the commands that print a list: `list-gpus, log, sim list-scenarios`."""
    root = context.find_root()

    def walk(group: click.Command, path: str) -> Iterator[str]:
        for name in group.list_commands(root) if isinstance(group, click.Group) else ():
            command = group.get_command(root, name) if isinstance(group, click.Group) else None
            if getattr(command, "view_params", None):
                yield f"{path}{name}"
            elif command is not None:
                yield from walk(command, f"{path}{name} ")

    return ", ".join(walk(root.command, ""))


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
    if SYNONYMS.get(first, "").partition(" ")[0] in names:
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


def explain_usage(exc: click.ClickException) -> tuple[str, str | None]:
    """Return message and hint of an error that click or a command raised while parsing."""
    context = exc.ctx if isinstance(exc, click.UsageError) else None
    path = context.command_path if context is not None else "vgpuctl"
    hint = f"'{path} --help' shows the usage"
    if isinstance(exc, UsageErrorWithHint):
        return exc.message, exc.hint
    if context is not None and isinstance(context.command, click.Group) and exc.message == "Missing command.":
        return "a command is missing", f"'{path} --help' lists the commands"
    if isinstance(exc, click.NoSuchOption):
        return f"no such option '{exc.option_name}'", _option_hint(exc.option_name, context) or hint
    if isinstance(exc, click.MissingParameter) and exc.param is not None:
        return f"{_parameter_name(exc.param)} is missing", _misplaced_choice_hint(exc.param, context) or hint
    if isinstance(exc, click.BadParameter) and exc.param is not None:
        message = f"{_parameter_name(exc.param)}: {_describe_range(exc.param, _lower_first(exc.message))}"
        return message, _choice_hint(exc.param, exc.message) or hint
    return _lower_first(exc.format_message()), _extra_argument_hint(exc, context) or hint


def _choice_hint(parameter: click.Parameter, message: str) -> str | None:
    """Return the word that was probably meant where only some words are allowed."""
    given = _GIVEN.search(message)
    if given is None or not isinstance(parameter.type, click.Choice):
        return None
    close = get_close_matches(given[1].lower(), [str(choice) for choice in parameter.type.choices], n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else None


def _misplaced_choice_hint(missing: click.Parameter, context: click.Context | None) -> str | None:
    """Return the whole command where the value of a missing option was given after the names: `GPU fixed_share`."""
    if context is None or not isinstance(missing, click.Option) or not isinstance(missing.type, click.Choice):
        return None
    arguments = [p for p in context.command.get_params(context) if isinstance(p, click.Argument) and p.nargs == -1]
    for values in (context.params.get(p.name or "") for p in arguments):
        if values and values[-1] in missing.type.choices:
            return shlex.join([*context.command_path.split(), *values[:-1], missing.opts[0], values[-1]])
    return None


def _extra_argument_hint(exc: click.ClickException, context: click.Context | None) -> str | None:
    """Return the hint for a word too many: a profile without its option, or a second name."""
    extra = _EXTRA_ARGUMENT.match(exc.message)
    if extra is None or context is None:
        return None
    params = context.command.get_params(context)
    first = extra[1].split()[0] if extra[1].split() else ""
    if any("--profile" in p.opts for p in params):
        name = " NAME" if any(isinstance(p, click.Argument) for p in params) else ""
        return f"a profile goes after --profile: {context.command_path}{name} --profile {shlex.quote(first)}"
    if any("--vm" in p.opts for p in params):
        return f"the name of a VM goes after --vm: {context.command_path} --vm {shlex.quote(first)}"
    if any(isinstance(p, click.Argument) for p in params):
        return "specify one name: run the command once for each"
    return None


def _option_hint(given: str, context: click.Context | None) -> str | None:
    if context is None:
        return None
    params = context.command.get_params(context)
    if given == "--name" and any(isinstance(p, click.Argument) and p.name == "name" for p in params):
        return f"the name is an argument, not an option: {context.command_path} NAME"
    if given in _FILTERS and context.command.name == "list-vms":
        return f"it filters rows: {context.command_path} --filter {_FILTERS[given]}"
    if given in MISSING_OPTIONS:
        return MISSING_OPTIONS[given]
    if given in LIST_OPTIONS and context.parent is None:
        return f"it goes after the command's name: {context.command_path} list-vms {given}"
    if given in LIST_OPTIONS:
        return f"these commands have {given}: {list_commands(context)}"
    field = next((field for field in OPTION_FIELDS if field.option == given), None)
    if field is not None and context.command.name == "set-vm":
        options = f"'{context.command_path} --help' shows what can change"
        return OTHER_COMMANDS.get(field.name) or f"only a new VM can have it (create-vm); {options}"
    spellings = [spelling for p in params if isinstance(p, click.Option) for spelling in p.opts]
    suggestion = suggest_option(given, spellings)
    return f"did you mean {suggestion}? '{context.command_path} --help' shows every option" if suggestion else None


def _parameter_name(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return (parameter.metavar or parameter.name or "an argument").upper()


def _describe_range(parameter: click.Parameter, message: str) -> str:
    """Return click's message about a number with the range in words, because `1<=x<=64` is notation for programmers."""
    number_type = parameter.type
    if not isinstance(number_type, click.IntRange):
        return message
    minimum, maximum = number_type.min, number_type.max
    range_text = f"{minimum} to {maximum}" if minimum is not None and maximum is not None else f"{minimum} or more"
    given = message.partition(" is not ")[0]
    return f"{given} is not a whole number, {range_text}" if given.startswith("'") else f"{given} is not {range_text}"


def _lower_first(message: str) -> str:
    """Return click's message in the program's style: no capital, no full stop."""
    message = message.strip().rstrip(".")
    return message[:1].lower() + message[1:] if message[1:2].islower() else message
