# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl uncordon`."""

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
    "uncordon",
    examples=(("vgpuctl --host sim:a100-40 uncordon 0000:3b:00.0", "new vGPUs may go there again"),),
)
@click.argument("gpu", shell_complete=complete.gpus)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def command(settings: Settings, gpu: str, dry_run: bool) -> int:
    """Let new vGPUs and VMs on a GPU again."""

    def act(context: ChangeContext) -> Outcome:
        from vgpuctl.engine import cordon

        return cordon.cordon(context.host, gpu, cordoned=False, dry_run=dry_run, progress=context.progress)

    return run.change(settings, "uncordon", act)
