# SPDX-License-Identifier: Apache-2.0
"""The commands that show, start, stop and delete VMs."""

from __future__ import annotations

import click

from vgpuctl.cli import complete, field_options, run, targets
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings
from vgpuctl.cli.targets import Targets, change, count_rows, query, running_text


@make_command(
    "list-vms",
    examples=(
        ("vgpuctl --host sim:a100-40 list-vms", "every VM with its vGPUs"),
        ("vgpuctl list-vms --filter 'state=running,name=vdi-*' -o name", "the names of the running desktops"),
        (
            "vgpuctl list-vms --filter 'image=/srv/images/ubuntu*' --columns name,image",
            "the VMs made from these images",
        ),
    ),
)
@click.pass_obj
def list_vms(settings: Settings) -> int:
    """List the VMs with their state, owner and vGPUs.

    OWNER is the person or team that uses the VM. OWNERSHIP shows whether vgpuctl manages it.
    """
    return run.call(settings, "list-vms", lambda host: host.list_vms())


@make_command(
    "show-vm",
    examples=(
        ("vgpuctl --host sim:a100-40 show-vm vdi-001", "its state, vGPUs and disks"),
        ("vgpuctl show-vm --label team=cad", "every VM with this label"),
    ),
)
@targets.vms(parallel=False)
@click.pass_obj
def show_vm(settings: Settings, targets: Targets) -> int:
    """Show VMs by name, uuid, range or glob: their state, owner, labels, vGPUs with their devices, and disks."""
    return query(settings, "show-vm", targets, lambda host, name: host.show_vm(name))


@make_command(
    "show-console",
    examples=(("vgpuctl show-console vdi-001", "where its screen is, and the command that opens its serial console"),),
)
@targets.vms(parallel=False)
@click.pass_obj
def console(settings: Settings, targets: Targets) -> int:
    """Show how to reach VMs: their VNC or SPICE screens and serial consoles.

    The address and the ports are those of the running VM. The page shows whether a password is set, never the password;
    null in JSON means that you may not see it. 'serial' is the command that opens the serial console in this terminal,
    virsh console NAME; Ctrl-] leaves it. Nothing is opened or changed.
    """
    return query(settings, "show-console", targets, lambda host, name: host.show_console(name))


@make_command(
    "show-address",
    examples=(("vgpuctl show-address vdi-001", "its IP addresses, and which source knows them"),),
)
@targets.vms(parallel=False)
@click.pass_obj
def address(settings: Settings, targets: Targets) -> int:
    """Show the IP addresses of running VMs, and which source knows them.

    vgpuctl asks the guest agent, then the DHCP leases of libvirt's networks, then the host's ARP table, and shows the
    first answer. Loopback and link-local addresses do not count. If no source knows an address, the exit status is 75.
    """
    return query(settings, "show-address", targets, lambda host, name: host.show_address(name))


@make_command(
    "list-images",
    examples=(
        ("vgpuctl --host sim:mixed list-images", "base images with their clones, and orphans"),
        ("vgpuctl list-images --disks", "VMs' disks too"),
        ("vgpuctl list-images --pool default", "one pool's volumes and what they are clones of"),
        ("vgpuctl --host sim:mixed list-images /srv/images/ubuntu-24.04.qcow2", "one image, also if nothing uses it"),
    ),
)
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path())
@click.option("--pool", metavar="NAME", shell_complete=complete.pools, help="Only the volumes of this storage pool.")
@click.option("--disks", is_flag=True, help="List VMs' disks and cloud-init seeds, too.")
@click.pass_obj
def list_images(settings: Settings, paths: tuple[str, ...], pool: str | None, disks: bool) -> int:
    """List the images in the storage pools, and those that VMs' disks are clones of; with --disks the disks, too.

    base: other disks are clones of it, and break when it is changed or removed. disk: a VM uses it. seed: cloud-init
    reads it in a VM. orphan: it is named like vgpuctl's disks (NAME-<8 digits of a uuid>), and no VM uses it. vgpuctl
    never removes an orphan: check it, then remove it with 'virsh vol-delete'. other: none of these.

    An image outside of the pools is listed only while it has clones. With PATH, exactly these files are listed, also
    those without clones; a file that does not exist is an error.
    """
    named = [field_options.absolute_path(path) or path for path in paths]
    return run.call(settings, "list-images", lambda host: host.list_images(*named, pool=pool, disks=disks))


@make_command(
    "start-vm",
    examples=(
        ("vgpuctl --host sim:a100-40 start-vm vdi-001", "also after a reboot of the host removed its vGPU"),
        ("vgpuctl start-vm 'vdi-{001..100}' --parallel 8", "a hundred VMs, eight at a time"),
    ),
)
@targets.vms()
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def start_vm(settings: Settings, targets: Targets, dry_run: bool) -> int:
    """Start VMs. vGPUs that are missing, as after a reboot of the host, are created first.

    A VM that was created with '--reserve running' gets its last place if that is free, and any other place if not.
    """
    return change(
        settings, "start-vm", targets, lambda host, name: host.start_vm(name, dry_run=dry_run), dry_run=dry_run
    )


@make_command(
    "stop-vm",
    examples=(
        ("vgpuctl --host sim:a100-40 stop-vm vdi-001", "asks the guest to power off"),
        ("vgpuctl --host sim:a100-40 stop-vm vdi-001 --force", "forces the VM off"),
        ("vgpuctl stop-vm 'vdi-*' --label team=cad", "the CAD team's desktops"),
    ),
)
@targets.vms()
@click.option("--force", is_flag=True, help="Force the VM off at once, without asking the guest.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def stop_vm(settings: Settings, targets: Targets, force: bool, dry_run: bool) -> int:
    """Stop VMs and wait until they are off, at most --wait seconds each. A VM that still runs then has failed.

    A VM keeps its disks, and its vGPUs unless it was created with '--reserve running'.
    """
    return change(
        settings,
        "stop-vm",
        targets,
        lambda host, name: host.stop_vm(name, force=force, dry_run=dry_run),
        dry_run=dry_run,
    )


@make_command(
    "delete-vm",
    examples=(
        ("vgpuctl delete-vm vdi-001", "shows what will be deleted, and asks"),
        ("vgpuctl --host sim:a100-40 delete-vm vdi-001 --keep-disks --yes", "does not ask, and keeps the disks"),
        ("vgpuctl delete-vm 'vdi-{090..099}' --dry-run", "what deleting ten VMs would do"),
    ),
)
@targets.vms()
@click.option("--keep-disks", is_flag=True, help="Keep the disks that vgpuctl created; only the cloud-init seed goes.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def delete_vm(settings: Settings, targets: Targets, keep_disks: bool, dry_run: bool) -> int:
    """Delete VMs: their vGPUs, their definitions, and the disks that vgpuctl created for them.

    NVRAM, TPM state, a saved state and snapshots are deleted too, and shown before. vgpuctl never deletes a base image,
    a disk that it did not create, or a VM that it did not create.
    """
    return change(
        settings,
        "delete-vm",
        targets,
        lambda host, name: host.delete_vm(name, keep_disks=keep_disks, dry_run=dry_run),
        question=lambda rows, _: f"Delete {count_rows(rows, 'VM')}?{running_text(rows)}",
        dry_run=dry_run,
    )
