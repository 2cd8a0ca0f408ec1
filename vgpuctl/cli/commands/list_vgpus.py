# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl list-vgpus`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import command as make_command
from vgpuctl.cli.settings import Settings

if TYPE_CHECKING:
    from vgpuctl.model.outcome import Answer
    from vgpuctl.model.world import World


@make_command(
    "list-vgpus",
    examples=(
        ("vgpuctl --host sim:a100-40 list-vgpus", "every vGPU without a VM, and who uses it"),
        ("vgpuctl list-vgpus --json", "with the element for each, for a program"),
    ),
)
@click.pass_obj
def command(settings: Settings) -> int:
    """List the vGPUs that host.yaml keeps without a VM: where each is, whether it is made, and which VM refers to it.

    The vGPUs of VMs are in list-vms; everything on a GPU is in show-gpu.
    """

    def ask(world: World) -> Answer:
        from vgpuctl.engine import vgpus

        return vgpus.list_vgpus(world)

    return run.answer(settings, "list-vgpus", ask)
