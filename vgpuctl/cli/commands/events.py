# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl events`: what the host agent saw happen, and what happens now."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.shown import Column, Listing

if TYPE_CHECKING:
    from vgpuctl.cli.entry import SignalGuard
    from vgpuctl.model.event import Event

EVENTS = Listing(
    "events",
    (
        Column("time", "TIME", lambda event: event.time),
        Column("type", "TYPE", lambda event: str(event.type), is_state=True),
        Column("vm", "VM", lambda event: event.vm),
        Column("gpu", "GPU", lambda event: event.gpu),
        Column("vgpu", "VGPU", lambda event: event.vgpu, level="wide"),
        Column("count", "COUNT", lambda event: event.count, level="wide", numeric=True),
        Column("operation", "OPERATION", lambda event: event.operation, level="wide"),
        Column("id", "ID", lambda event: event.id, level="wide"),
        Column("reason", "REASON", lambda event: event.reason, free_text=True),
    ),
    lambda event: str(event.id),
)


@make_command(
    "events",
    listing=EVENTS,
    examples=(
        ("vgpuctl events", "what the agent of this host saw happen lately"),
        ("vgpuctl events --follow --json", "one line of JSON for each event, as it happens"),
    ),
)
@click.option("-f", "--follow", is_flag=True, help="Print events as they happen, until Ctrl-C.")
@click.option("--since", metavar="ID", help="Only those after the event with this id; --follow goes on after it.")
@click.pass_obj
def events(settings: Settings, follow: bool, since: str | None) -> int:
    """Show what happens on this host: VMs that start, stop and crash, GPUs that are lost, operations.

    The host agent keeps the last 1,000 events since it started; 'vgpuctl install-host --agent' enables it. An event of
    the type gap says that events between are lost. With --follow and --json each event is one line.
    """
    if follow:
        return _follow(settings, since)

    def work(guard: SignalGuard) -> run.CommandOutput:
        return run.CommandOutput(run.open_agent(settings, cancelled=guard.check).read_events(since))

    return run.perform(settings, "events", work)


def _follow(settings: Settings, since: str | None) -> int:
    from vgpuctl.cli import entry, failures, streams

    settings.kind = "events"
    with entry.handle_signals() as guard:
        try:
            for event in run.open_agent(settings, cancelled=guard.check).follow_events(since):
                streams.write_out(_line(settings, event))
        except BaseException as error:  # noqa: BLE001
            guard.ignore_signals()
            return failures.report(error, settings, signal_status=guard.exit_status)
    return 0


def _line(settings: Settings, event: Event) -> str:
    """Return one event as a line of JSON, or for people."""
    import json

    from vgpuctl.cli import streams
    from vgpuctl.model.documents import to_json_value

    if settings.json:
        return json.dumps(to_json_value(event)) + "\n"
    words = (event.time, str(event.type), event.vm, event.gpu, event.reason)
    count = (f"({event.count} steps)",) if event.count > 1 else ()
    return streams.sanitize("  ".join(word for word in (*words, *count) if word)) + "\n"
