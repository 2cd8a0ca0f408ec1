# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl create-vgpu`."""

from __future__ import annotations

from typing import Any

import click

from vgpuctl.cli import complete, field_options, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


@make_command(
    "create-vgpu",
    examples=(
        (
            "vgpuctl --host sim:a100-40 create-vgpu spare --profile A100-4C",
            "a vGPU; with '> spare.xml' its element is in a file for 'virsh attach-device VM spare.xml --persistent'",
        ),
        ("vgpuctl --host sim:a100-40 create-vgpu other --profile A100-4C --dry-run", "what would be done"),
    ),
)
@click.argument("name", required=False)
@click.option(
    "--profile", required=True, metavar="PROFILE", shell_complete=complete.profiles, help="The vGPU's profile."
)
@field_options.fields(*field_options.CONSTRAINT_FIELDS, "vgpu_params")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def command(
    settings: Settings,
    /,
    name: str | None,
    dry_run: bool,
    **explicit: Any,
) -> int:
    """Make a vGPU without a VM, and print the <hostdev> element with which a VM of virsh or virt-install gets it.

    It is kept in /etc/vgpuctl/host.yaml and made again after a boot; delete-vgpu takes it away. Only the element is
    printed to standard output. Without NAME it is vgpu-<8 random digits>.
    """
    return run.call(settings, "create-vgpu", lambda host: host.create_vgpu(name, dry_run=dry_run, **explicit))
