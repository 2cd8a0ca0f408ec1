# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl show-vm`."""

from __future__ import annotations

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


@make_command(
    "show-vm",
    examples=(("vgpuctl --host sim:a100-40 show-vm vdi-001", "its state, vGPUs and disks"),),
)
@click.argument("name", shell_complete=complete.vms)
@click.pass_obj
def command(settings: Settings, name: str) -> int:
    """Show one VM, by name or uuid: its state, its vGPUs with their devices, and its disks."""
    return run.call(settings, "show-vm", lambda host: host.show_vm(name))
