# SPDX-License-Identifier: Apache-2.0
"""The commands that show, start, stop and delete VMs."""

from __future__ import annotations

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


@make_command(
    "list-vms",
    examples=(("vgpuctl --host sim:a100-40 list-vms", "every VM with its vGPUs"),),
)
@click.pass_obj
def list_vms(settings: Settings) -> int:
    """List the VMs with their state and vGPUs: those that vgpuctl made, and unmanaged ones marked as such."""
    return run.call(settings, "list-vms", lambda host: host.list_vms())


@make_command(
    "show-vm",
    examples=(("vgpuctl --host sim:a100-40 show-vm vdi-001", "its state, vGPUs and disks"),),
)
@click.argument("name", shell_complete=complete.vms)
@click.pass_obj
def show_vm(settings: Settings, name: str) -> int:
    """Show one VM, by name or uuid: its state, its vGPUs with their devices, and its disks."""
    return run.call(settings, "show-vm", lambda host: host.show_vm(name))


@make_command(
    "show-console",
    examples=(("vgpuctl show-console vdi-001", "where its screen and its serial console are"),),
)
@click.argument("name", shell_complete=complete.vms)
@click.pass_obj
def console(settings: Settings, name: str) -> int:
    """Say how to reach a VM, by name or uuid: its VNC or SPICE screen and its serial console.

    Address and ports are the running VM's own. Whether a password is set is said, the password never is; null in JSON
    means that this user may not see it. Nothing is opened or changed.
    """
    return run.call(settings, "show-console", lambda host: host.show_console(name))


@make_command(
    "show-address",
    examples=(("vgpuctl show-address vdi-001", "its IP addresses, and who knows them"),),
)
@click.argument("name", shell_complete=complete.vms)
@click.pass_obj
def address(settings: Settings, name: str) -> int:
    """Print the IP addresses of a running VM, by name or uuid, and who knows them.

    Asked are the guest agent, then the DHCP leases of libvirt's networks, then the host's ARP table; the first that
    knows one answers. Loopback and link-local addresses do not count. While none is known the exit status is 75.
    """
    return run.call(settings, "show-address", lambda host: host.show_address(name))


@make_command(
    "list-images",
    examples=(
        ("vgpuctl --host sim:mixed list-images", "base images with their clones, disks, and orphans"),
        ("vgpuctl list-images --pool default", "one pool's volumes and what they are clones of"),
    ),
)
@click.option("--pool", metavar="NAME", shell_complete=complete.pools, help="Only this storage pool's volumes.")
@click.pass_obj
def list_images(settings: Settings, pool: str | None) -> int:
    """List the volumes of the storage pools and the images that disks of VMs are clones of.

    base: something is a clone of it, and breaks when it is changed or removed. disk: a VM refers to it. orphan:
    named as vgpuctl names disks (NAME-<8 digits of a uuid>.qcow2), and no VM refers to it; look before you remove it
    with 'virsh vol-delete': vgpuctl never does.
    """
    return run.call(settings, "list-images", lambda host: host.list_images(pool=pool))


@make_command(
    "start-vm",
    examples=(("vgpuctl --host sim:a100-40 start-vm vdi-001", "also after a reboot took its vGPU away"),),
)
@click.argument("name", shell_complete=complete.vms)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def start_vm(settings: Settings, name: str, dry_run: bool) -> int:
    """Start a VM. vGPUs that are missing, as after a reboot of the host, are made again first.

    A VM that was made with '--reserve running' gets its vGPUs wherever there is room, its last place if that is free.
    """
    return run.call(settings, "start-vm", lambda host: host.start_vm(name, dry_run=dry_run))


@make_command(
    "stop-vm",
    examples=(
        ("vgpuctl --host sim:a100-40 stop-vm vdi-001", "asks the guest to power off"),
        ("vgpuctl --host sim:a100-40 stop-vm vdi-001 --force", "forces the VM off"),
    ),
)
@click.argument("name", shell_complete=complete.vms)
@click.option("--force", is_flag=True, help="Force the VM off at once, without asking the guest.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def stop_vm(settings: Settings, name: str, force: bool, dry_run: bool) -> int:
    """Stop a VM and wait until it is off, at most --wait seconds; if it still runs then, the command fails.

    It keeps its disks, and its vGPUs unless it was made with '--reserve running'.
    """
    return run.call(settings, "stop-vm", lambda host: host.stop_vm(name, force=force, dry_run=dry_run))


@make_command(
    "delete-vm",
    examples=(
        ("vgpuctl delete-vm vdi-001", "shows what will be gone and asks"),
        ("vgpuctl --host sim:a100-40 delete-vm vdi-001 --keep-disks --yes", "without asking; the disks stay"),
    ),
)
@click.argument("name", shell_complete=complete.vms)
@click.option("--keep-disks", is_flag=True, help="Leave the disks that were made for the VM; its cloud-init seed goes.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def delete_vm(settings: Settings, name: str, keep_disks: bool, dry_run: bool) -> int:
    """Remove a VM: its vGPUs, its domain, and the disks that vgpuctl made for it.

    NVRAM, TPM state, a saved state and snapshots go with it and are named before. A base image and disks that
    vgpuctl did not make are never removed; a VM that vgpuctl did not make is refused.
    """
    return run.call(settings, "delete-vm", lambda host: host.delete_vm(name, keep_disks=keep_disks, dry_run=dry_run))
