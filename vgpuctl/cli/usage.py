# SPDX-License-Identifier: Apache-2.0
"""Usage errors in the program's own words: one line of what is wrong, and a hint."""

from __future__ import annotations

import click

from vgpuctl.cli import suggest


def explain_usage(exc: click.ClickException) -> tuple[str, str | None]:
    """Return message and hint of an error that click or a command raised while parsing."""
    context = exc.ctx if isinstance(exc, click.UsageError) else None
    path = context.command_path if context is not None else "vgpuctl"
    hint = f"'{path} --help' shows how it is used"
    if isinstance(exc, suggest.WrongWord):
        return exc.message, exc.hint
    if isinstance(exc, click.exceptions.NoArgsIsHelpError):
        return "a command is missing", f"'{path} --help' lists the commands"
    if isinstance(exc, click.NoSuchOption):
        return f"no such option '{exc.option_name}'", _option_hint(exc.option_name, context) or hint
    if isinstance(exc, click.MissingParameter) and exc.param is not None:
        return f"{_parameter_name(exc.param)} is missing", hint
    if isinstance(exc, click.BadParameter) and exc.param is not None:
        return f"{_parameter_name(exc.param)}: {_in_words(exc.param, _lower(exc.message))}", hint
    return _lower(exc.format_message()), hint


def _option_hint(typed: str, context: click.Context | None) -> str | None:
    if context is None:
        return None
    params = context.command.get_params(context)
    if typed == "--name" and any(isinstance(p, click.Argument) and p.name == "name" for p in params):
        return f"the name is no option: {context.command_path} NAME"
    known = [spelling for p in params if isinstance(p, click.Option) for spelling in p.opts]
    meant = suggest.meant_option(typed, known)
    return f"did you mean {meant}? '{context.command_path} --help' shows every option" if meant else None


def _parameter_name(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return (parameter.metavar or parameter.name or "an argument").upper()


def _in_words(parameter: click.Parameter, message: str) -> str:
    """Return click's sentence about a number with its range in words: `1<=x<=64` is for those who program."""
    kind = parameter.type
    if not isinstance(kind, click.IntRange):
        return message
    least, most = kind.min, kind.max
    ways = f"{least} to {most}" if least is not None and most is not None else f"{least} or more"
    typed = message.partition(" is not ")[0]
    return f"{typed} is not a whole number, {ways}" if typed.startswith("'") else f"{typed} is not {ways}"


def _lower(message: str) -> str:
    """Return click's sentence as ours: no capital, no full stop."""
    message = message.strip().rstrip(".")
    return message[:1].lower() + message[1:] if message[1:2].islower() else message
