# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl ensure-vgpu`."""

from __future__ import annotations

from typing import Any

import click

from vgpuctl.cli import complete, field_options, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings
from vgpuctl.config.arguments import VGPU_STATES


@make_command(
    "ensure-vgpu",
    examples=(
        ("vgpuctl --host sim:a100-40 ensure-vgpu spare --profile A100-4C", "make it, unless it is there"),
        ("vgpuctl --host sim:a100-40 ensure-vgpu spare --state absent --yes", "remove it, if it is there"),
    ),
)
@click.argument("name", shell_complete=complete.vgpus)
@click.option("--profile", metavar="PROFILE", shell_complete=complete.profiles, help="The vGPU's profile.")
@field_options.fields(*field_options.CONSTRAINT_FIELDS, "vgpu_params")
@click.option(
    "--state",
    type=click.Choice(VGPU_STATES),
    default="present",
    show_default=True,
    help="present: made if it is not there; absent: removed if it is.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def command(
    settings: Settings,
    /,
    name: str,
    state: str,
    dry_run: bool,
    **explicit: Any,
) -> int:
    """See to it that a vGPU without a VM is there, or is not. Run twice, the second time changes nothing.

    One that is there with another profile, on another GPU than was typed or with other parameters is refused (exit 3)
    and shown. create-vgpu and delete-vgpu say the rest.
    """
    return run.call(
        settings, "ensure-vgpu", lambda host: host.ensure_vgpu(name, state=state, dry_run=dry_run, **explicit)
    )
