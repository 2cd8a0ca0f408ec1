# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl start-vm`."""

from __future__ import annotations

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


@make_command(
    "start-vm",
    examples=(("vgpuctl --host sim:a100-40 start-vm vdi-001", "also after a reboot took its vGPU away"),),
)
@click.argument("name", shell_complete=complete.vms)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def command(settings: Settings, name: str, dry_run: bool) -> int:
    """Start a VM. vGPUs that are missing, as after a reboot of the host, are made again first.

    A VM that was made with '--reserve running' gets its vGPUs wherever there is room, its last place if that is free.
    """
    return run.call(settings, "start-vm", lambda host: host.start_vm(name, dry_run=dry_run))
