# SPDX-License-Identifier: Apache-2.0
"""The program and its commands for click: found by name, declared with what all share, loaded when used.

A command has the global options after its name too, examples at the end of its help page, and its line in `--help` from
the command table. The groups list every command and import none of them: `--version`, `--help` and completion of
commands and options import little more than click. Each command imports the slow modules that it needs.
"""

from __future__ import annotations

import importlib
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from vgpuctl.cli import command_table, complete
from vgpuctl.cli.global_options import (
    HOST_VARIABLE,
    TARGET_OPTIONS,
    Settings,
    global_options,
    list_options,
    take_options,
)
from vgpuctl.version import __version__

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from vgpuctl.cli.shown import Listing, Page

Example = tuple[str, str]
"""A command line that works, and what it does."""

PROGRAM = "vgpuctl"
COMPLETE_VARIABLE = "_VGPUCTL_COMPLETE"


class Shown(NamedTuple):
    """How a command's result is shown.

    `page`: makes the page of a query's data, or of a change's whole outcome; for a list only what goes to stderr.
    Without one there is the page of a changed VM, or that of the steps. `listing`: the columns of a list.
    `words`: for several VMs or GPUs, what happened to one that was changed, and to one that needed no change.
    `header`: of the column with their names. `shown_by`: the command that shows what a change did; the name of what
    was changed follows `show-vm` and `show-gpu`.
    """

    page: Callable[[Any], Page] | None = None
    listing: Listing | None = None
    words: tuple[str, str] = ("changed", "unchanged")
    header: str = "NAME"
    shown_by: str = "list-vms"


