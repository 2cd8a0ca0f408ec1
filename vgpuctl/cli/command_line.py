# SPDX-License-Identifier: Apache-2.0
"""Splits a command line into options with their values, and other arguments, before click parses it.

click reports neither how often an option was given nor where its value begins.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from vgpuctl.errors import HostCannot
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.cli.global_options import Settings


class Token(Value):
    """An option with its value, or another argument.

    `value_offset`: where the value begins if option and value are one argument, as in `--gpu=A100`.
    """

    args: tuple[str, ...]
    option: click.Option | None = None
    value_offset: int | None = None


def split_front_options(args: list[str], options: Mapping[str, click.Option]) -> tuple[list[Token], list[str]]:
    """Return the options before the command's name, and the arguments from the command's name on."""
    tokens: list[Token] = []
    while args and args[0].startswith("-"):
        tokens.append(_take_token(args, options))
    return tokens, args


def split_tokens(args: Sequence[str], options: Mapping[str, click.Option]) -> Iterator[Token]:
    """Yield the options and other arguments of a command."""
    rest = list(args)
    while rest:
        if rest[0] == "--":
            yield from (Token((arg,)) for arg in rest)
            return
        yield _take_token(rest, options)


def _take_token(rest: list[str], options: Mapping[str, click.Option]) -> Token:
    """Remove and return the next option with its value, or the next other argument."""
    arg = rest.pop(0)
    if arg.startswith("--"):
        name, equals, _ = arg.partition("=")
        option = options.get(name)
        if equals or option is None or option.is_flag:
            return Token((arg,), option, len(name) + 1 if equals else None)
        return Token((arg, *_take_value(rest)), option)
    letters = arg[1:] if arg.startswith("-") else ""
    for index, letter in enumerate(letters, 1):
        option = options.get(f"-{letter}")
        if option is not None and not option.is_flag:
            attached = index + 1 < len(arg)
            return Token((arg,), option, index + 1) if attached else Token((arg, *_take_value(rest)), option)
    return Token((arg,))


def _take_value(rest: list[str]) -> list[str]:
    return [rest.pop(0)] if rest else []


def option_value(token: Token) -> str:
    """Return the option's value as it was given."""
    return token.args[-1][token.value_offset or 0 :]


def refuse_conflicting_values(args: Sequence[str], context: click.Context) -> None:
    """Raise a usage error if an option that takes one value is given twice with different values.

    A group owns the options before the command's name; those after it belong to the command.
    """
    options = dict(list_spellings(context.command.get_params(context)))
    tokens = (
        split_front_options(list(args), options)[0]
        if isinstance(context.command, click.Group)
        else split_tokens(args, options)
    )
    values: dict[str, str] = {}
    for token in tokens:
        option = token.option
        if option is None or option.multiple or option.is_flag:
            continue
        value = values.setdefault(str(option.name), option_value(token))
        if value != option_value(token):
            from vgpuctl.cli.usage import UsageErrorWithHint

            name = max(option.opts, key=len)
            message = f"{name} is given twice: {value} and {option_value(token)}"
            raise UsageErrorWithHint(message, f"{name} takes one value: specify it once", context)


def refuse_lost_target(settings: Settings, context: click.Context, host_variable: str | None) -> None:
    """Refuse a command that would work elsewhere than its own arguments or VGPUCTL_HOST say.

    The arguments are read a second time, without click, so that no version of click can lose --host unnoticed.

    Raises:
        HostCannot: the settings lack --host, --root or --connect, or have another value.
    """
    options: dict[str, click.Option] = {}
    parent: click.Context | None = context
    while parent is not None:
        options |= list_spellings(parent.command.get_params(parent))
        parent = parent.parent
    given: dict[str, list[str]] = {}
    for token in split_tokens(settings.args, options):
        if token.option is not None:
            given.setdefault(max(token.option.opts, key=len), []).append(option_value(token))
    hosts = given.get("--host") or [name for name in (host_variable,) if name]
    targets = settings.ssh_hosts or (settings.host,)
    if hosts and not set(targets) <= set(hosts):
        raise _lost_target(f"--host {hosts[-1]}" if "--host" in given else f"VGPUCTL_HOST={host_variable}", targets[0])
    for name, value in (("--root", settings.root), ("--connect", settings.connect)):
        if name in given and given[name][-1] != value:
            raise _lost_target(f"{name} {given[name][-1]}", settings.host)


def _lost_target(given: str, target: str) -> HostCannot:
    from importlib.metadata import version

    return HostCannot(
        f"{given} was given, but click {version('click')} did not pass it on, so the command would work on {target};"
        " nothing was done",
        hint=f"install another release of click: {shlex.quote(sys.executable)} -m pip install --upgrade click",
        check="python-library",
        library="click",
    )


def list_spellings(params: Sequence[click.Parameter]) -> Iterator[tuple[str, click.Option]]:
    """Yield every spelling of each option, with the option."""
    for param in params:
        if isinstance(param, click.Option):
            yield from ((spelling, param) for spelling in (*param.opts, *param.secondary_opts))
