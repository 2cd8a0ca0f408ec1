# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl import-vm`: VMs of other hypervisors as VM specs."""

from __future__ import annotations

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.run import CommandOutput


@make_command(
    "import-vm",
    examples=(
        ("vgpuctl import-vm desk-1/desk-1.vmx > desk-1.yaml", "a VM of VMware; stderr has the commands for its disks"),
        ("vgpuctl import-vm desk-1.ova", "an appliance: nothing is extracted"),
        ("vgpuctl import-vm vm.txt vgpus.txt", "of XenServer: xe vm-param-list uuid=VM, xe vgpu-list params=all"),
        ("vgpuctl import-vm desk-1.vmx graphics.txt", "with host.yaml lines from esxcli graphics host get"),
        ("vgpuctl import-vm --pool fast 101.conf pci.cfg", "of Proxmox, with /etc/pve/mapping/pci.cfg"),
        ("virsh -c qemu+ssh://kvm-2/system dumpxml desk-1 | vgpuctl import-vm -", "a VM of another libvirt"),
    ),
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(allow_dash=True))
@click.option(
    "--pool",
    metavar="NAME",
    shell_complete=complete.pools,
    help="The storage pool in whose folder the disks go; without it /var/lib/libvirt/images.",
)
@click.pass_obj
def import_vm(settings: Settings, files: tuple[str, ...], pool: str | None) -> int:
    """Convert VMs of other hypervisors to VM specs and print them. It writes nothing and copies no disk.

    It reads VMware's VMX, OVF and OVA, Proxmox's qemu-server/NUMBER.conf and mapping/pci.cfg, libvirt's domain XML, and
    the output of XenServer's and XCP-ng's xe (vm-param-list, vgpu-list and vif-list params=all). vGPU profiles keep
    their names; a warning names the nearest profiles if no GPU here offers one. From what esxcli and xe gpu-group-list
    print about GPUs come lines for host.yaml. '-' reads standard input.

    stderr shows the commands that convert the disks, and everything that a spec cannot express, with file and line.
    Check the spec, convert the disks, then run vgpuctl ensure-vm -f SPEC.
    """
    return run.call(
        settings,
        "import-vm",
        lambda host: host.import_vm(*files, pool=pool),
        lambda result: CommandOutput(result, raw=result.data.text),
    )
