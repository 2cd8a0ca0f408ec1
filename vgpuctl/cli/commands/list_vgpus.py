# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl list-vgpus`."""

from __future__ import annotations

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


@make_command(
    "list-vgpus",
    examples=(
        ("vgpuctl --host sim:a100-40 list-vgpus", "every vGPU, and whose it is"),
        ("vgpuctl list-vgpus --unassigned --json", "those a VM can be given, with the element for each"),
    ),
)
@click.option("--unassigned", is_flag=True, help="Only those that host.yaml keeps and no VM has.")
@click.pass_obj
def command(settings: Settings, unassigned: bool) -> int:
    """List every vGPU: where it is, whether it is made, which VM has it, and whose it is.

    OWNER is host.yaml for one that create-vgpu made, managed for one that vgpuctl gave to a VM, unmanaged for any
    other, and leaked for what reconcile removes.
    """
    return run.call(settings, "list-vgpus", lambda host: host.list_vgpus(unassigned=unassigned))
