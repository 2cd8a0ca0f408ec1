# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl delete-vm`."""

from __future__ import annotations

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


@make_command(
    "delete-vm",
    examples=(
        ("vgpuctl delete-vm vdi-001", "shows what will be gone and asks"),
        ("vgpuctl --host sim:a100-40 delete-vm vdi-001 --keep-disks --yes", "without asking; the disks stay"),
    ),
)
@click.argument("name", shell_complete=complete.vms)
@click.option("--keep-disks", is_flag=True, help="Leave the disks that were made for the VM; its cloud-init seed goes.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def command(settings: Settings, name: str, keep_disks: bool, dry_run: bool) -> int:
    """Remove a VM: its vGPUs, its domain, and the disks that vgpuctl made for it.

    NVRAM, TPM state, a saved state and snapshots go with it and are named before. A base image and disks that
    vgpuctl did not make are never removed; a VM that vgpuctl did not make is refused.
    """
    return run.call(settings, "delete-vm", lambda host: host.delete_vm(name, keep_disks=keep_disks, dry_run=dry_run))
