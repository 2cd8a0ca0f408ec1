# SPDX-License-Identifier: Apache-2.0
"""The top-level click group: it lists every command and imports none of them.

`--version`, `--help` and completion of commands and options import little more than click. Each command imports the
slow modules that it needs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise

import click

from vgpuctl.cli import command_table
from vgpuctl.cli.command import CONTEXT_SETTINGS, LazyGroup, load_command
from vgpuctl.cli.global_options import global_options
from vgpuctl.cli.settings import HOST_VARIABLE, Settings
from vgpuctl.version import __version__

PROGRAM = "vgpuctl"
COMPLETE_VARIABLE = "_VGPUCTL_COMPLETE"


def _print_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"{PROGRAM} {__version__}")
        ctx.exit(0)


cli = LazyGroup(
    PROGRAM,
    headings={
        heading: {name: entry.summary for name, entry in group.items()}
        for heading, group in command_table.COMMAND_GROUPS.items()
    },
    load=load_command,
    help="Give virtual machines on this KVM host a slice of a GPU, or a whole one.",
    examples=(
        ("vgpuctl list-profiles", "the vGPU profiles of this host, and how many more fit"),
        ("vgpuctl create-vm --profile A100-4C", "a running VM with that vGPU"),
        ("vgpuctl --host sim:a100-40 create-vm --profile A100-4C", "the same on a simulated host"),
    ),
    params=[
        *global_options(),
        click.Option(
            ["-V", "--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Show the version and exit.",
        ),
    ],
    context_settings=CONTEXT_SETTINGS,
    subcommand_metavar="COMMAND [ARGUMENTS]",
)


def run(settings: Settings, args: list[str]) -> int:
    """Run one command line, or answer a completion request from the shell."""
    instruction = os.environ.get(COMPLETE_VARIABLE)
    if instruction:
        from vgpuctl.cli import shells

        return shells.complete(cli, settings, PROGRAM, COMPLETE_VARIABLE, instruction)
    _refuse_non_utf8(args)
    _refuse_spread_range(args)
    try:
        with cli.make_context(PROGRAM, args, obj=settings) as context:
            status = cli.invoke(context)
    except click.exceptions.Exit as exit_request:
        return exit_request.exit_code
    except click.UsageError as exc:
        if exc.ctx is not None:
            settings.kind = "-".join(exc.ctx.command_path.split()[1:]) or settings.kind
        raise
    return status if isinstance(status, int) else 0


def _refuse_non_utf8(args: list[str]) -> None:
    """Refuse arguments that are not valid text: they cannot be printed, or sent to libvirt or another host.

    Raises:
        InvalidInput: an argument, or VGPUCTL_HOST, is not UTF-8.
    """
    arguments = {f"word {number} of the command line": arg for number, arg in enumerate(args, 1)}
    for label, arg in {**arguments, HOST_VARIABLE: os.environ.get(HOST_VARIABLE, "")}.items():
        if not arg.isascii() and arg != arg.encode(errors="ignore").decode():
            from vgpuctl.errors import InvalidInput

            raise InvalidInput(f"{label} is not UTF-8 text: {arg!a}", hint="enter it as UTF-8")


def _refuse_spread_range(args: Sequence[str]) -> None:
    """Refuse `--host ssh://gpu1 ssh://gpu2`, which the shell makes of a range that is not in quotes."""
    words = args[: args.index("--")] if "--" in args else args
    if any(first.startswith("ssh://") and second.startswith("ssh://") for first, second in pairwise(words)):
        from vgpuctl.cli import usage

        usage.refuse_spread_range(args)
