# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl uncordon`."""

from __future__ import annotations

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


@make_command(
    "uncordon",
    examples=(("vgpuctl --host sim:a100-40 uncordon 0000:3b:00.0", "new vGPUs may go there again"),),
)
@click.argument("gpu", shell_complete=complete.gpus)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def command(settings: Settings, gpu: str, dry_run: bool) -> int:
    """Let new vGPUs and VMs on a GPU again."""
    return run.call(settings, "uncordon", lambda host: host.uncordon(gpu, dry_run=dry_run))
