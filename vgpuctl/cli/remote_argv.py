# SPDX-License-Identifier: Apache-2.0
"""The arguments for vgpuctl on other hosts: those given here, without the options that select hosts, and with --json.

A file that -f names is read here and sent as standard input. Every other path is a path on the other host.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from vgpuctl.cli import command_line
from vgpuctl.value import Value

LOCAL_OPTIONS = frozenset(
    {"host", "hosts", "limit", "host_deadline", "hosts_at_a_time", "json", "progress", "wheelhouse"}
)
"""Names of options that are not forwarded. --json and --progress are added again as needed."""
FILE_OPTION = "--file"
STDIN = "-"


class ForwardedArgs(Value):
    """Arguments for the remote vgpuctl, and the local file that it reads as standard input; None if it reads none."""

    args: tuple[str, ...]
    stdin_file: str | None = None


def forward_args(
    args: Sequence[str], command: click.Command, global_params: Sequence[click.Parameter]
) -> ForwardedArgs:
    """Return what to forward. click has parsed `args`, so `global_params` and `command` have every option in it."""
    outer, rest = command_line.split_front_options(list(args), dict(command_line.list_spellings(global_params)))
    inner = list(command_line.split_tokens(rest[1:], dict(command_line.list_spellings(command.params))))
    forwarded = [token for token in inner if not _is_local_option(token)]
    file_values = [
        command_line.option_value(token)
        for token in forwarded
        if token.option is not None and FILE_OPTION in token.option.opts
    ]
    stdin_args = [STDIN for token in forwarded if token.option is None and token.args == (STDIN,)]
    result = [arg for token in outer if not _is_local_option(token) for arg in token.args]
    result += [*rest[:1], *(arg for token in forwarded for arg in _read_from_stdin(token).args)]
    return ForwardedArgs(tuple(result), next(iter([*reversed(file_values), *stdin_args]), None))


def _read_from_stdin(token: command_line.Token) -> command_line.Token:
    """Return the token with standard input in place of a local file."""
    if token.option is None or FILE_OPTION not in token.option.opts:
        return token
    *before, last = token.args
    return command_line.Token((*before, last[: token.value_offset or 0] + STDIN), token.option, token.value_offset)


def _is_local_option(token: command_line.Token) -> bool:
    return token.option is not None and str(token.option.name).removeprefix("global_") in LOCAL_OPTIONS
