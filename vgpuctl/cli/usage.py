# SPDX-License-Identifier: Apache-2.0
"""Usage errors in the program's own words: one line about the problem, and a hint."""

from __future__ import annotations

import click

from vgpuctl.cli import suggest


def explain_usage(exc: click.ClickException) -> tuple[str, str | None]:
    """Return message and hint of an error that click or a command raised while parsing."""
    context = exc.ctx if isinstance(exc, click.UsageError) else None
    path = context.command_path if context is not None else "vgpuctl"
    hint = f"'{path} --help' shows how it is used"
    if isinstance(exc, suggest.UsageErrorWithHint):
        return exc.message, exc.hint
    if isinstance(exc, click.exceptions.NoArgsIsHelpError):
        return "a command is missing", f"'{path} --help' lists the commands"
    if isinstance(exc, click.NoSuchOption):
        return f"no such option '{exc.option_name}'", _option_hint(exc.option_name, context) or hint
    if isinstance(exc, click.MissingParameter) and exc.param is not None:
        return f"{_parameter_name(exc.param)} is missing", hint
    if isinstance(exc, click.BadParameter) and exc.param is not None:
        return f"{_parameter_name(exc.param)}: {_describe_range(exc.param, _lower_first(exc.message))}", hint
    return _lower_first(exc.format_message()), hint


def _option_hint(given: str, context: click.Context | None) -> str | None:
    if context is None:
        return None
    params = context.command.get_params(context)
    if given == "--name" and any(isinstance(p, click.Argument) and p.name == "name" for p in params):
        return f"the name is no option: {context.command_path} NAME"
    spellings = [spelling for p in params if isinstance(p, click.Option) for spelling in p.opts]
    suggestion = suggest.suggest_option(given, spellings)
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
