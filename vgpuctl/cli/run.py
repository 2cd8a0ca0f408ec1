# SPDX-License-Identifier: Apache-2.0
"""Runs one command: opens the host, does the work under the signal guard, prints the result once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from vgpuctl.lazy_module import LazyModule
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.cli import (
        attach_doctor,
        confirm,
        document,
        failures,
        hosts,
        output,
        pages,
        progress,
        signals,
        streams,
        tables,
    )
    from vgpuctl.cli.settings import Settings
    from vgpuctl.cli.signals import SignalGuard
    from vgpuctl.library import GpuHost
    from vgpuctl.model.outcome import AnyResult

    Result = TypeVar("Result", bound=AnyResult)
else:
    attach_doctor = LazyModule("vgpuctl.cli.attach_doctor")
    confirm = LazyModule("vgpuctl.cli.confirm")
    document = LazyModule("vgpuctl.cli.document")
    failures = LazyModule("vgpuctl.cli.failures")
    hosts = LazyModule("vgpuctl.cli.hosts")
    output = LazyModule("vgpuctl.cli.output")
    pages = LazyModule("vgpuctl.cli.pages")
    progress = LazyModule("vgpuctl.cli.progress")
    signals = LazyModule("vgpuctl.cli.signals")
    streams = LazyModule("vgpuctl.cli.streams")
    tables = LazyModule("vgpuctl.cli.tables")


class CommandOutput(Value):
    """What is printed: `result` for programs and, rendered as a page, for people. `raw` is printed as it is.

    `status` is the exit status of a command that worked but reports a problem: its result is printed all the same.
    """

    result: AnyResult
    raw: str | None = None
    status: int = 0


def call(
    settings: Settings,
    kind: str,
    act: Callable[[GpuHost], Result],
    present: Callable[[Result], CommandOutput] | None = None,
) -> int:
    """Run a command that is one call of the library. `present` adds an exit status or a text to print as it is."""

    def work(guard: SignalGuard) -> CommandOutput:
        reporter = progress.choose_progress(settings)
        try:
            host = hosts.open_host(
                settings, progress=reporter, confirm=confirm.ConfirmationPrompt(settings), cancelled=guard.check
            )
            return (present or CommandOutput)(act(host))
        finally:
            reporter.close()

    return perform(settings, kind, work)


def perform(
    settings: Settings,
    kind: str,
    action: Callable[[SignalGuard], CommandOutput],
) -> int:
    """Run the action and print its result, or report why it failed. Returns the exit status."""
    settings.kind = kind
    with signals.handle_signals() as guard:
        try:
            command_output = action(guard)
            guard.ignore_signals()
            return print_result(settings, command_output)
        except BaseException as exc:  # noqa: BLE001
            if not guard.received:
                attach_doctor.add_findings(exc, settings)
            guard.ignore_signals()
            return failures.report(exc, settings, signal_status=guard.exit_status)


def print_result(settings: Settings, command_output: CommandOutput) -> int:
    """Print a result: one JSON document, or text with warnings and notes on stderr.

    Raises:
        OutputLost: it could not be written, and it reports a change.
    """
    result, raw = command_output.result, command_output.raw

    def write() -> None:
        if settings.json:
            streams.write_out(document.success_text(settings.kind, result))
        elif raw is not None:
            streams.write_out(streams.sanitize(raw) if streams.is_terminal(sys.stdout) else raw)
        else:
            print_page(settings.kind, result)

    if not output.write_result(settings.kind, write, {output.LOCAL: result} if result.changed else {}):
        return 1
    if settings.json:
        return command_output.status
    for warning in result.warnings:
        streams.write_err(f"warning: {streams.sanitize(warning)}")
    for note in result.notes:
        streams.write_err(f"note: {streams.sanitize(note)}")
    return command_output.status


def print_page(kind: str, result: AnyResult) -> None:
    """Print the page of a result, and its lines for stderr."""
    page = pages.page(kind, result)
    if page.blocks and streams.is_terminal(sys.stdout):
        tables.print_rich(page.blocks, sys.stdout)
    elif page.blocks:
        streams.write_out(tables.render_plain(page.blocks))
    for line in page.stderr_lines:
        streams.write_err(streams.sanitize(line))
