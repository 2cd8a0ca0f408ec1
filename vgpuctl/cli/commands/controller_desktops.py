# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl controller list-desktops|assign|open-desktop|...`: desktops, and who has them."""

from __future__ import annotations

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
from vgpuctl.model.numbers import count_text

if TYPE_CHECKING:
    from vgpuctl.cli.entry import SignalGuard
    from vgpuctl.model.results.fleet import DesktopResult, PoolMessageResult
    from vgpuctl.model.results.people import OpenDesktopResult

DESKTOPS = Listing(
    "desktops",
    (
        Column("name", "NAME", lambda one: one.name),
        Column("pool", "POOL", lambda one: one.pool),
        Column("phase", "PHASE", lambda one: one.phase, is_state=True),
        Column("user", "USER", lambda one: one.user),
        Column("host", "HOST", lambda one: one.host),
        Column("profile", "PROFILE", lambda one: one.profile),
        Column("address", "ADDRESS", lambda one: one.address),
        Column("image", "IMAGE", lambda one: one.image, level="wide"),
        Column("mac", "MAC", lambda one: one.mac, level="wide"),
        Column("lease", "LEASE UNTIL", lambda one: one.lease_until, level="wide"),
        Column("why", "WHY", lambda one: one.why, free_text=True, optional=True),
    ),
    lambda one: str(one.name),
)


def _desktop_page(data: DesktopResult) -> Page:
    return pairs_page(
        data, "name", "id", "pool", "phase", "why", "user", "host", "profile", "image", "mac", "address", "power",
        "assigned", "lease_until", "seen", "code", "error", "hint", "restart_error", "moving_to",
    )  # fmt: skip


def changed_desktop(data: Any) -> Page:
    """Return the page of a desktop that was changed."""
    desktop: DesktopResult = data.data
    who = "" if desktop.user is None else f", of {desktop.user}"
    where = "" if desktop.address is None else f", at {desktop.address}"
    return changed_page(data, f"desktop {desktop.name}: {desktop.phase}{who}{where}")


def _assigned_desktop(data: Any) -> Page:
    page = changed_desktop(data)
    if data.data.password is None:
        return page
    return Page([*page.blocks, f"one-time password: {data.data.password}"], ["the password is shown this once"])


@make_command(
    "list-desktops", table=CONTROLLER_COMMANDS, listing=DESKTOPS,
    examples=(
        ("vgpuctl controller list-desktops --pool office", "what each one does, and who has it"),
        ("vgpuctl controller list-desktops --user ada", "those of one user"),
    ),
)  # fmt: skip
@click.option("--pool", metavar="POOL", help="Only those of this pool.")
@click.option("--on", "host", metavar="HOST", help="Only those on this host.")
@click.option("--user", metavar="USER", help="Only those of this user.")
@at_controller
@click.pass_obj
def list_desktops(settings: Settings, pool: str | None, host: str | None, user: str | None, where: Where) -> int:
    """List desktops with what they do.

    waiting: for their turn. dirty: a user had it, and it is refreshed before the next one. unknown: the host does not
    answer. lost: somebody deleted a dedicated desktop's VM. failed: list-desktops -o json has error and hint.
    """

    def work(guard: SignalGuard) -> run.CommandOutput:
        from vgpuctl.model.outcome import QueryResult

        client = connect(settings, *where)
        rows: list[DesktopResult] = []
        while True:
            after = rows[-1].name if rows else None
            page = client.call("list-desktops", pool=pool, host=host, user=user, after=after).data
            rows += page
            if len(page) < 1000:
                return run.CommandOutput(QueryResult(tuple(rows)))

    return run.perform(settings, "controller-list-desktops", work)


@make_command(
    "show-desktop", table=CONTROLLER_COMMANDS, page=_desktop_page,
    examples=(("vgpuctl controller show-desktop office-001", "with what failed last"),),
)  # fmt: skip
@click.argument("name", metavar="DESKTOP")
@at_controller
@click.pass_obj
def show_desktop(settings: Settings, name: str, where: Where) -> int:
    """Show one desktop."""
    return make_call(settings, where, "show-desktop", name=name)


def _opening(data: OpenDesktopResult) -> Page:
    if data.file is None:
        return Page([str(data.link)])
    return Page(data.file.splitlines(), ["an RDP file: write it to one that ends in .rdp, and open that"])


@make_command(
    "open-desktop", table=CONTROLLER_COMMANDS, page=_opening,
    examples=(("vgpuctl controller open-desktop office-001 > office-001.rdp", "what its user gets on his page"),),
)  # fmt: skip
@click.argument("name", metavar="DESKTOP")
@at_controller
@click.pass_obj
def open_desktop(settings: Settings, name: str, where: Where) -> int:
    """Print the RDP file or the link that opens a desktop for its user; its pool says which.

    It is busy until its host has confirmed the user and seen the desktop's address.
    """
    return make_call(settings, where, "open-desktop", name=name)


