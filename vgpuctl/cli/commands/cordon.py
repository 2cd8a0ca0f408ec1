# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl cordon`."""

from __future__ import annotations

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


@make_command(
    "cordon",
    examples=(("vgpuctl --host sim:a100-40 cordon 0000:3b:00.0", "before maintenance: nothing new goes there"),),
)
@click.argument("gpu", shell_complete=complete.gpus)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def command(settings: Settings, gpu: str, dry_run: bool) -> int:
    """Keep new vGPUs and VMs from a GPU: before maintenance, or while it is suspect.

    What is on it stays, and its VMs can be stopped and started. GPU is an address, or a model that this host has once.
    It is written to /etc/vgpuctl/host.yaml and so outlives a reboot; the comments there stay.
    """
    return run.call(settings, "cordon", lambda host: host.cordon(gpu, dry_run=dry_run))
