# SPDX-License-Identifier: Apache-2.0
"""The options of apply, diff and assert, and what they ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from vgpuctl.cli import run

if TYPE_CHECKING:
    from vgpuctl.cli.result import Result
    from vgpuctl.cli.settings import Settings
    from vgpuctl.cli.signals import Guard
    from vgpuctl.engine.host_wish import Asked
    from vgpuctl.model.world import World

DIFFERS = 7
_OPTIONS = (
    click.option(
        "-f",
        "--file",
        "path",
        metavar="FILE|-",
        type=click.Path(dir_okay=False, allow_dash=True),
        help="A file in the place of /etc/vgpuctl/host.yaml; - reads it from standard input.",
    ),
    click.option(
        "--set",
        "sets",
        metavar="gpus[GPU].KEY=VALUE",
        multiple=True,
        help="Change a key first; GPU as host.yaml names it, VALUE as it is written there. Repeat it for several.",
    ),
    click.option(
        "--drain", is_flag=True, help="Shut running VMs down first, at most --wait seconds, and start them again."
    ),
)


def options(function: Callable[..., int]) -> Callable[..., int]:
    """Add the options."""
    for add in reversed(_OPTIONS):
        function = add(function)
    return function


def asked(world: World, path: str | None, sets: tuple[str, ...], undo: int | None = None) -> Asked:
    """Return what the options ask for. `undo`: how many versions of host.yaml back.

    Raises:
        InvalidInput, NotFound: the file or a change cannot be understood.
    """
    from vgpuctl.cli import wishes
    from vgpuctl.engine import host_wish

    shown = "standard input" if path == "-" else path or ""
    file = None if path is None else host_wish.File(wishes.text_of(path), shown)
    if undo is not None:
        file = host_wish.version_before(world, undo)
    return host_wish.ask(world, file, sets)


def compare(settings: Settings, kind: str, path: str | None, sets: tuple[str, ...], drain: bool, quiet: bool) -> int:
    """Run diff or assert: the result, and 7 when something differs."""

    def work(guard: Guard) -> Result:
        from vgpuctl.cli import worlds
        from vgpuctl.cli.result import Result
        from vgpuctl.engine import apply, host_plan

        world = worlds.open_world(settings)
        how = host_plan.How(drain, settings.wait)
        found = apply.diff_host(world, asked(world, path, sets), how)
        data: dict[str, Any] = {**found.data, "steps": list(found.steps), "notes": list(found.notes), "dry_run": True}
        status = DIFFERS if found.changed else 0
        if quiet:
            return Result(data, found.changed, found.warnings if settings.json else (), raw="", status=status)
        return Result(data, found.changed, found.warnings, found.notes, status=status)

    return run.perform(settings, kind, work)
