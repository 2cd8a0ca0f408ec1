# SPDX-License-Identifier: Apache-2.0
"""Runs one command: opens the host, does the work under the signal guard, prints the result once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vgpuctl.cli.failures import Failure
    from vgpuctl.cli.result import ChangeContext, CommandOutput
    from vgpuctl.cli.settings import Settings
    from vgpuctl.cli.signals import SignalGuard
    from vgpuctl.model.outcome import Outcome, QueryResult
    from vgpuctl.model.request import VmRequest
    from vgpuctl.ports.host import Host


def query(settings: Settings, kind: str, read: Callable[[Host], QueryResult]) -> int:
    """Run a command that only reads."""

    def work(guard: SignalGuard) -> CommandOutput:
        from vgpuctl.cli import hosts
        from vgpuctl.cli.result import CommandOutput

        result = read(hosts.open_host(settings))
        return CommandOutput(result.data, warnings=result.warnings)

    return perform(settings, kind, work)


def change(settings: Settings, kind: str, action: Callable[[ChangeContext], Outcome]) -> int:
    """Run a command that changes the host, or its dry run; only a change is written to the host's audit journal."""
    from vgpuctl.cli import audit

    command_audit = audit.CommandAudit(settings, kind)

    def work(guard: SignalGuard) -> CommandOutput:
        from vgpuctl.cli import confirm, hosts, progress
        from vgpuctl.cli.result import ChangeContext, CommandOutput

        command_audit.host = host = hosts.open_host_to_change(settings)
        command_audit.progress = reporter = progress.choose_progress(settings, guard)
        try:
            outcome = action(ChangeContext(host, reporter, confirm.ConfirmationPrompt(settings), settings.wait))
        finally:
            reporter.close()
        command_audit.outcome = outcome
        data = {
            **outcome.data,
            "steps": list(outcome.steps),
            "notes": list(outcome.notes),
            "dry_run": outcome.dry_run,
        }
        return CommandOutput(data, outcome.changed, outcome.warnings, outcome.notes)

    status = perform(settings, kind, work, command_audit.set_failure)
    command_audit.write_entry(status)
    return status


def perform(
    settings: Settings,
    kind: str,
    action: Callable[[SignalGuard], CommandOutput],
    on_failure: Callable[[Failure], None] | None = None,
) -> int:
    """Run the action and print its result. A failure is reported, also to `on_failure`. Returns the exit status."""
    from vgpuctl.cli import failures, signals

    settings.kind = kind
    with signals.handle_signals() as guard:
        try:
            result = action(guard)
            guard.ignore_signals()
            return print_result(settings, result)
        except BaseException as exc:  # noqa: BLE001
            if not guard.received:
                from vgpuctl.cli import attach_doctor

                attach_doctor.add_findings(exc, settings)
            guard.ignore_signals()
            return failures.report(exc, settings, signal_status=guard.exit_status, on_failure=on_failure)


def print_result(settings: Settings, result: CommandOutput) -> int:
    """Print a result: one JSON document, or text with warnings and notes on stderr.

    Raises:
        OutputLost: it could not be written, and it reports a change.
    """
    from vgpuctl.cli import output, streams

    def write() -> None:
        if settings.json:
            from vgpuctl.cli import document

            text = document.success_text(settings.kind, result.data, changed=result.changed, warnings=result.warnings)
            streams.write_out(text)
        elif result.raw is not None:
            streams.write_out(streams.sanitize(result.raw) if streams.is_terminal(sys.stdout) else result.raw)
        else:
            _print_page(settings.kind, result.data)

    if not output.write_result(settings.kind, write, {output.LOCAL: result.data} if result.changed else {}):
        return 1
    if settings.json:
        return result.status
    for warning in result.warnings:
        streams.write_err(f"warning: {streams.sanitize(warning)}")
    for note in result.notes:
        streams.write_err(f"note: {streams.sanitize(note)}")
    return result.status


def _print_page(kind: str, data: object) -> None:
    from vgpuctl.cli import pages, streams, tables

    page = pages.page(kind, data)
    if page.blocks and streams.is_terminal(sys.stdout):
        tables.print_rich(page.blocks, sys.stdout)
    elif page.blocks:
        streams.write_out(tables.render_plain(page.blocks))
    for line in page.stderr_lines:
        streams.write_err(streams.sanitize(line))


def print_xml(settings: Settings, request: Callable[[Host], VmRequest]) -> int:
    """Print the domain XML that create-vm would define."""

    def work(guard: SignalGuard) -> CommandOutput:
        from vgpuctl.cli import hosts
        from vgpuctl.cli.result import CommandOutput
        from vgpuctl.engine import create

        host = hosts.open_host_to_change(settings)
        xml = create.render_xml(host, request(host))
        return CommandOutput({"xml": xml}, raw=xml if xml.endswith("\n") else f"{xml}\n")

    return perform(settings, "create-vm", work)
