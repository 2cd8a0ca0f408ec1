# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl controller demo`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.command_table import CONTROLLER_COMMANDS
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.shown import Page

if TYPE_CHECKING:
    from vgpuctl.cli.entry import SignalGuard
    from vgpuctl.model.results.fleet import DemoEventResult


@make_command(
    "demo",
    table=CONTROLLER_COMMANDS,
    page=lambda data: Page([]),
    examples=(
        ("vgpuctl controller demo --once", "an hour of a fleet, told in some seconds"),
        ("vgpuctl controller demo", "a controller and four hosts to try commands with, until Ctrl-C"),
    ),
)
@click.option("--once", is_flag=True, help="Only tell what happens in an hour, and end.")
@click.pass_obj
def demo(settings: Settings, once: bool) -> int:
    """Run the real controller with the real agents of four simulated hosts, without root and without GPUs.

    With --once users come and go, a new image is rolled out and a host dies; time goes on faster while nothing is to
    be done. Without it time is real, and the web page and commands to try are printed. All of it is in a temporary
    directory, which is removed at the end.
    """

    def work(guard: SignalGuard) -> run.CommandOutput:
        from vgpuctl.cli import streams
        from vgpuctl.controller.demo import fleet, story
        from vgpuctl.model.outcome import QueryResult
        from vgpuctl.model.results.fleet import DemoResult

        events: list[DemoEventResult] = []

        def tell(event: DemoEventResult) -> None:
            guard.check()
            events.append(event)
            if not settings.json:
                streams.write_out(f"{event.time}  {event.text}\n")

        if once:
            story.tell_story(tell)
        else:
            fleet.run_live(streams.write_err if settings.json else streams.write_out)
        return run.CommandOutput(QueryResult(DemoResult(tuple(events))))

    return run.perform(settings, "controller-demo", work)


COMMANDS: dict[str, click.Command] = {"demo": demo}
