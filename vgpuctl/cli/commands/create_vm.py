# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl create-vm`: its options are the fields of a VM spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vgpuctl.cli import field_options, many, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.run import CommandOutput
from vgpuctl.cli.settings import Seconds, Settings
from vgpuctl.config.arguments import WAIT_EVENTS

if TYPE_CHECKING:
    from vgpuctl.model.outcome import QueryResult
    from vgpuctl.model.results.vms import XmlResult


@make_command(
    "create-vm",
    examples=(
        ("vgpuctl create-vm --profile A100-4C", "a running VM with that vGPU and an empty 40 GiB disk"),
        (
            "vgpuctl create-vm vdi-001 --profile A100-4C --image /var/lib/libvirt/images/debian.qcow2",
            "one that boots a clone of an image",
        ),
        (
            "vgpuctl --host sim:a100-40 create-vm 'vdi-{:03}' --count 5 --profile A100-4C",
            "vdi-001 to vdi-005, unless they are there",
        ),
        (
            "vgpuctl --host sim:a100-40 create-vm 'vdi-{:03}' --count 20 --profile A100-4C"
            " --reserve running --no-start",
            "twenty desktops, of which as many run at once as fit",
        ),
        ("vgpuctl --host sim:a100-40 create-vm vdi-001 --profile A100-4C:2 --dry-run", "what would be done"),
        (
            "vgpuctl --host sim:a100-40 create-vm vdi-001 --profile A100-4C"
            " --image /srv/images/ubuntu-24.04.qcow2 --wait-for guest",
            "one that can be reached when the command returns",
        ),
    ),
)
@click.argument("name", required=False)
@field_options.all_fields
@click.option("--no-start", is_flag=True, help="Make the VM and its vGPUs, and leave it off.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done, and where each value came from.")
@click.option("--print-xml", is_flag=True, help="Only print the domain XML that would be defined.")
@many.options
@click.option("--wait-for", type=click.Choice(WAIT_EVENTS), help="Return when the guest answers, or has an address.")
@click.option(
    "--wait-timeout",
    type=Seconds(),
    metavar="SECONDS",
    help="How long --wait-for waits (300).",
)
@click.pass_obj
def create_vm(
    settings: Settings,
    /,
    no_start: bool,
    dry_run: bool,
    print_xml: bool,
    count: int | None,
    parallel: int | None,
    wait_for: str | None,
    wait_timeout: float | None,
    name: str | None,
    **explicit: Any,
) -> int:
    """Make and start a VM with a vGPU, a plain virtual function or a whole GPU.

    Places the vGPU, makes its device, disk and domain, starts it and reads everything back; what fails is undone.
    Without --image, --disk and --cdrom the VM gets an empty 40 GiB disk and boots from the network. Without
    NAME it is vgpu-<8 digits of its uuid>. 'defaults:' in /etc/vgpuctl/host.yaml fill what is not typed.

    With --count N, NAME is a pattern such as 'vdi-{:03}', and N such VMs are to be there: those that are and do not
    differ are left alone, the others are made, all or none being given room. One that fails is undone by itself.

    With --reserve running the VM has its vGPU only while it runs, and more VMs can be defined than fit: with --no-start
    nothing is taken and no device is made. start-vm moves a VM whose place another one has.

    With --wait-for guest the command returns when the VM's guest agent answers or an address of it is known. When
    the time is over the exit status is 75, and the VM is kept and runs.
    """
    max_parallel = many.check_options(count, parallel, print_xml=print_xml, wait_for=wait_for)
    if count is not None:
        vm_count = count
        return run.call(
            settings,
            "create-vm",
            lambda host: host.create_vms(
                name, vm_count, start=not no_start, parallel=max_parallel, dry_run=dry_run, **explicit
            ),
        )
    if print_xml:
        return run.call(settings, "create-vm", lambda host: host.print_xml(name, **explicit), _as_text)
    return run.call(
        settings,
        "create-vm",
        lambda host: host.create_vm(
            name, start=not no_start, wait_for=wait_for, wait_timeout=wait_timeout, dry_run=dry_run, **explicit
        ),
    )


def _as_text(result: QueryResult[XmlResult]) -> CommandOutput:
    return CommandOutput(result, raw=f"{result.data.xml.rstrip()}\n")
