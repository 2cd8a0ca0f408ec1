# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl reconcile`."""

from __future__ import annotations

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


@make_command(
    "reconcile",
    examples=(
        ("vgpuctl --host sim:a100-40 reconcile --dry-run", "what is unfinished, and what would be done"),
        ("vgpuctl --host sim:a100-40 reconcile", "do it"),
    ),
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def command(settings: Settings, dry_run: bool) -> int:
    """Finish or undo what a crash, a kill or a reboot interrupted.

    Half-made VMs are undone, half-removed ones removed, and devices that no VM and no process owns any more are
    removed when nothing uses them. A record or a claim that was lost is written again, and files that a killed
    command left half-written are removed. It goes on until nothing is left to do, at most five rounds. Foreign
    devices are left alone. vGPUs that are missing after a reboot are made by start-vm, those of host.yaml by
    restore-host.
    """
    return run.call(settings, "reconcile", lambda host: host.reconcile(dry_run=dry_run))
