# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl controller drain-host|uncordon-host|...`: work on hosts, and what is done where one is lost."""

from __future__ import annotations

import click

from vgpuctl.cli.command import make_command
from vgpuctl.cli.command_table import CONTROLLER_COMMANDS
from vgpuctl.cli.commands.controller import Where, changed_host, changes_at_controller, make_call
from vgpuctl.cli.global_options import Settings


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


COMMANDS: dict[str, click.Command] = {str(one.name): one for one in (drain_host, uncordon_host)}
