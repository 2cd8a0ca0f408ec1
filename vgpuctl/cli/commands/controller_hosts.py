# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl controller` about hosts: adding, labelling and removing them, and taking them out of service."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Any

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.command_table import CONTROLLER_COMMANDS
from vgpuctl.cli.commands.controller import (
    Where,
    at_controller,
    changed_page,
    changes_at_controller,
    confirm,
    connect,
    make_call,
    pairs_page,
)
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.shown import Column, Listing, Page
from vgpuctl.errors import InvalidInput

if TYPE_CHECKING:
    from vgpuctl.cli.entry import SignalGuard
    from vgpuctl.model.results.fleet import FleetHostResult


HOSTS = Listing(
    "hosts",
    (
        Column("name", "NAME", lambda host: host.name),
        Column("state", "STATE", lambda host: "held" if host.held else host.shown_state, is_state=True),
        Column("desktops", "DESKTOPS", lambda host: host.desktops, numeric=True),
        Column("seen", "SEEN", lambda host: host.seen),
        Column("labels", "LABELS", lambda host: tuple(f"{key}={value}" for key, value in host.labels.items())),
        Column("address", "ADDRESS", lambda host: host.address),
        Column("agent", "AGENT", lambda host: host.agent_version, level="wide"),
        Column("driver", "DRIVER", lambda host: host.driver, level="wide"),
        Column("holder", "CONTROLLER", lambda host: host.holder, level="wide"),
        Column("problem", "PROBLEM", lambda host: host.held or host.problem, free_text=True, optional=True),
    ),
    lambda host: str(host.name),
)


def _host_page(data: FleetHostResult) -> Page:
    return pairs_page(
        data, "name", "address", "state", "moves_live", "held", "problem", "labels", "desktops", "running",
        "machine_id", "host_key", "agent_version", "driver", "holder", "seen", "offers", "images",
    )  # fmt: skip


def changed_host(data: Any) -> Page:
    """Return the page of a host that was changed."""
    host: FleetHostResult = data.data
    return changed_page(data, f"host {host.name}: {'held: ' + host.held if host.held else host.shown_state}")


@make_command(
    "add-host", table=CONTROLLER_COMMANDS, page=changed_host,
    examples=(
        ("vgpuctl controller add-host gpu01 local", "the agent of this machine"),
        ("vgpuctl controller add-host gpu02 ssh://fleet@gpu02 --label site=berlin", "another one, whose key is known"),
    ),
)  # fmt: skip
@click.argument("name", metavar="NAME")
@click.argument("address", metavar="local|ssh://USER@HOST[:PORT]")
@click.option("--host-key", metavar="SHA256:...", help="The host's SSH key; without it, the one in known_hosts.")
@click.option("--label", "labels", metavar="KEY=VALUE", multiple=True, help="Pools choose hosts by labels; repeatable.")
@click.option(
    "--lost-controller", is_flag=True, help="It obeys a controller whose database is lost; see import-desktops."
)
@changes_at_controller
@click.pass_obj
def add_host(
    settings: Settings,
    name: str,
    address: str,
    host_key: str | None,
    labels: tuple[str, ...],
    lost_controller: bool,
    where: Where,
) -> int:
    """Add a host to the fleet. Its agent must answer; its account has fleet in the host's agent: accounts:."""
    path = address.partition(":")[2]
    if address.startswith("agent:") and not path.startswith("/"):
        raise InvalidInput(
            f"{address}: agent: needs an absolute path of a socket",
            hint=shlex.join(("vgpuctl", "controller", "add-host", name, f"agent:{os.path.abspath(path)}")),
        )
    return make_call(
        settings, where, "add-host", name=name, address=address, host_key=host_key, labels=_labels(labels),
        lost_controller=lost_controller or None,
    )  # fmt: skip


def _labels(texts: tuple[str, ...]) -> dict[str, str]:
    from vgpuctl.config import labels

    return labels.parse_selector(texts, "label") if texts else {}


@make_command(
    "list-hosts", table=CONTROLLER_COMMANDS, listing=HOSTS,
    examples=(("vgpuctl controller list-hosts -o wide", "with versions, and the controller that has each"),),
)  # fmt: skip
@at_controller
@click.pass_obj
def list_hosts(settings: Settings, where: Where) -> int:
    """List the hosts of the fleet."""
    return make_call(settings, where, "list-hosts")


@make_command(
    "show-host", table=CONTROLLER_COMMANDS, page=_host_page,
    examples=(("vgpuctl controller show-host gpu01", "its key, and how many more vGPUs of each profile it has"),),
)  # fmt: skip
@click.argument("name", metavar="HOST")
@at_controller
@click.pass_obj
def show_host(settings: Settings, name: str, where: Where) -> int:
    """Show one host."""
    return make_call(settings, where, "show-host", name=name)


