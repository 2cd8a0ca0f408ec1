# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl delete-vgpu`."""

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
    "delete-vgpu",
    examples=(
        ("vgpuctl delete-vgpu spare", "shows what will be gone and asks"),
        ("vgpuctl delete-vgpu spare --yes", "without asking"),
    ),
)
@click.argument("name", shell_complete=complete.vgpus)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def command(settings: Settings, name: str, dry_run: bool) -> int:
    """Remove a vGPU that create-vgpu made: its device, and what host.yaml says of it.

    It is refused while any VM refers to the vGPU, running or not, and while a process holds it.
    """

    def act(context: ChangeContext) -> Outcome:
        from vgpuctl.engine import vgpus

        return vgpus.delete_vgpu(
            context.host,
            name,
            dry_run=dry_run,
            confirm=context.confirm,
            wait_seconds=context.wait_seconds,
            progress=context.progress,
        )

    return run.change(settings, "delete-vgpu", act)
