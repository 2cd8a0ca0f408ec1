# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl controller` about pools."""

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

if TYPE_CHECKING:
    from vgpuctl.cli.entry import SignalGuard
    from vgpuctl.model.results.fleet import PoolResult


POOLS = Listing(
    "pools",
    (
        Column("name", "NAME", lambda pool: pool.name),
        Column("kind", "KIND", lambda pool: pool.kind),
        Column("state", "STATE", lambda pool: pool.state, is_state=True),
        Column("image", "IMAGE", lambda pool: pool.image),
        Column("profiles", "PROFILE", lambda pool: pool.profiles),
        Column("ready", "READY", lambda pool: pool.ready, numeric=True),
        Column("assigned", "ASSIGNED", lambda pool: pool.assigned, numeric=True),
        Column("desktops", "DESKTOPS", lambda pool: pool.desktops, numeric=True),
        Column("maximum", "MAXIMUM", lambda pool: pool.maximum, numeric=True),
        Column("reason", "REASON", lambda pool: pool.reason, free_text=True, optional=True),
    ),
    lambda pool: str(pool.name),
)


def _pool_page(data: PoolResult) -> Page:
    page = pairs_page(
        data, "name", "kind", "state", "reason", "image", "profiles", "maximum", "spare", "desktops", "ready",
        "assigned", "counts",
    )  # fmt: skip
    return Page([*page.blocks, "", *_spec_lines(data)])


def _spec_lines(data: PoolResult) -> list[str]:
    from vgpuctl.cli import document

    return document.text({"spec": data.spec}, "yaml").splitlines()


def _changed_pool(data: Any) -> Page:
    pool: PoolResult = data.data
    return changed_page(data, f"pool {pool.name}: {pool.state if data.changed else 'unchanged'}")


@make_command(
    "ensure-pool", table=CONTROLLER_COMMANDS, page=_changed_pool,
    examples=(("vgpuctl controller ensure-pool office -f office.yaml", "forty desktops, five always ready"),),
)  # fmt: skip
@click.argument("name", metavar="POOL")
@click.option(
    "-f",
    "--file",
    "file",
    metavar="FILE",
    required=True,
    type=click.Path(dir_okay=False, allow_dash=True),
    help="The pool spec; - reads standard input.",
)
@changes_at_controller
@click.pass_obj
def ensure_pool(settings: Settings, name: str, file: str, where: Where) -> int:
    """Create a pool, or change it to match a spec file."""

    def work(guard: SignalGuard) -> run.CommandOutput:
        from vgpuctl.library.text_file import read_text

        text = read_text(file, "spec")
        return run.CommandOutput(connect(settings, *where).call("ensure-pool", name=name, text=text, file=file))

    return run.perform(settings, "controller-ensure-pool", work)


@make_command(
    "list-pools", table=CONTROLLER_COMMANDS, listing=POOLS,
    examples=(("vgpuctl controller list-pools", "how many desktops are ready, and how many have users"),),
)  # fmt: skip
@at_controller
@click.pass_obj
def list_pools(settings: Settings, where: Where) -> int:
    """List the pools."""
    return make_call(settings, where, "list-pools")


@make_command(
    "show-pool", table=CONTROLLER_COMMANDS, page=_pool_page,
    examples=(("vgpuctl controller show-pool office", "with its spec"),),
)  # fmt: skip
@click.argument("name", metavar="POOL")
@at_controller
@click.pass_obj
def show_pool(settings: Settings, name: str, where: Where) -> int:
    """Show one pool, what its desktops do, and its spec."""
    return make_call(settings, where, "show-pool", name=name)


@make_command(
    "pause-pool", table=CONTROLLER_COMMANDS, page=_changed_pool,
    examples=(("vgpuctl controller pause-pool office --reason 'new storage'", "users keep their desktops"),),
)  # fmt: skip
@click.argument("name", metavar="POOL")
@click.option("--reason", metavar="TEXT", help="Shown to who asks for a desktop.")
@changes_at_controller
@click.pass_obj
def pause_pool(settings: Settings, name: str, reason: str | None, where: Where) -> int:
    """Make, start and refresh nothing for a pool, until resume-pool."""
    return make_call(settings, where, "pause-pool", name=name, reason=reason)


@make_command(
    "resume-pool", table=CONTROLLER_COMMANDS, page=_changed_pool,
    examples=(("vgpuctl controller resume-pool office", "also after errors paused it"),),
)  # fmt: skip
@click.argument("name", metavar="POOL")
@changes_at_controller
@click.pass_obj
def resume_pool(settings: Settings, name: str, where: Where) -> int:
    """Let a paused pool go on; errors before that no longer count."""
    return make_call(settings, where, "resume-pool", name=name)


@make_command(
    "delete-pool", table=CONTROLLER_COMMANDS, page=_changed_pool,
    examples=(("vgpuctl controller delete-pool office --yes", "also desktops that users have"),),
)  # fmt: skip
@click.argument("name", metavar="POOL")
@changes_at_controller
@click.pass_obj
def delete_pool(settings: Settings, name: str, where: Where) -> int:
    """Delete a pool with all its desktops and their disks, also those that users have."""

    def work(guard: SignalGuard) -> run.CommandOutput:
        client = connect(settings, *where)
        pool: PoolResult = client.call("show-pool", name=name).data
        question = f"Delete pool {name} with {pool.desktops} desktops and their disks; {pool.assigned} have users?"
        confirm(settings, question, dry_run=where.dry_run)
        return run.CommandOutput(client.call("delete-pool", name=name))

    return run.perform(settings, "controller-delete-pool", work)


COMMANDS: dict[str, click.Command] = {
    str(one.name): one for one in (ensure_pool, list_pools, show_pool, pause_pool, resume_pool, delete_pool)
}
