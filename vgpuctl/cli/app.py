# SPDX-License-Identifier: Apache-2.0
"""The program as click sees it: the group of all commands, none of them imported.

`--version`, `--help` and completion of commands and options import click and little else; everything that
costs time is imported by the command that needs it.
"""

from __future__ import annotations

import os

import click

from vgpuctl import __version__
from vgpuctl.cli import table
from vgpuctl.cli.command import CONTEXT_SETTINGS, LazyGroup, load_command
from vgpuctl.cli.settings import Settings, global_options

PROGRAM = "vgpuctl"
COMPLETE_VARIABLE = "_VGPUCTL_COMPLETE"


def _print_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"{PROGRAM} {__version__}")
        ctx.exit(0)


cli = LazyGroup(
    PROGRAM,
    table={name: text for name, (_, text) in table.COMMANDS.items()},
    load=load_command,
    help="Give virtual machines on this KVM host a slice of a GPU, or a whole one.",
    examples=(
        ("vgpuctl list-profiles", "what can be made here, and how many more"),
        ("vgpuctl create-vm --profile A100-4C", "a running VM with that vGPU"),
        ("vgpuctl --host sim:a100-40 create-vm --profile A100-4C", "the same on a simulated host"),
    ),
    params=[
        *global_options(in_front=True),
        click.Option(
            ["--version"],
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


def run(settings: Settings, words: list[str]) -> int:
    """Run one command line, or answer the shell's question about one."""
    instruction = os.environ.get(COMPLETE_VARIABLE)
    if instruction:
        from vgpuctl.cli import shells

        return shells.complete(cli, settings, PROGRAM, COMPLETE_VARIABLE, instruction)
    _refuse_bytes(words)
    try:
        with cli.make_context(PROGRAM, words, obj=settings) as context:
            status = cli.invoke(context)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.UsageError as exc:
        if exc.ctx is not None:
            settings.kind = "-".join(exc.ctx.command_path.split()[1:]) or settings.kind
        raise
    return status if isinstance(status, int) else 0


def _refuse_bytes(words: list[str]) -> None:
    """Refuse what is no text: it could be neither sent to libvirt or another host nor printed.

    Raises:
        InvalidInput: a word, or VGPUCTL_HOST, is not UTF-8.
    """
    typed = {f"word {number} of the command line": word for number, word in enumerate(words, 1)}
    for where, word in {**typed, "VGPUCTL_HOST": os.environ.get("VGPUCTL_HOST", "")}.items():
        if not word.isascii() and word != word.encode(errors="ignore").decode():
            from vgpuctl.errors import InvalidInput

            raise InvalidInput(f"{where} is not UTF-8 text: {word!a}", hint="type it as UTF-8")
