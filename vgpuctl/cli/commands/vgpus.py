# SPDX-License-Identifier: Apache-2.0
"""The commands about vGPUs, those without a VM too."""

from __future__ import annotations

from typing import Any

import click

from vgpuctl.cli import complete, field_options, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings
from vgpuctl.config.arguments import VGPU_STATES


@make_command(
    "list-vgpus",
    examples=(
        ("vgpuctl --host sim:a100-40 list-vgpus", "every vGPU, and whose it is"),
        ("vgpuctl list-vgpus --unassigned --json", "those a VM can be given, with the element for each"),
    ),
)
@click.option("--unassigned", is_flag=True, help="Only those that host.yaml keeps and no VM has.")
@click.pass_obj
def list_vgpus(settings: Settings, unassigned: bool) -> int:
    """List every vGPU: where it is, whether it is made, which VM has it, and whose it is.

    OWNERSHIP is host.yaml for one that create-vgpu made, managed for one that vgpuctl gave to a VM, unmanaged for any
    other, and leaked for what reconcile-host removes.
    """
    return run.call(settings, "list-vgpus", lambda host: host.list_vgpus(unassigned=unassigned))


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
def create_vgpu(
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
def ensure_vgpu(
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


@make_command(
    "delete-vgpu",
    examples=(
        ("vgpuctl delete-vgpu spare", "shows what will be gone and asks"),
        ("vgpuctl delete-vgpu spare --yes", "without asking"),
    ),
)
@click.argument("name", shell_complete=complete.vgpus)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def delete_vgpu(settings: Settings, name: str, dry_run: bool) -> int:
    """Remove a vGPU that create-vgpu made: its device, and what host.yaml says of it.

    It is refused while any VM refers to the vGPU, running or not, and while a process holds it.
    """
    return run.call(settings, "delete-vgpu", lambda host: host.delete_vgpu(name, dry_run=dry_run))
