# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl controller drain-host|uncordon-host|...`: work on hosts, and what is done where one is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.command_table import CONTROLLER_COMMANDS
from vgpuctl.cli.commands.controller import (
    Where,
    changed_host,
    changes_at_controller,
    confirm,
    connect,
    make_call,
)
from vgpuctl.cli.commands.controller_desktops import changed_desktop
from vgpuctl.cli.global_options import Settings

if TYPE_CHECKING:
    from vgpuctl.cli.entry import SignalGuard


@make_command(
    "drain-host", table=CONTROLLER_COMMANDS, page=changed_host,
    examples=(
        ("vgpuctl controller drain-host gpu01", "desktops with a user stay until they are released"),
        ("vgpuctl controller drain-host gpu01 --maintenance --deadline 60", "all are off in an hour, for an upgrade"),
    ),
)  # fmt: skip
@click.argument("name", metavar="HOST")
@click.option("--maintenance", is_flag=True, help="Stop its desktops, and delete none; uncordon-host starts them.")
@click.option("--force", is_flag=True, help="With --maintenance: also where users are logged on, now.")
@click.option("--deadline", metavar="MINUTES", type=click.IntRange(1, 10080), help="The same after so many minutes.")
@changes_at_controller
@click.pass_obj
def drain_host(
    settings: Settings, name: str, maintenance: bool, force: bool, deadline: int | None, where: Where
) -> int:
    """Make no new desktops on a host, and delete those without a user there: they are made elsewhere.

    With --maintenance all desktops are stopped instead, and the host's agent starts none after a boot. One that has a
    user stops once nobody is logged on, as the helper in its guest says. show-host says how many still run.
    """
    return make_call(
        settings, where, "drain-host", name=name, maintenance=maintenance or None, force=force or None,
        deadline_minutes=deadline,
    )  # fmt: skip


@make_command(
    "uncordon-host", table=CONTROLLER_COMMANDS, page=changed_host,
    examples=(("vgpuctl controller uncordon-host gpu01", "after cordon-host, drain-host, or maintenance"),),
)  # fmt: skip
@click.argument("name", metavar="HOST")
@click.option("--unchecked", is_flag=True, help="You know that the guests' drivers work with the host's.")
@changes_at_controller
@click.pass_obj
def uncordon_host(settings: Settings, name: str, unchecked: bool, where: Where) -> int:
    """Make desktops on a host again. After maintenance its GPU driver is checked against the guests' drivers first."""
    return make_call(settings, where, "uncordon-host", name=name, unchecked=unchecked or None)


@make_command(
    "move-desktop", table=CONTROLLER_COMMANDS, page=changed_desktop,
    examples=(
        (
            "vgpuctl controller move-desktop office-001 --fenced 'power off at its BMC, seen at 14:05' --yes",
            "its host is lost, and its disks are on shared storage",
        ),
    ),
)  # fmt: skip
@click.argument("name", metavar="DESKTOP")
@click.option("--fenced", metavar="EVIDENCE", required=True, help="How you know that the lost host cannot write.")
@changes_at_controller
@click.pass_obj
def move_desktop(settings: Settings, name: str, fenced: str, where: Where) -> int:
    """Make a desktop of a host that does not answer on another host, with the files of its disks.

    For dedicated desktops that keep what is on their disks, and for fixed pools. The files must be on storage that the
    other host has under the same paths. Two hosts that write to them destroy them: cut the lost one off first, and say
    how you know. Where it comes back, its copy is stopped. TPM and NVRAM are not moved.
    """

    def work(guard: SignalGuard) -> run.CommandOutput:
        client = connect(settings, *where)
        shown = client.call("show-desktop", name=name).data
        text = f"Make {name} on another host? If {shown.host} still runs it, its disks are destroyed."
        confirm(settings, text, (f"fenced: {fenced}",), dry_run=where.dry_run)
        return run.CommandOutput(client.call("move-desktop", name=name, fenced=fenced))

    return run.perform(settings, "controller-move-desktop", work)


COMMANDS: dict[str, click.Command] = {str(one.name): one for one in (drain_host, uncordon_host, move_desktop)}
