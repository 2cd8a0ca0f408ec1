# SPDX-License-Identifier: Apache-2.0
"""The commands that change a VM that exists."""

from __future__ import annotations

from typing import Any

import click

from vgpuctl.cli import complete, field_options, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


@make_command(
    "attach-vgpu",
    examples=(
        (
            "vgpuctl --host sim:a100-40 attach-vgpu vdi-001 --profile A100-4C",
            "at once when it runs, else at its next start",
        ),
        ("vgpuctl attach-vgpu old-desktop --profile A100-4C --gpu A100", "a VM that vgpuctl did not make, on this GPU"),
    ),
)
@click.argument("name", shell_complete=complete.vms)
@field_options.fields("profile", *field_options.CONSTRAINT_FIELDS, required=("profile",))
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def attach(settings: Settings, /, name: str, dry_run: bool, **explicit: Any) -> int:
    """Give a VM that exists a vGPU: to its definition, and to the guest when it runs.

    A running VM needs a PCI port free for each vGPU (create-vm --hotplug-slots). A VM that vgpuctl did not make stays
    its maker's: delete-vm refuses it, detach takes the vGPU back. A VM whose memory is bound to NUMA nodes gets a GPU
    of these, and one of a spread group a GPU that no other VM of the group is on.
    """
    return run.call(settings, "attach-vgpu", lambda host: host.attach_vgpu(name, dry_run=dry_run, **explicit))


@make_command(
    "detach-vgpu",
    examples=(
        ("vgpuctl --host sim:a100-40 detach-vgpu vdi-001", "all vGPUs that it has from vgpuctl"),
        (
            "vgpuctl detach-vgpu vdi-001 --vgpu 0000:3b:00.5 --dry-run",
            "one of them, and only to see what would be done",
        ),
    ),
)
@click.argument("name", shell_complete=complete.vms)
@click.option("--vgpu", multiple=True, metavar="CARRIER", help="This one, as show-vm names it (all); may be repeated.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def detach(settings: Settings, name: str, vgpu: tuple[str, ...], dry_run: bool) -> int:
    """Take vGPUs from a VM and remove them.

    The guest of a running VM is asked, and lets its device go when nothing uses it. Has it not done so within
    --wait, the command ends with exit 75 and the vGPU stays the VM's; detach again, or reconcile, finishes it.
    """
    return run.call(settings, "detach-vgpu", lambda host: host.detach_vgpu(name, vgpu or None, dry_run=dry_run))


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
def set_profile(settings: Settings, /, name: str, dry_run: bool, **explicit: Any) -> int:
    """Give a stopped VM other profiles in place of those it has.

    The vGPUs that it has already with one of these profiles stay, wherever they are: --gpu is for the new ones.
    Nothing else of the VM is changed; when the new ones have no room it stays as it was. Where they go
    is said as for create-vm; what is left out is as it was typed when the VM was made.
    """
    return run.call(settings, "set-profile", lambda host: host.set_profile(name, dry_run=dry_run, **explicit))


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
def refresh_vm(settings: Settings, name: str, image: str, drain: bool, dry_run: bool) -> int:
    """Rebuild a VM from a newer base image: its first disk becomes a new clone, and what was on it is lost.

    Name, uuid, MAC address, vGPUs, NVRAM, TPM and all other disks stay. So does the seed of a VM that was made with
    --cloud-init: the new disk does not know it yet, so cloud-init runs again. Only for a VM that was made with
    --image. A VM with snapshots or a saved state is refused, and so is one whose disk another disk is a clone of.
    """
    return run.call(settings, "refresh-vm", lambda host: host.refresh_vm(name, image, drain=drain, dry_run=dry_run))


@make_command(
    "resize-disk",
    examples=(
        ("vgpuctl --host sim:a100-40 resize-disk vdi-001 200GiB", "its only disk, also while it runs"),
        (
            "vgpuctl resize-disk vdi-001 500GiB --disk vdb --dry-run",
            "one of several, and only to see what would be done",
        ),
    ),
)
@click.argument("name", shell_complete=complete.vms)
@click.argument("size", metavar="SIZE")
@click.option("--disk", metavar="DISK", help="The guest's name of the disk (vda), or its path (the only one).")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def resize_disk(settings: Settings, name: str, size: str, disk: str | None, dry_run: bool) -> int:
    """Grow a disk of a VM to SIZE (60GiB, 2TiB; a bare number is GiB), while the VM runs or is off.

    Only disks that vgpuctl made; it never shrinks one. The guest must grow its partition and file system itself:
    cloud-init does that at the next boot.
    """
    return run.call(settings, "resize-disk", lambda host: host.resize_disk(name, size, disk=disk, dry_run=dry_run))
