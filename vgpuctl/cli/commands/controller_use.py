# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl controller show-use`: what people had of a fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.command_table import CONTROLLER_COMMANDS
from vgpuctl.cli.commands.controller import Where, at_controller, connect
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.shown import Column, Listing

if TYPE_CHECKING:
    from vgpuctl.cli.entry import SignalGuard
    from vgpuctl.model.results.people import UseResult

USE = Listing(
    "use",
    (
        Column("name", "NAME", lambda one: one.name or "(no group)"),
        Column("assigned_hours", "ASSIGNED H", lambda one: one.assigned_hours, numeric=True),
        Column("on_hours", "ON H", lambda one: one.on_hours, numeric=True),
        Column("logged_on_hours", "LOGGED ON H", lambda one: one.logged_on_hours, numeric=True),
        Column("gpu_gib_hours", "GPU GIB H", lambda one: one.gpu_gib_hours, numeric=True),
        Column("gpu_used_gib_hours", "USED", lambda one: one.gpu_used_gib_hours, numeric=True),
        Column("gpu_known_hours", "KNOWN H", lambda one: one.gpu_known_hours, numeric=True),
        Column("gpu_used_percent", "GPU %", lambda one: one.gpu_used_percent, numeric=True),
        Column("gpu_peak_mib", "PEAK MIB", lambda one: one.gpu_peak_mib, numeric=True),
        Column("idle", "IDLE NOW", lambda one: one.idle, numeric=True),
        Column("refused", "REFUSED", lambda one: tuple(f"{count} {code}" for code, count in one.refused.items())),
    ),
    lambda one: str(one.name),
)


@make_command(
    "show-use", table=CONTROLLER_COMMANDS, listing=USE,
    examples=(
        ("vgpuctl controller show-use", "by pool, the last 30 days"),
        ("vgpuctl controller show-use --by person --since 2026-11-01 --until 2026-12-01 -o csv", "of a month"),
    ),
)  # fmt: skip
@click.option(
    "--by", type=click.Choice(("pool", "person", "group")), default="pool", help="What each row is of. [pool]"
)
@click.option("--since", metavar="DAY", help="From this day on (UTC), like 2026-11-01. [30 days before --until]")
@click.option("--until", metavar="DAY", help="Up to the begin of this day, which does not count. [now]")
@click.option("--pool", metavar="POOL", help="Only of this pool.")
@at_controller
@click.pass_obj
def show_use(settings: Settings, by: str, since: str | None, until: str | None, pool: str | None, where: Where) -> int:
    """Show for how many hours people had desktops, how much GPU memory with them, and how much they used of it.

    Of the hours in which they had one: those in which it was on, and in which somebody was logged on, as far as guests
    say that. Of the GPU memory that they were given: what they used, and in how many hours that is known; of a whole
    GPU's cores: how much, on average. What no driver says stays unknown. Somebody in several groups, as they are now,
    counts in each. Requests that were refused are counted by error code.
    """

    def work(guard: SignalGuard) -> run.CommandOutput:
        from vgpuctl.model.outcome import QueryResult

        client = connect(settings, *where)
        rows: list[UseResult] = []
        while True:
            after = (rows[-1].name or "") if rows else None
            page = client.call("show-use", by=by, since=since, until=until, pool=pool, after=after).data
            rows += page
            if len(page) < 1000:
                return run.CommandOutput(QueryResult(tuple(rows)))

    return run.perform(settings, "controller-show-use", work)


COMMANDS: dict[str, click.Command] = {str(show_use.name): show_use}
