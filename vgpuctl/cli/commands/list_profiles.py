# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl list-profiles`."""

from __future__ import annotations

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


@make_command(
    "list-profiles",
    examples=(
        ("vgpuctl list-profiles", "profiles that can be made now"),
        ("vgpuctl --host sim:a100-40 list-profiles --all", "every profile, also those without room"),
        ("vgpuctl --host sim:a100-40 list-profiles --gpu 0000:3b:00.0", "those of one GPU"),
    ),
)
@click.option("--gpu", metavar="ADDRESS", shell_complete=complete.gpus, help="Only the profiles of this GPU.")
@click.option("--all", "everything", is_flag=True, help="Also list profiles that have no room now.")
@click.pass_obj
def command(settings: Settings, gpu: str | None, everything: bool) -> int:
    """List the vGPU profiles that the drivers of this host offer.

    FREE is how many more can be made now on the whole host together, WHERE says on which GPUs. A '?' is not
    known: only the driver's answer to an attempt tells.
    """
    return run.call(settings, "list-profiles", lambda host: host.list_profiles(gpu=gpu, everything=everything))
