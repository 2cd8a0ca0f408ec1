# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl plan-moves`."""

from __future__ import annotations

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.move_options import move_options
from vgpuctl.cli.settings import Settings


@make_command(
    "plan-moves",
    examples=(
        ("vgpuctl --host sim:a100-40 plan-moves --profile A100-20C:2", "the fewest moves that make room for two"),
        ("vgpuctl --host sim:mixed plan-moves --defragment --most 3", "what three moves at most would win"),
    ),
)
@move_options
@click.pass_obj
def command(settings: Settings, profiles: tuple[str, ...], defragment: bool, most: int | None) -> int:
    """Find the fewest VMs to stop, give another place and start again so that more vGPUs fit, and show them.

    Nothing is moved: move-vms does that. Only VMs are moved that vgpuctl made, without a GPU that was asked for by
    name, and that keep their places also while they are off; GPUs that are cordoned or reserved are left alone. The
    exit status is 4 when no moves make room.
    """
    return run.call(
        settings, "plan-moves", lambda host: host.plan_moves(*profiles, defragment=defragment, max_moves=most)
    )
