# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl show-vm`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import command as make_command
from vgpuctl.cli.settings import Settings

if TYPE_CHECKING:
    from vgpuctl.model.outcome import Answer
    from vgpuctl.model.world import World


@make_command(
    "show-vm",
    examples=(("vgpuctl --host sim:a100-40 show-vm vdi-001", "its state, vGPUs and disks"),),
)
@click.argument("name", shell_complete=complete.vms)
@click.pass_obj
def command(settings: Settings, name: str) -> int:
    """Show one VM, by name or uuid: its state, its vGPUs with their devices, and its disks."""

    def ask(world: World) -> Answer:
        from vgpuctl.engine import queries

        return queries.show_vm(world, name)

    return run.answer(settings, "show-vm", ask)