@make_command(
    "assign", table=CONTROLLER_COMMANDS, page=_assigned_desktop,
    examples=(
        ("vgpuctl controller assign office ada", "the same again shows the address of ada's desktop"),
        ("vgpuctl controller assign lab ada --new-password", "where the pool has logon: local"),
    ),
)  # fmt: skip
@click.argument("pool", metavar="POOL")
@click.argument("user", metavar="USER")
@click.option("--new-password", is_flag=True, help="Also set and show a new one-time password of the user's account.")
@changes_at_controller
@click.pass_obj
def assign(settings: Settings, pool: str, user: str, new_password: bool, where: Where) -> int:
    """Give a user a desktop of a pool, his own if he has one; one that is off is started.

    Its address is shown once its host has confirmed the user: run the command again. In a pool with logon: local the
    user gets an account in the desktop, and a password that is shown this once, and is good for one log-on.
    """
    return make_call(settings, where, "assign", pool=pool, user=user, new_password=new_password or None)


def _message_page(data: Any) -> Page:
    result: PoolMessageResult = data.data
    verb = "would be shown" if data.dry_run else "was shown"
    lines = [f"the message {verb} in {count_text(result.reached, 'desktop')} of pool {result.pool}"]
    return Page([*lines, *(f"{name}: {reason}" for name, reason in result.failed.items())])


@make_command(
    "message-pool", table=CONTROLLER_COMMANDS, page=_message_page,
    examples=(
        ("vgpuctl controller message-pool office --text 'Save your work: new image at 18:00'", "before a change"),
    ),
)  # fmt: skip
@click.argument("name", metavar="POOL")
@click.option("--text", required=True, metavar="TEXT", help="One line, at most 1000 characters.")
@changes_at_controller
@click.pass_obj
def message_pool(settings: Settings, name: str, text: str, where: Where) -> int:
    """Show a text to everybody who is logged on in a pool's desktops, by the helper in their guests.

    A desktop without a helper, or where nobody is logged on any more, is listed with the reason.
    """
    return make_call(settings, where, "message-pool", name=name, text=text)


def _desktop_command(name: str, help_text: str, example: str, question: str | None = None) -> click.Command:
    """Return a command that changes one desktop."""

    def function(settings: Settings, name_: str, where: Where) -> int:
        if question is None:
            return make_call(settings, where, name, name=name_)

        def work(guard: SignalGuard) -> run.CommandOutput:
            client = connect(settings, *where)
            desktop: DesktopResult = client.call("show-desktop", name=name_).data
            confirm(
                settings,
                question.format(name_, "nobody" if desktop.user is None else desktop.user),
                dry_run=where.dry_run,
            )
            return run.CommandOutput(client.call(name, name=name_))

        return run.perform(settings, f"controller-{name}", work)

    function.__doc__ = help_text
    with_options = click.argument("name_", metavar="DESKTOP")(changes_at_controller(click.pass_obj(function)))
    decorate = make_command(
        name,
        table=CONTROLLER_COMMANDS,
        page=changed_desktop,
        examples=((f"vgpuctl controller {name} office-001", example),),
    )
    return decorate(with_options)


release = _desktop_command(
    "release",
    "Take a desktop away from its user, who may be at work on it; it is refreshed before anybody else gets it.",
    "its disk as the user left it is lost",
    "Release {}, which {} has? What is on its disk is lost.",
)
start_desktop = _desktop_command("start-desktop", "Have a desktop run.", "also after its user shut it down")
stop_desktop = _desktop_command(
    "stop-desktop", "Have a desktop be off until it is started or assigned.", "its user keeps it"
)


@make_command(
    "restart-desktop", table=CONTROLLER_COMMANDS, page=changed_desktop,
    examples=(
        ("vgpuctl controller restart-desktop office-001", "its user keeps it, and logs on again"),
        ("vgpuctl controller restart-desktop office-001 --now", "a reset, where the guest hangs"),
    ),
)  # fmt: skip
@click.argument("name", metavar="DESKTOP")
@click.option("--now", "at_once", is_flag=True, help="Reset it, without asking its guest; for its pool's operators.")
@changes_at_controller
@click.pass_obj
def restart_desktop(settings: Settings, name: str, at_once: bool, where: Where) -> int:
    """Restart a desktop that runs and is ready; its user keeps it. It does not count as a log-off.

    The guest is asked to reboot; one that ignores that for two minutes is reset. What is not saved there is lost.
    """
    return make_call(settings, where, "restart-desktop", name=name, at_once=at_once or None)


delete_desktop = _desktop_command(
    "delete-desktop",
    "Delete a desktop with its disks; its pool makes another one if it needs one.",
    "also one that a user has",
    "Delete {} with its disks, which {} has?",
)


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


COMMANDS: dict[str, click.Command] = {
    str(one.name): one
    for one in (
        list_desktops, message_pool, show_desktop, open_desktop, assign, release, start_desktop, stop_desktop,
        restart_desktop, delete_desktop, move_desktop,
    )
}  # fmt: skip
