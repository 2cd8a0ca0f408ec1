# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl create-vm`: its options are the fields of a VM spec."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from vgpuctl.cli import field_options, many, requests, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Seconds, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vgpuctl.cli.result import ChangeContext
    from vgpuctl.model.outcome import Outcome


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
@click.option("--wait-for", type=click.Choice(("guest",)), help="Return when the guest answers or has an address.")
@click.option(
    "--wait-timeout",
    type=Seconds(),
    metavar="SECONDS",
    help="How long --wait-for waits (300).",
)
@click.pass_obj
def command(
    settings: Settings,
    /,
    no_start: bool,
    dry_run: bool,
    print_xml: bool,
    count: int | None,
    parallel: int | None,
    wait_for: str | None,
    wait_timeout: float | None,
    **explicit: object,
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
    start = not no_start
    if count is not None:
        build_request = partial(requests.many_from_options, explicit=explicit, count=count)
        return many.run_ensure_vms(
            settings, "create-vm", build_request, start=start, parallel=max_parallel, dry_run=dry_run
        )
    if print_xml:
        return run.print_xml(settings, lambda host: requests.from_options(host, explicit))
    if wait_for is None and wait_timeout is None:
        return run.change(
            settings, "create-vm", lambda context: _create(context, explicit, start=start, dry_run=dry_run)
        )

    def act(context: ChangeContext) -> Outcome:
        from vgpuctl.engine import wait

        wait.check_wait_options(wait_for=wait_for, timeout=wait_timeout, start=start)
        outcome = _create(context, explicit, start=start, dry_run=dry_run)
        return wait.wait_for_guest(context.host, outcome, wait_timeout or wait.DEFAULT_SECONDS, context.progress)

    return run.change(settings, "create-vm", act)


def _create(context: ChangeContext, explicit: Mapping[str, object], *, start: bool, dry_run: bool) -> Outcome:
    from vgpuctl.engine import create

    return create.create_vm(
        context.host,
        requests.from_options(context.host, explicit),
        start=start,
        dry_run=dry_run,
        wait_seconds=context.wait_seconds,
        progress=context.progress,
    )
