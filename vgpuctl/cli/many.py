# SPDX-License-Identifier: Apache-2.0
"""--count and --parallel: several VMs with one command, the same for create-vm and ensure-vm."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from vgpuctl.cli.result import Work
    from vgpuctl.cli.settings import Settings
    from vgpuctl.model.outcome import Outcome
    from vgpuctl.model.wish import VmWish
    from vgpuctl.model.world import World

MOST_VMS, MOST_PARALLEL, PARALLEL = 1000, 64, 4


def options(function: Callable[..., int]) -> Callable[..., int]:
    """Add both options to a command."""
    parallel = click.option(
        "--parallel",
        metavar="P",
        type=click.IntRange(1, MOST_PARALLEL),
        help=f"With --count: how many VMs are made at the same time. [{PARALLEL}]",
    )
    count = click.option(
        "--count",
        metavar="N",
        type=click.IntRange(1, MOST_VMS),
        help="See to it that N such VMs are there; the name is a pattern such as 'vdi-{:03}'.",
    )
    return count(parallel(function))


def checked(
    count: int | None,
    parallel: int | None,
    *,
    print_xml: bool = False,
    wait_for: str | None = None,
    state: str = "present",
) -> int:
    """Return how many VMs are made at the same time.

    Raises:
        click.UsageError: options that do not go together.
    """
    if count is None and parallel is not None:
        raise click.UsageError("--parallel is for several VMs: say how many with --count")
    if count is not None and print_xml:
        raise click.UsageError("--print-xml shows one VM: leave --count out and give one name")
    if count is not None and wait_for is not None:
        raise click.UsageError("--wait-for waits for one VM: leave --count out, or wait with: vgpuctl address NAME")
    if count is not None and state != "present":
        raise click.UsageError(f"--count makes what is not there yet; --state {state} is for one VM")
    return parallel or PARALLEL


def change(
    settings: Settings,
    kind: str,
    wanted: Callable[[World], tuple[VmWish, tuple[str, ...]]],
    *,
    start: bool,
    parallel: int,
    dry_run: bool,
) -> int:
    """See to it that the VMs of these names are there, and print what came of it."""
    from vgpuctl.cli import run

    def act(work: Work) -> Outcome:
        from vgpuctl.engine import many

        wish, names = wanted(work.world)
        return many.ensure_many(
            work.world,
            wish,
            names,
            start=start,
            parallel=parallel,
            dry_run=dry_run,
            wait_seconds=work.wait_seconds,
            progress=work.progress,
        )

    return run.change(settings, kind, act)
