# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl explain`."""

from __future__ import annotations

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


@make_command(
    "explain",
    examples=(("vgpuctl --host sim:a100-40 explain A100-4C", "where it fits, where not, and why"),),
)
@click.argument("profile", shell_complete=complete.profiles)
@click.pass_obj
def command(settings: Settings, profile: str) -> int:
    """Say for every GPU how many more of PROFILE fit, what stands in the way, and who holds the room.

    The numbers come from the same rules that create-vm places by.
    """
    return run.call(settings, "explain", lambda host: host.explain(profile))
