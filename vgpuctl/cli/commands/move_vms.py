# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl move-vms`."""

from __future__ import annotations

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.move_options import move_options
from vgpuctl.cli.settings import Settings


@make_command(
    "move-vms",
    examples=(
        ("vgpuctl move-vms --profile A100-20C:2", "shows the fewest moves that make room for two, and asks"),
        ("vgpuctl --host sim:a100-40 move-vms --profile A100-20C:2 --yes", "without asking"),
        ("vgpuctl --host sim:mixed move-vms --defragment --most 3 --dry-run", "only shows them, as plan-moves does"),
    ),
)
@move_options
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def command(settings: Settings, profiles: tuple[str, ...], defragment: bool, most: int | None, dry_run: bool) -> int:
    """Stop VMs, give them another place and start them again so that more vGPUs fit: the fewest, one after the other.

    It shows the moves that plan-moves finds, and asks. Running VMs are started again. Where VMs are in each other's
    way, some give up their places first, and are off until their new ones are free. A guest that does not shut down
    within --wait seconds stays where it is, and the rest is not moved; the same command then plans again. The room
    that is made is not reserved for anybody. The exit status is 4 when no moves make room.
    """
    return run.call(
        settings,
        "move-vms",
        lambda host: host.move_vms(*profiles, defragment=defragment, max_moves=most, dry_run=dry_run),
    )
