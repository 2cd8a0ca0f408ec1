# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl set-profile`."""

from __future__ import annotations

from typing import Any

import click

from vgpuctl.cli import complete, field_options, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


@make_command(
    "set-profile",
    examples=(
        ("vgpuctl --host sim:a100-40 set-profile vdi-001 --profile A100-5C", "a VM that is off"),
        ("vgpuctl set-profile vdi-001 --profile A100-4C:2 --dry-run", "what would be done"),
    ),
)
@click.argument("name", shell_complete=complete.vms)
@field_options.fields("profile", *field_options.CONSTRAINT_FIELDS, required=("profile",))
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def command(settings: Settings, /, name: str, dry_run: bool, **explicit: Any) -> int:
    """Give a stopped VM other profiles in place of those it has.

    The vGPUs that it has already with one of these profiles stay, wherever they are: --gpu is for the new ones.
    Nothing else of the VM is changed; when the new ones have no room it stays as it was. Where they go
    is said as for create-vm; what is left out is as it was typed when the VM was made.
    """
    return run.call(settings, "set-profile", lambda host: host.set_profile(name, dry_run=dry_run, **explicit))
