# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl plan-moves`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings

if TYPE_CHECKING:
    from vgpuctl.cli.result import ChangeContext
    from vgpuctl.model.outcome import Outcome


@make_command(
    "plan-moves",
    examples=(
        ("vgpuctl --host sim:a100-40 plan-moves --profile A100-20C:2", "the fewest moves that make room for two"),
        ("vgpuctl --yes plan-moves --profile A100-20C:2", "stops, moves and starts those VMs"),
        ("vgpuctl --host sim:mixed plan-moves --defragment --most 3", "what three moves at most would win"),
    ),
)
@click.option(
    "--profile",
    "profiles",
    metavar="PROFILE[:N]",
    multiple=True,
    shell_complete=complete.profiles,
    help="Make room for a vGPU of this profile, with :N for so many of it; repeat it for several profiles.",
)
@click.option("--defragment", is_flag=True, help="Make room for more of the largest profiles instead.")
@click.option("--most", type=click.IntRange(min=0), metavar="N", help="No more than N moves. [any number]")
@click.pass_obj
def command(settings: Settings, profiles: tuple[str, ...], defragment: bool, most: int | None) -> int:
    """Find the fewest VMs to stop, give another place and start again so that more vGPUs fit, and show them.

    With --yes they are moved, one after the other, and the running ones are started again. A guest that does not shut
    down within --wait seconds stays where it is, and the rest is not moved; the same command then plans anew. A move is
    to another GPU or, with mixed sizes, to another placement. Only VMs are moved that vgpuctl made, without a GPU that
    was asked for by name, and that keep their places also while they are off; GPUs that are cordoned or reserved are
    left alone. The room that is made is not reserved for anybody. The exit status is 4 when no moves make it.
    """

    def act(context: ChangeContext) -> Outcome:
        from vgpuctl.cli import requests
        from vgpuctl.engine import moves
        from vgpuctl.errors import InvalidInput

        if bool(profiles) == defragment:
            raise InvalidInput("one of these is due: --profile PROFILE:N or --defragment", hint="plan-moves --help")
        if defragment:
            return moves.defragment(
                context.host,
                max_moves=most,
                yes=settings.yes,
                wait_seconds=context.wait_seconds,
                progress=context.progress,
            )
        requested = requests.parse_profile_counts(profiles)
        return moves.make_room(
            context.host,
            requested,
            max_moves=most,
            yes=settings.yes,
            wait_seconds=context.wait_seconds,
            progress=context.progress,
        )

    return run.change(settings, "plan-moves", act)
