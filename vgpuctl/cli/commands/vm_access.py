# SPDX-License-Identifier: Apache-2.0
"""The commands that use a running VM: a reboot, and waiting for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vgpuctl.cli import run, targets
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Seconds, Settings
from vgpuctl.cli.targets import Targets, change, select
from vgpuctl.config.arguments import DEFAULT_TIMEOUT_SECONDS, WAIT_TARGETS

if TYPE_CHECKING:
    from vgpuctl.library import GpuHost
    from vgpuctl.model.outcome import QueryResult
    from vgpuctl.model.results.vms import WaitedVmResult


@make_command(
    "wait",
    examples=(
        ("vgpuctl --host sim:a100-40 wait vdi-001 --for running", "returns at once if it runs"),
        ("vgpuctl wait vdi-001 vdi-002 --for off --timeout 600", "both are off, or the exit status is 75"),
        ("vgpuctl wait 'vdi-{001..030}' --for guest", "thirty desktops can be reached"),
        ("vgpuctl wait vdi-001 --for address && vgpuctl show-address vdi-001", "its address, as soon as there is one"),
    ),
)
@targets.vms(parallel=False)
@click.option("--for", "event", type=click.Choice(WAIT_TARGETS), required=True, help="What to wait for.")
@click.option(
    "--timeout",
    type=Seconds(),
    metavar="SECONDS",
    default=DEFAULT_TIMEOUT_SECONDS,
    help=f"How long to wait ({DEFAULT_TIMEOUT_SECONDS:g}).",
)
@click.pass_obj
def wait(settings: Settings, targets: Targets, event: str, timeout: float) -> int:
    """Wait until VMs run or are off, or their guests can be reached. With several VMs: until this holds for all.

    guest: the guest agent answers, or an address is known. address: an address is known, by the sources that
    show-address asks. A DHCP lease from before a reboot counts.

    If the timeout expires, the exit status is 75, and the error shows the state of each VM. A VM that is deleted, or
    that is off while its guest is waited for, ends the command at once. Nothing is changed.
    """

    def wait_for_all(host: GpuHost) -> QueryResult[tuple[WaitedVmResult, ...]]:
        name = targets.single
        names = [row.name for row in select(host, targets, managed_only=False).data] if name is None else [name]
        return host.wait(*names, event=event, timeout_seconds=timeout)

    return run.call(settings, "wait", wait_for_all)


@make_command(
    "reboot-vm",
    examples=(
        ("vgpuctl --host sim:a100-40 reboot-vm vdi-001", "asks the guest to reboot"),
        ("vgpuctl --host sim:a100-40 reboot-vm vdi-001 --force", "resets the VM; unsaved work is lost"),
        ("vgpuctl reboot-vm --label team=cad --parallel 4", "the CAD team's desktops, four at a time"),
    ),
)
@targets.vms()
@click.option("--force", is_flag=True, help="Reset the VM at once, without asking the guest.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def reboot_vm(settings: Settings, targets: Targets, force: bool, dry_run: bool) -> int:
    """Reboot running VMs and wait until they have, at most --wait seconds each. They keep their vGPUs.

    vgpuctl asks the guest agent, or presses the ACPI power button. libvirt reports when the VM is reset. If the guest
    agent answered before, vgpuctl waits for it again. If the guest does not reboot in time, the exit status is 75; it
    may still reboot later.
    """
    return change(
        settings,
        "reboot-vm",
        targets,
        lambda host, name: host.reboot_vm(name, force=force, dry_run=dry_run),
        dry_run=dry_run,
    )
