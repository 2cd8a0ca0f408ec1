# SPDX-License-Identifier: Apache-2.0
"""The commands about what runs in guests: requests to helpers or QEMU guest agents, and the helper itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vgpuctl.cli import run, targets
from vgpuctl.cli.command import make_command
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.targets import Targets, change

if TYPE_CHECKING:
    from vgpuctl.cli.entry import SignalGuard

_DRY_RUN = click.option("--dry-run", is_flag=True, help="Only show what would be done.")


@make_command(
    "message-vm",
    shown_by="show-vm",
    words=("sent", "left alone"),
    examples=(
        ("vgpuctl message-vm desk-1 --text 'Please save your work'", "its guest shows it"),
        ("vgpuctl message-vm --label team=cad --text 'New image tonight'", "to everybody of a team"),
    ),
)
@targets.vms()
@click.option("--text", metavar="TEXT", required=True, help="One line, at most 1,000 characters.")
@_DRY_RUN
@click.pass_obj
def message_vm(settings: Settings, targets: Targets, text: str, dry_run: bool) -> int:
    """Show a message to everybody who is logged on in running VMs, in terminals and on desktops.

    The host agent asks the helper in the guest. Without one the QEMU guest agent shows it, on Linux only in terminals.
    print-helper prints the helper.
    """
    return change(
        run.through_agent(settings),
        "message-vm",
        targets,
        lambda host, name: host.message_vm(name, text, dry_run=dry_run),
        dry_run=dry_run,
    )


@make_command(
    "shutdown-in",
    shown_by="show-vm",
    words=("asked", "left alone"),
    examples=(
        ("vgpuctl shutdown-in desk-1 --minutes 10 --text 'Maintenance at 6'", "its users see the warning"),
        ("vgpuctl shutdown-in 'desk-*' --cancel", "they stay on"),
    ),
)
@targets.vms()
@click.option("--minutes", metavar="N", type=click.IntRange(0, 1440), help="When; 0: at once.")
@click.option("--text", metavar="TEXT", help="What the users see besides the time.")
@click.option("--cancel", is_flag=True, help="Cancel a shutdown that was announced.")
@_DRY_RUN
@click.pass_obj
def shutdown_in(
    settings: Settings, targets: Targets, minutes: int | None, text: str | None, cancel: bool, dry_run: bool
) -> int:
    """Have the guests of VMs shut down in some minutes, with a warning to their users.

    The host agent asks the helper in the guest; without one the QEMU guest agent does it. stop-vm stops VMs now.
    """
    if cancel == (minutes is not None) or (cancel and text is not None):
        raise click.UsageError("specify one of --minutes N (with or without --text) and --cancel")
    return change(
        run.through_agent(settings),
        "shutdown-in",
        targets,
        lambda host, name: host.shutdown_in(name, minutes, text=text, dry_run=dry_run),
        dry_run=dry_run,
    )


@make_command(
    "allow-logon",
    shown_by="show-vm",
    words=("asked", "left alone"),
    examples=(
        ("vgpuctl allow-logon desk-1 --user alice", "only alice, and the guest's administrators"),
        ("vgpuctl allow-logon desk-1 --nobody", "only the guest's administrators"),
        ("vgpuctl allow-logon desk-1 --everybody", "as before"),
    ),
)
@targets.vms()
@click.option("--user", metavar="USER", help="A user of the guest: alice, CORP\\alice. It replaces the one before.")
@click.option("--nobody", is_flag=True, help="Let only the guest's administrators log on.")
@click.option("--everybody", is_flag=True, help="Let everybody log on again.")
@_DRY_RUN
@click.pass_obj
def allow_logon(
    settings: Settings, targets: Targets, user: str | None, nobody: bool, everybody: bool, dry_run: bool
) -> int:
    """Let one user log on in running VMs, and besides only the guest's administrators, until that is changed.

    The helper in the guest does it, and the host agent asks it. With Linux, pam_access must be on in the guest; with
    Windows, it is about the group Remote Desktop Users.
    """
    if (user is not None) + nobody + everybody != 1:
        raise click.UsageError("specify one of --user USER, --nobody and --everybody")
    return change(
        run.through_agent(settings),
        "allow-logon",
        targets,
        lambda host, name: host.allow_logon(name, user, nobody=nobody, dry_run=dry_run),
        dry_run=dry_run,
    )


@make_command(
    "refresh-license",
    shown_by="show-vm",
    words=("written", "left alone"),
    examples=(
        ("vgpuctl refresh-license 'desk-*'", "after a new token was put into the license's folder"),
        ("vgpuctl refresh-license desk-1 --clear --dry-run", "what taking the token out of the seed would do"),
    ),
)
@targets.vms()
@click.option("--clear", is_flag=True, help="Take license and join token out of the seed; the guest keeps what it has.")
@_DRY_RUN
@click.pass_obj
def refresh_license(settings: Settings, targets: Targets, clear: bool, dry_run: bool) -> int:
    """Write the licenses of VMs into their seeds again, with the current tokens.

    Guests get them at their next boot. Running guests get their token at once with vgpuctl's helper, or with Linux and
    the QEMU guest agent.

    Of a VM without a license that joins a cluster the join token is written; others are left alone. The host agent
    takes both out of a seed again once the guest is licensed, so that no secret lies there longer than needed; --clear
    does the same.
    """
    return change(
        run.through_agent(settings),
        "refresh-license",
        targets,
        lambda host, name: host.refresh_license(name, clear=clear, dry_run=dry_run),
        dry_run=dry_run,
    )


@make_command(
    "print-helper",
    examples=(
        (
            "vgpuctl print-helper > vgpuctl-guest",
            "copy it into a guest, then: sudo python3 vgpuctl-guest install",
        ),
        ("vgpuctl print-helper --os windows > vgpuctl-guest.ps1", "for a golden image with Windows"),
    ),
)
@click.option(
    "--os",
    type=click.Choice(("linux", "windows")),
    default="linux",
    help="The guest's system; windows is experimental: not run there yet. [linux]",
)
@click.pass_obj
def print_helper(settings: Settings, os: str) -> int:
    """Print the helper for guests: one file, for golden images and for guests without a seed.

    It reports to the host agent who is logged on and which driver runs, and carries out message-vm, shutdown-in,
    allow-logon and refresh-license in the guest. create-vm --guest-helper brings it by the VM's seed.
    """
    from vgpuctl.library.guests import read_guest_helper
    from vgpuctl.model import outcome
    from vgpuctl.model.results import host as host_results

    def work(guard: SignalGuard) -> run.CommandOutput:
        text = read_guest_helper(os)
        return run.CommandOutput(outcome.QueryResult(host_results.GuestHelperFileResult(os, text)), raw=text)

    return run.perform(settings, "print-helper", work)
