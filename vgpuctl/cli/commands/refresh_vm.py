# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl refresh-vm`."""

from __future__ import annotations

import click

from vgpuctl.cli import complete, field_options, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


@make_command(
    "refresh-vm",
    examples=(
        (
            "vgpuctl refresh-vm vdi-001 --image /var/lib/libvirt/images/debian-13.qcow2",
            "shows what will be lost and asks; the VM is off",
        ),
        (
            "vgpuctl --host sim:a100-40 --yes refresh-vm vdi-001 --image /srv/images/ubuntu-24.04.qcow2 --drain",
            "without asking; a running VM is shut down first and started again",
        ),
    ),
)
@click.argument("name", shell_complete=complete.vms)
@field_options.fields("image", required=("image",))
@click.option("--drain", is_flag=True, help="Shut a running VM down first, at most --wait seconds, and start it again.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def command(settings: Settings, name: str, image: str, drain: bool, dry_run: bool) -> int:
    """Rebuild a VM from a newer base image: its first disk becomes a new clone, and what was on it is lost.

    Name, uuid, MAC address, vGPUs, NVRAM, TPM and all other disks stay. So does the seed of a VM that was made with
    --cloud-init: the new disk does not know it yet, so cloud-init runs again. Only for a VM that was made with
    --image. A VM with snapshots or a saved state is refused, and so is one whose disk another disk is a clone of.
    """
    return run.call(settings, "refresh-vm", lambda host: host.refresh_vm(name, image, drain=drain, dry_run=dry_run))
