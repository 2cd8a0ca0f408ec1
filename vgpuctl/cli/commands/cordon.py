# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl cordon`."""

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

    def act(context: ChangeContext) -> Outcome:
        from vgpuctl.engine import cordon

        return cordon.cordon(context.host, gpu, cordoned=True, dry_run=dry_run, progress=context.progress)

    return run.change(settings, "cordon", act)
