# SPDX-License-Identifier: Apache-2.0
"""Live completion of profiles, GPU addresses, VM names and hosts, read from the host that --host names, and columns.

Errors are silent: the user only pressed Tab. Nothing is imported until a value is completed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from vgpuctl.library import GpuHost


ARGUMENTS = "vgpuctl.arguments"
"""The key of click's `Context.meta` under which a command keeps its arguments as they were typed."""


def profiles(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete profiles that this host has."""
    return _complete(
        ctx,
        incomplete,
        lambda host: [(row.profile, f"{_number_or_unknown(row.free)} free") for row in host.list_profiles().data],
    )


def gpus(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete GPU addresses."""
    return _complete(ctx, incomplete, lambda host: [(row.address, row.model) for row in host.list_gpus().data])


def gpus_and(*words: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return the completion of GPU addresses and, once a GPU or --all was given, of the words that follow them.

    click completes the words after several names as another name: it cannot know which is the last.
    """

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        is_possible = ctx.params.get("everything") or _has_argument(ctx)
        return [
            *_items([(word, "") for word in words] if is_possible else [], incomplete),
            *gpus(ctx, parameter, incomplete),
        ]

    return complete


def _has_argument(ctx: click.Context) -> bool:
    """Return whether a GPU was typed before the word to complete. click takes the last argument for the mode."""
    from vgpuctl.cli import command_line

    spellings = dict(command_line.list_spellings(ctx.command.get_params(ctx)))
    tokens = command_line.split_tokens(ctx.meta.get(ARGUMENTS, ()), spellings)
    return any(token.option is None and not token.args[0].startswith("-") for token in tokens)


def instances(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the GPU instance profiles of the given GPU."""
    return _complete(ctx, incomplete, lambda host: host.instance_profiles(str(ctx.params["gpu"])))


def vms(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete names of VMs; no GPU is queried."""
    return _complete(ctx, incomplete, lambda host: host.vm_names())


def vgpus(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete names of vGPUs without a VM."""
    return _complete(ctx, incomplete, lambda host: host.vgpu_names())


def pools(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete names of storage pools."""
    return _complete(ctx, incomplete, lambda host: host.pool_names())


def hosts(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete `local` and the built-in simulated hosts; after `sim:` with a slash, files."""
    choices = [("local", "this host")]
    with suppress(Exception):
        from vgpuctl import simulated

        choices += [(f"sim:{name}", text) for name, text in simulated.list_scenarios()]
    return _items(choices, incomplete)


def checks(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the doctor's checks."""
    from vgpuctl.library.targets import check_names

    return _items(check_names(), incomplete)


def columns(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the columns of the list, after each comma: `name,sta`, to sort `name,-mem`, to filter `state=`."""
    with suppress(Exception):
        from vgpuctl.cli import listings

        listing = listings.find_listing("-".join(ctx.command_path.split()[1:]))
        start, comma, last = incomplete.rpartition(",")
        prefix = f"{start}{comma}{'-' if last.startswith('-') else ''}"
        end = "=" if parameter.name == "global_filter" else ""
        keys = () if listing is None else listing.columns
        return _items([(f"{prefix}{column.key}{end}", column.header) for column in keys], incomplete)
    return []


def _complete(
    ctx: click.Context, incomplete: str, read: Callable[[GpuHost], Iterable[tuple[str, str]]]
) -> list[CompletionItem]:
    with suppress(Exception):
        from vgpuctl.cli import run
        from vgpuctl.cli.global_options import Settings

        settings = ctx.find_object(Settings)
        return [] if settings is None else _items(read(run.open_host(settings)), incomplete)
    return []


def _items(pairs: Iterable[tuple[str, str]], incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(value, help=text) for value, text in pairs if value.startswith(incomplete)]


def _number_or_unknown(value: object) -> str:
    return "?" if value is None else str(value)
