# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl stop-vm`."""

from __future__ import annotations

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


@make_command(
    "stop-vm",
    examples=(
        ("vgpuctl --host sim:a100-40 stop-vm vdi-001", "asks the guest to power off"),
        ("vgpuctl --host sim:a100-40 stop-vm vdi-001 --force", "pulls the plug"),
    ),
)
@click.argument("name", shell_complete=complete.vms)
@click.option("--force", is_flag=True, help="Pull the plug instead of asking the guest.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def command(settings: Settings, name: str, force: bool, dry_run: bool) -> int:
    """Stop a VM and wait until it is off, at most --wait seconds. It keeps its vGPUs and disks.

    A VM that was made with '--reserve running' gives its vGPUs back; its disks stay.
    """
    return run.call(settings, "stop-vm", lambda host: host.stop_vm(name, force=force, dry_run=dry_run))