class Command(click.Command):
    """One command: its options, its examples, and how its result is shown."""

    def __init__(self, *arguments: Any, examples: tuple[Example, ...], shown: Shown, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.examples = examples
        self.shown = shown
        self.own_params = [p for p in self.params if isinstance(p, click.Option)]
        self.view_params = [] if shown.listing is None else list_options()
        self.params += [*self.view_params, *global_options()]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; refuse an option that is given twice with different values."""
        ctx.meta[complete.ARGUMENTS] = tuple(args)
        _refuse_conflicting_values(args, ctx)
        try:
            rest = super().parse_args(ctx, args)
        except click.UsageError as error:  # click's parser does not say which command lacks an option's value
            error.ctx = error.ctx or ctx
            raise
        take_options(ctx)
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command here, or forward its arguments to other hosts."""
        settings = ctx.find_object(Settings)
        _refuse_lost_target(settings, ctx)
        if settings is not None and settings.needs_view_check:
            from vgpuctl.cli import listings

            listings.check_options("-".join(ctx.command_path.split()[1:]), settings, ctx)
        if settings is None or not settings.is_remote:
            if settings is not None and settings.remote_only_options:
                raise click.UsageError(f"{settings.remote_only_options[0]} requires --host ssh://HOST", ctx)
            return super().invoke(ctx)
        from vgpuctl.cli import remote_command

        return remote_command.run(settings, ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options, then the names of those of every command."""
        write_options(self.own_params, "Options", ctx, formatter)
        write_options(self.view_params, "Rows and columns", ctx, formatter)
        options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        shared = [max(p.opts, key=len) for p in options if p not in (*self.own_params, *self.view_params)]
        line = f"Options of every command: {' '.join(shared)} (vgpuctl --help explains them)"
        formatter.write_paragraph()
        formatter.write("\n".join(textwrap.wrap(line, formatter.width, break_on_hyphens=False)) + "\n")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples as they would be typed."""
        write_examples(self.examples, formatter)


class LazyGroup(click.Group):
    """A group that lists its commands from a table and imports a command when it is used."""

    def __init__(
        self,
        *arguments: Any,
        headings: dict[str, dict[str, str]],
        load: Callable[[str], click.Command],
        examples: tuple[Example, ...] = (),
        **options: Any,
    ) -> None:
        """`headings`: by heading of the help page, the commands with a line of help each."""
        options["no_args_is_help"] = False  # click 8.1 exits with 0 then
        super().__init__(*arguments, **options)
        self.headings = headings
        self.help_texts = {name: text for group in headings.values() for name, text in group.items()}
        self.load = load
        self.examples = examples

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options before the command's name, with the same check as `Command.parse_args`."""
        _refuse_conflicting_values(args, ctx)
        rest = super().parse_args(ctx, args)
        take_options(ctx)
        return rest

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the table's order."""
        return list(self.help_texts)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        return self.load(cmd_name) if cmd_name in self.help_texts else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the named command, or fail and suggest the most likely one."""
        if args[0] not in self.help_texts and not ctx.resilient_parsing:
            from vgpuctl.cli import usage

            raise usage.unknown_command(args, self.help_texts, ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with the table's help, importing none of them."""
        longest = max(len(name) for name in self.help_texts)
        for heading, group in self.headings.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(longest), text) for name, text in group.items()])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands first: they are what people look for."""
        self.format_commands(ctx, formatter)
        options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        write_options(options, "Options", ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples as they would be typed."""
        write_examples(self.examples, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete command names from the table, importing none of them."""
        from click.shell_completion import CompletionItem

        items = [
            CompletionItem(name, help=text) for name, text in self.help_texts.items() if name.startswith(incomplete)
        ]
        return items + click.Command.shell_complete(self, ctx, incomplete)


def _refuse_conflicting_values(args: list[str], context: click.Context) -> None:
    if sum(arg.startswith("-") for arg in args) > 1 and not context.resilient_parsing:
        from vgpuctl.cli import command_line

        command_line.refuse_conflicting_values(args, context)


def _refuse_lost_target(settings: Settings | None, context: click.Context) -> None:
    named = os.environ.get(HOST_VARIABLE)
    if settings is not None and (named or any(arg.startswith(TARGET_OPTIONS) for arg in settings.args)):
        from vgpuctl.cli import command_line

        command_line.refuse_lost_target(settings, context, named)


def make_command(
    name: str,
    *,
    examples: tuple[Example, ...],
    page: Callable[[Any], Page] | None = None,
    listing: Listing | None = None,
    words: tuple[str, str] = ("changed", "unchanged"),
    header: str = "NAME",
    shown_by: str = "list-vms",
    table: Mapping[str, command_table.Entry] = command_table.COMMANDS,
) -> Callable[[Callable[..., int]], click.Command]:
    """Return a decorator that makes a command from a function that returns the exit status.

    `examples` are on its help page; the tests run them. The others say how its result is shown (`Shown`).
    """
    return click.command(
        name,
        cls=Command,
        examples=examples,
        shown=Shown(page, listing, words, header, shown_by),
        short_help=table[name].summary,
        context_settings=CONTEXT_SETTINGS,
    )


def load_command(name: str) -> click.Command:
    """Import one command from the table."""
    module = importlib.import_module(f"vgpuctl.cli.commands.{command_table.COMMANDS[name].module}")
    return next(c for c in vars(module).values() if isinstance(c, click.Command) and c.name == name)


def find_command(kind: str) -> Command | None:
    """Import the command of a kind of documents: `list-gpus`, `sim-reset`; None if there is none."""
    group, _, rest = kind.partition("-")
    name = group if group in command_table.GROUPS else kind
    command = load_command(name) if name in command_table.COMMANDS else None
    if isinstance(command, LazyGroup):
        command = command.load(rest) if rest in command.help_texts else None
    return command if isinstance(command, Command) else None


def how_shown(kind: str) -> Shown:
    """Return how the result of a command is shown."""
    command = find_command(kind)
    return Shown() if command is None else command.shown


CONTEXT_SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def write_options(params: list[click.Option], title: str, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Write a section of options, if there are any."""
    rows = [row for p in params if (row := p.get_help_record(ctx)) is not None]
    if rows:
        with formatter.section(title):
            formatter.write_dl(rows)


def write_examples(examples: tuple[Example, ...], formatter: click.HelpFormatter) -> None:
    """Write examples, each with its purpose."""
    if not examples:
        return
    with formatter.section("Examples"):
        for line, purpose in examples:
            formatter.write(f"{'':>{formatter.current_indent}}{line}\n")
            formatter.write(f"{'':>{formatter.current_indent + 4}}{purpose}\n")


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
