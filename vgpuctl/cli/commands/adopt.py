# SPDX-License-Identifier: Apache-2.0
"""The command that takes VMs of other programs over, and lets them go."""

from __future__ import annotations

import click

from vgpuctl.cli import targets
from vgpuctl.cli.command import make_command
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.targets import Targets, change


@make_command(
    "adopt",
    shown_by="show-vm",
    examples=(
        ("vgpuctl --host sim:mixed adopt old-desktop", "its vGPU is made again after a boot from now on"),
        ("vgpuctl adopt --all --dry-run", "which VMs would be adopted, and what keeps others from it"),
        ("vgpuctl adopt old-desktop --release", "let it go; it and its vGPU stay as they are"),
    ),
)
@targets.vms(everything="Every VM with a device to adopt; with --release, every adopted VM.")
@click.option("--release", is_flag=True, help="Let adopted VMs go: forget them, and change nothing else.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def adopt(settings: Settings, targets: Targets, release: bool, dry_run: bool) -> int:
    """Manage VMs that another program made with a vGPU, a VF of a GPU or a whole GPU. Nothing restarts.

    vgpuctl writes its record into the VM's metadata and claims the devices. Nothing else of the VM changes, and an mdev
    keeps its UUID. From now on start-vm, restore-host and libvirt's hook make the vGPU again after a boot, no other VM
    gets its place, and detach-vgpu removes it. delete-vm still refuses the VM.

    Refused are devices that another VM names or has, that do not exist now, or that mdevctl makes at each boot: the
    error shows the command that helps. 'list-vms' shows which VMs could be adopted.
    """
    return change(
        settings,
        "adopt",
        targets,
        lambda host, name: host.adopt(name, release=release, dry_run=dry_run),
        dry_run=dry_run,
        managed_only=False,
        may_skip_all=True,
    )