def _host_command(name: str, help_text: str, example: str, question: str | None = None) -> click.Command:
    """Return a command that changes one host."""

    def function(settings: Settings, name_: str, where: Where) -> int:
        if question is None:
            return make_call(settings, where, name, name=name_)

        def work(guard: SignalGuard) -> run.CommandOutput:
            confirm(settings, question.format(name_), dry_run=where.dry_run)
            return run.CommandOutput(connect(settings, *where).call(name, name=name_))

        return run.perform(settings, f"controller-{name}", work)

    function.__doc__ = help_text
    with_options = click.argument("name_", metavar="HOST")(changes_at_controller(click.pass_obj(function)))
    decorate = make_command(
        name, table=CONTROLLER_COMMANDS, page=changed_host, examples=((f"vgpuctl controller {name} gpu01", example),)
    )
    return decorate(with_options)


cordon_host = _host_command("cordon-host", "Make no new desktops on a host; those there stay.", "before work on it")
remove_host = _host_command(
    "remove-host", "Remove a host without desktops from the fleet.", "after drain-host", "Remove host {}?"
)


@make_command(
    "accept-host", table=CONTROLLER_COMMANDS, page=changed_host,
    examples=(("vgpuctl controller accept-host gpu01", "after you have looked why it is held"),),
)  # fmt: skip
@click.argument("name", metavar="HOST")
@click.option("--host-key", metavar="SHA256:...", help="Its new SSH key, where that is why it is held.")
@at_controller
@click.pass_obj
def accept_host(settings: Settings, name: str, host_key: str | None, where: Where) -> int:
    """Let a held host go on as it is now: it is another machine, has another driver or key, or lost its fence."""

    def work(guard: SignalGuard) -> run.CommandOutput:
        confirm(settings, f"Host {name} is trusted as it is now. Accept it?", dry_run=where.dry_run)
        return run.CommandOutput(connect(settings, *where).call("accept-host", name=name, host_key=host_key))

    return run.perform(settings, "controller-accept-host", work)


@make_command(
    "label-host", table=CONTROLLER_COMMANDS, page=changed_host,
    examples=(("vgpuctl controller label-host gpu01 site=berlin rack=7", "these are all of its labels then"),),
)  # fmt: skip
@click.argument("name", metavar="HOST")
@click.argument("labels", nargs=-1, metavar="[KEY=VALUE]...")
@changes_at_controller
@click.pass_obj
def label_host(settings: Settings, name: str, labels: tuple[str, ...], where: Where) -> int:
    """Set all labels of a host; without any, it has none."""
    return make_call(settings, where, "label-host", name=name, labels=_labels(labels))


@make_command(
    "drain-host", table=CONTROLLER_COMMANDS, page=changed_host,
    examples=(
        ("vgpuctl controller drain-host gpu01", "desktops with a user stay until they are released"),
        ("vgpuctl controller drain-host gpu01 --live", "they move to other hosts while their users work"),
        ("vgpuctl controller drain-host gpu01 --maintenance --deadline 60", "all are off in an hour, for an upgrade"),
    ),
)  # fmt: skip
@click.argument("name", metavar="HOST")
@click.option("--live", is_flag=True, help="Move desktops with a user, and those of fixed pools, while they run.")
@click.option("--maintenance", is_flag=True, help="Stop its desktops, and delete none; uncordon-host starts them.")
@click.option("--force", is_flag=True, help="With --maintenance: also where users are logged on, now.")
@click.option("--deadline", metavar="MINUTES", type=click.IntRange(1, 10080), help="The same after so many minutes.")
@changes_at_controller
@click.pass_obj
def drain_host(
    settings: Settings, name: str, live: bool, maintenance: bool, force: bool, deadline: int | None, where: Where
) -> int:
    """Make no new desktops on a host, and delete those without a user there: they are made elsewhere.

    With --live desktops with a user, and all of fixed pools, leave too: they move to other hosts as they are, two at a
    time. list-desktops --host says which still do, and why one cannot.

    With --maintenance all desktops are stopped instead, and the host's agent starts none after a boot. One that has a
    user stops once nobody is logged on, as the helper in its guest says. show-host says how many still run.
    """
    return make_call(
        settings, where, "drain-host", name=name, live=live or None, maintenance=maintenance or None,
        force=force or None, deadline_minutes=deadline,
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


COMMANDS: dict[str, click.Command] = {
    str(one.name): one
    for one in (
        add_host, list_hosts, show_host, cordon_host, uncordon_host, drain_host, label_host, accept_host, remove_host,
    )
}  # fmt: skip
