# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl delete-vgpu`."""

from __future__ import annotations

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


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
    return run.call(settings, "delete-vgpu", lambda host: host.delete_vgpu(name, dry_run=dry_run))
