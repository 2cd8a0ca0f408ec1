# SPDX-License-Identifier: Apache-2.0
"""click's command and group with what every vgpuctl command shares.

Global options after the command's name, examples at the end of the help page, one-line help from the table,
and a group that imports a command's module only when that command is used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from vgpuctl.cli import table
from vgpuctl.cli.settings import Settings, global_options

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Example = tuple[str, str]
"""A command line that works, and what it does."""


class Command(click.Command):
    """One command. `examples` are shown on its help page and run by the tests."""

    def __init__(self, *arguments: Any, examples: tuple[Example, ...] = (), **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.examples = examples
        self.own_params = [p for p in self.params if isinstance(p, click.Option)]
        self.params += global_options(in_front=False)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words, none of which may silently win over another."""
        _refuse_two_values(args, ctx)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command here, or hand its words to other hosts."""
        settings = ctx.find_object(Settings)
        if settings is None or not settings.afar:
            if settings is not None and settings.only_afar:
                raise click.UsageError(f"{settings.only_afar[0]} goes with --hosts FILE or --host ssh://HOST", ctx)
            return super().invoke(ctx)
        from vgpuctl.cli import afar

        return afar.run(settings, ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options, then those of every command."""
        write_options(self.own_params, "Options", ctx, formatter)
        options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        shared: list[click.Option] = [p for p in options if p not in self.own_params]
        write_options(shared, "Options of every command", ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples as they would be typed."""
        write_examples(self.examples, formatter)


class LazyGroup(click.Group):
    """A group whose commands are known by table and imported when one of them is used."""

    def __init__(
        self,
        *arguments: Any,
        table: dict[str, str],
        load: Callable[[str], click.Command],
        examples: tuple[Example, ...] = (),
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.table = table
        self.load = load
        self.examples = examples

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options in front of the command, as the command does its own."""
        _refuse_two_values(args, ctx)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the table's order."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        return self.load(cmd_name) if cmd_name in self.table else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that was typed, or fail with what was probably meant."""
        if args[0] not in self.table and not ctx.resilient_parsing:
            from vgpuctl.cli import suggest

            raise suggest.unknown_command(args, self.table, ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with the table's help, importing none of them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.table.items()))

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

        items = [CompletionItem(name, help=text) for name, text in self.table.items() if name.startswith(incomplete)]
        return items + click.Command.shell_complete(self, ctx, incomplete)


def _refuse_two_values(words: list[str], context: click.Context) -> None:
    if sum(word.startswith("-") for word in words) > 1 and not context.resilient_parsing:
        from vgpuctl.cli import typed

        typed.refuse_two_values(words, context)


def command(
    name: str, *, examples: tuple[Example, ...], short_help: str | None = None
) -> Callable[[Callable[..., int]], click.Command]:
    """Make a command of a function that returns the exit status."""
    return click.command(
        name,
        cls=Command,
        examples=examples,
        short_help=short_help or table.COMMANDS[name][1],
        context_settings=CONTEXT_SETTINGS,
    )


def load_command(name: str) -> click.Command:
    """Import one command of the table."""
    module = importlib.import_module(f"vgpuctl.cli.commands.{table.COMMANDS[name][0]}")
    loaded = module.command
    if not isinstance(loaded, click.Command):
        raise TypeError(f"{module.__name__}.command is not a command")
    return loaded


CONTEXT_SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def write_options(params: list[click.Option], title: str, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Write a section of options, when there are any."""
    records = [record for p in params if (record := p.get_help_record(ctx)) is not None]
    if records:
        with formatter.section(title):
            formatter.write_dl(records)


def write_examples(examples: tuple[Example, ...], formatter: click.HelpFormatter) -> None:
    """Write examples, each with what it does."""
    if not examples:
        return
    with formatter.section("Examples"):
        for line, purpose in examples:
            formatter.write(f"{'':>{formatter.current_indent}}{line}\n")
            formatter.write(f"{'':>{formatter.current_indent + 4}}{purpose}\n")
