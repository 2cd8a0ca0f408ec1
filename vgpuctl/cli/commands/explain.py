# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings

if TYPE_CHECKING:
    from vgpuctl.model.outcome import QueryResult
    from vgpuctl.ports.host import Host


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

    def read(host: Host) -> QueryResult:
        from vgpuctl.engine import queries

        return queries.explain(host, profile)

    return run.query(settings, "explain", read)
