# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl attach`."""

from __future__ import annotations

from typing import Any

import click

from vgpuctl.cli import complete, field_options, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


@make_command(
    "attach",
    examples=(
        ("vgpuctl --host sim:a100-40 attach vdi-001 --profile A100-4C", "at once when it runs, else at its next start"),
        ("vgpuctl attach old-desktop --profile A100-4C --gpu A100", "a VM that vgpuctl did not make, on this GPU"),
    ),
)
@click.argument("name", shell_complete=complete.vms)
@field_options.fields("profile", *field_options.CONSTRAINT_FIELDS, required=("profile",))
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def command(settings: Settings, /, name: str, dry_run: bool, **explicit: Any) -> int:
    """Give a VM that exists a vGPU: to its definition, and to the guest when it runs.

    A running VM needs a PCI port free for each vGPU (create-vm --hotplug-slots). A VM that vgpuctl did not make stays
    its maker's: delete-vm refuses it, detach takes the vGPU back. A VM whose memory is bound to NUMA nodes gets a GPU
    of these, and one of a spread group a GPU that no other VM of the group is on.
    """
    return run.call(settings, "attach", lambda host: host.attach(name, dry_run=dry_run, **explicit))
