# SPDX-License-Identifier: Apache-2.0
"""Runs one command: opens the host that --host, --root and --connect name, does the work, prints the result once.

The work is done under the signal guard.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from vgpuctl.errors import InvalidInput
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.agent.client import AgentHost
    from vgpuctl.cli.entry import SignalGuard
    from vgpuctl.cli.global_options import Settings
    from vgpuctl.library import GpuHost
    from vgpuctl.model.outcome import AnyResult, Confirm, Progress

    Result = TypeVar("Result", bound=AnyResult)


AGENT, LOCAL = "agent", "local"


class CommandOutput(Value):
    """What is printed: `result` for programs and, rendered as a page, for people. `raw` is printed as it is.

    `status` is the exit status of a command that worked but reports a problem: its result is printed all the same.
    """

    result: AnyResult
    raw: str | None = None
    status: int = 0


def open_host(
    settings: Settings,
    *,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> GpuHost:
    """Return the host that the global options name. Without `confirm` nobody is asked.

    Raises:
        InvalidInput: there is no such host, or the options contradict each other.
    """
    from vgpuctl import library

    if settings.is_remote or _agent_of(settings) is not None:
        return open_agent(settings, progress=progress, confirm=confirm, cancelled=cancelled)
    return library.open_host(
        settings.host,
        root=settings.root,
        connect=settings.connect,
        wait_seconds=settings.wait,
        progress=progress,
        confirm=confirm or library.confirm_everything,
        cancelled=cancelled or library.never_cancelled,
        command_line=("vgpuctl", *settings.args),
        override_controller=settings.override_controller,
    )


def open_agent(
    settings: Settings,
    *,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> AgentHost:
    """Return the host behind the agent that --host names, or behind this host's.

    Raises:
        InvalidInput: --host names no agent, and not this host; or another one whose agent was not reached.
    """
    from vgpuctl import library
    from vgpuctl.agent import client

    if settings.agent_route is not None:
        return settings.agent_route.open(settings, progress=progress, confirm=confirm, cancelled=cancelled)
    if settings.is_remote:
        raise InvalidInput("this command works only on this machine", hint="omit --host ssh://")
    name = _agent_of(settings) or (AGENT if settings.host == LOCAL else None)
    if name is None:
        raise InvalidInput(
            f"--host {settings.host}: only the host agent knows this",
            hint=f"vgpuctl --host {settings.host} agent run --socket /PATH/agent.sock --state DIR runs one; then "
            "--host agent:/PATH/agent.sock",
        )
    return client.connect(
        name,
        wait_seconds=settings.wait,
        progress=progress,
        confirm=confirm or library.confirm_everything,
        cancelled=cancelled or library.never_cancelled,
        command_line=("vgpuctl", *settings.args),
        override_controller=settings.override_controller,
    )


def through_agent(settings: Settings) -> Settings:
    """Return the settings with which also root's command goes through this host's agent, if the agent runs.

    The agent alone has the channels to the helpers in guests. Without it the QEMU guest agents can still be asked.
    """
    from vgpuctl.model.agent_service import SOCKET_PATH

    is_this_host = settings.host == LOCAL and settings.root == "/" and settings.connect is None
    if is_this_host and not settings.is_remote and os.access(SOCKET_PATH, os.R_OK | os.W_OK):
        settings.host = AGENT
    return settings


def _agent_of(settings: Settings) -> str | None:
    """Return the name of the host agent that makes the calls; None if this process makes them itself.

    --host names one, or the caller is not root and may use this host's: what changes the host needs root or the agent.
    """
    if settings.host == AGENT or settings.host.startswith(f"{AGENT}:"):
        return settings.host
    if settings.host != LOCAL or settings.root != "/" or settings.connect is not None or os.geteuid() == 0:
        return None
    from vgpuctl.model.agent_service import SOCKET_PATH

    return AGENT if os.access(SOCKET_PATH, os.R_OK | os.W_OK) else None


def call(
    settings: Settings,
    kind: str,
    act: Callable[[GpuHost], Result],
    present: Callable[[Result], CommandOutput] | None = None,
) -> int:
    """Run a command that is one call of the library.

    `present` adds an exit status or a text to print as it is.
    """
    from vgpuctl.cli import progress

    def work(guard: SignalGuard) -> CommandOutput:
        reporter = progress.choose_progress(settings)
        try:
            host = open_host(
                settings, progress=reporter, confirm=progress.ConfirmationPrompt(settings), cancelled=guard.check
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
    """Run the action and print its result, or report why it failed. Returns the exit status.

    For one of several other hosts the result is collected, and failures are raised.
    """
    from vgpuctl.cli import entry, failures

    settings.kind = kind
    outputs = None if settings.agent_route is None else settings.agent_route.outputs
    if outputs is not None:
        outputs.append(action(entry.SignalGuard()))
        return 0
    with entry.handle_signals() as guard:
        try:
            command_output = action(guard)
            guard.ignore_signals()
            return print_result(settings, command_output)
        except BaseException as exc:  # noqa: BLE001
            if not guard.received:
                failures.add_findings(exc, settings)
            guard.ignore_signals()
            return failures.report(exc, settings, signal_status=guard.exit_status)


def print_result(settings: Settings, command_output: CommandOutput) -> int:
    """Print a result: one document for programs, or text with warnings and notes on stderr.

    Raises:
        OutputLost: it could not be written, and it reports a change.
    """
    from vgpuctl.cli import document, output, streams
    from vgpuctl.model import documents

    result, raw = _narrow(settings, command_output.result), command_output.raw

    def write() -> None:
        if settings.json:
            streams.write_out(document.text(documents.success_body(settings.kind, result), settings.output))
        elif raw is not None:
            write_raw(raw)
        elif settings.output in ("csv", "name"):
            print_rows(settings, [("", result)], has_host=False)
        else:
            output.print_page(settings, result)

    if not output.write_result(settings.kind, write, {output.LOCAL: result} if result.changed else {}):
        return 1
    if not settings.json:
        print_notes(result)
    return command_output.status


def print_notes(result: AnyResult) -> None:
    """Print a result's warnings and notes on stderr."""
    from vgpuctl.cli import streams

    for warning in result.warnings:
        streams.write_err(f"warning: {streams.sanitize(warning)}")
    for note in result.notes:
        streams.write_err(f"note: {streams.sanitize(note)}")


def write_raw(text: str) -> None:
    """Write text for another program: as it is in a pipe, without control characters on a terminal."""
    from vgpuctl.cli import streams

    streams.write_out(streams.sanitize(text) if streams.is_terminal(sys.stdout) else text)


def print_rows(settings: Settings, results: Sequence[tuple[str, AnyResult]], *, has_host: bool) -> None:
    """Print the rows of a list, of each host, as csv or names."""
    from vgpuctl.cli import listings
    from vgpuctl.cli.shown import rows_of

    listing = listings.find_listing(settings.kind)
    hosts_rows = [(name, rows_of(listing, result.data) or ()) for name, result in results]
    if listing is None:
        raise TypeError(f"{settings.kind} is not a list")
    if settings.output == "name":
        write_raw("".join(f"{listing.identity(row)}\n" for _, rows in hosts_rows for row in rows))
        return
    view = listings.view_of(settings)
    has_headers = not settings.no_headers
    write_raw(listings.csv_text(listing, view, hosts_rows, has_headers=has_headers, has_host=has_host))


def _narrow(settings: Settings, result: AnyResult) -> AnyResult:
    from vgpuctl.cli import listings

    if not (settings.filter or settings.sort_by):
        return result
    return listings.narrow(settings.kind, listings.view_of(settings), result)
