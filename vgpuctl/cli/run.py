# SPDX-License-Identifier: Apache-2.0
"""Runs one command: opens the host, does the work under the signal guard, prints the result once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vgpuctl.cli.failures import Failure
    from vgpuctl.cli.result import Result, Work
    from vgpuctl.cli.settings import Settings
    from vgpuctl.cli.signals import Guard
    from vgpuctl.model.outcome import Answer, Outcome
    from vgpuctl.model.wish import VmWish
    from vgpuctl.model.world import World


def answer(settings: Settings, kind: str, ask: Callable[[World], Answer]) -> int:
    """Run a command that only looks."""

    def work(guard: Guard) -> Result:
        from vgpuctl.cli import worlds
        from vgpuctl.cli.result import Result

        found = ask(worlds.open_world(settings))
        return Result(found.data, warnings=found.warnings)

    return perform(settings, kind, work)


def change(settings: Settings, kind: str, act: Callable[[Work], Outcome]) -> int:
    """Run a command that changes the host, or its dry run; the host's audit journal hears of the former."""
    from vgpuctl.cli import audit

    note = audit.Note(settings, kind)

    def work(guard: Guard) -> Result:
        from vgpuctl.cli import confirm, progress, worlds
        from vgpuctl.cli.result import Result, Work

        note.world = world = worlds.open_world_to_change(settings)
        note.progress = shown = progress.choose(settings, guard)
        try:
            outcome = act(Work(world, shown, confirm.Question(settings), settings.wait))
        finally:
            shown.close()
        note.outcome = outcome
        data = {
            **outcome.data,
            "steps": list(outcome.steps),
            "notes": list(outcome.notes),
            "dry_run": outcome.dry_run,
        }
        return Result(data, outcome.changed, outcome.warnings, outcome.notes)

    status = perform(settings, kind, work, note.failed)
    note.write(status)
    return status


def perform(
    settings: Settings,
    kind: str,
    work: Callable[[Guard], Result],
    told: Callable[[Failure], None] | None = None,
) -> int:
    """Do the work and print its result, or why there is none, which `told` hears too. Returns the exit status."""
    from vgpuctl.cli import failures, signals

    settings.kind = kind
    with signals.handled() as guard:
        try:
            result = work(guard)
            guard.close()
            return publish(settings, result)
        except BaseException as exc:  # noqa: BLE001
            if not guard.received:
                from vgpuctl.cli import consult

                consult.add_findings(exc, settings)
            guard.close()
            return failures.report(exc, settings, signal_status=guard.status, told=told)


def publish(settings: Settings, result: Result) -> int:
    """Print a result: one JSON document, or text with warnings and notes on stderr.

    Raises:
        OutputLost: it could not be written, and tells of a change.
    """
    from vgpuctl.cli import output, streams

    def write() -> None:
        if settings.json:
            from vgpuctl.cli import document

            found = document.success(settings.kind, result.data, changed=result.changed, warnings=result.warnings)
            streams.write_out(found)
        elif result.raw is not None:
            streams.write_out(streams.clean(result.raw) if streams.is_terminal(sys.stdout) else result.raw)
        else:
            _print_page(settings.kind, result.data)

    if not output.written(settings.kind, write, {output.HERE: result.data} if result.changed else {}):
        return 1
    if settings.json:
        return result.status
    for warning in result.warnings:
        streams.write_err(f"warning: {streams.clean(warning)}")
    for note in result.notes:
        streams.write_err(f"note: {streams.clean(note)}")
    return result.status


def _print_page(kind: str, data: object) -> None:
    from vgpuctl.cli import pages, streams, tables

    page = pages.page(kind, data)
    if page.blocks and streams.is_terminal(sys.stdout):
        tables.show(page.blocks, sys.stdout)
    elif page.blocks:
        streams.write_out(tables.plain(page.blocks))
    for line in page.asides:
        streams.write_err(streams.clean(line))


def print_xml(settings: Settings, wish: Callable[[World], VmWish]) -> int:
    """Print the domain XML that create-vm would define."""

    def work(guard: Guard) -> Result:
        from vgpuctl.cli import worlds
        from vgpuctl.cli.result import Result
        from vgpuctl.engine import create

        world = worlds.open_world_to_change(settings)
        xml = create.render_xml(world, wish(world))
        return Result({"xml": xml}, raw=xml if xml.endswith("\n") else f"{xml}\n")

    return perform(settings, "create-vm", work)
