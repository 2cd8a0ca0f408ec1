# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl detach`."""

from __future__ import annotations

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


@make_command(
    "detach",
    examples=(
        ("vgpuctl --host sim:a100-40 detach vdi-001", "all vGPUs that it has from vgpuctl"),
        ("vgpuctl detach vdi-001 --vgpu 0000:3b:00.5 --dry-run", "one of them, and only to see what would be done"),
    ),
)
@click.argument("name", shell_complete=complete.vms)
@click.option("--vgpu", multiple=True, metavar="CARRIER", help="This one, as show-vm names it (all); may be repeated.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def command(settings: Settings, name: str, vgpu: tuple[str, ...], dry_run: bool) -> int:
    """Take vGPUs from a VM and remove them.

    The guest of a running VM is asked, and lets its device go when nothing uses it. Has it not done so within
    --wait, the command ends with exit 75 and the vGPU stays the VM's; detach again, or reconcile, finishes it.
    """
    return run.call(settings, "detach", lambda host: host.detach(name, vgpu or None, dry_run=dry_run))
