# SPDX-License-Identifier: Apache-2.0
"""Runs a command through the host agent of another host: its calls are made here, so it works as a command here does.

Of several hosts each has its own settings, which collect its result instead of printing it.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import TYPE_CHECKING

import click

from vgpuctl.agent.connection import SshAgent
from vgpuctl.cli import failures
from vgpuctl.errors import DeadlineExceeded
from vgpuctl.library import confirm_everything, text_file
from vgpuctl.model import documents
from vgpuctl.model.outcome import CallSettings, NoProgress
from vgpuctl.remote.fanout import AgentTask
from vgpuctl.remote.reply import Reply
from vgpuctl.remote.session import SCHEME
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.agent.client import AgentHost
    from vgpuctl.cli.global_options import Settings
    from vgpuctl.cli.run import CommandOutput
    from vgpuctl.model.outcome import Confirm, Progress
    from vgpuctl.remote.session import AgentLogin, RunControl, Session, Target

ROOT_COMMANDS = frozenset(
    {
        "adopt", "apply", "cordon", "create-vgpu", "delete-vgpu", "ensure-vgpu", "import", "install-host",
        "migrate-vm", "purge-deleted", "reconcile-host", "restore-disk", "restore-host", "set-mig",
        "set-mixed-size", "set-mode", "set-scheduler", "end-migration", "uncordon", "uninstall-host",
    }
)  # fmt: skip
"""Commands that the agent makes for root alone, as `agent.rights` says; doctor --fix is one, too."""


class SentFile(Value):
    """The local file that a command sends to other hosts, which can be read once if it is a pipe; None: it sends none.

    `path`: as it was typed.
    """

    path: str | None
    text: str

    def read(self, path: str, file_kind: str) -> str:
        """Return the text of a file that a call names."""
        return self.text if path == self.path else text_file.read_text(path, file_kind)


class AgentRoute:
    """The way of a command's calls to the agent of one other host.

    `report_line` gets the lines of progress, and `outputs` the results, if another one prints them.
    """

    def __init__(self, name: str, agent: SshAgent, sent_file: SentFile, interrupt_count: Callable[[], int]) -> None:
        self.report_line: Callable[[str], None] | None = None
        self.outputs: list[CommandOutput] | None = None
        self._name = name
        self._agent = agent
        self._sent_file = sent_file
        self._interrupt_count = interrupt_count

    def open(
        self,
        settings: Settings,
        *,
        progress: Progress | None,
        confirm: Confirm | None,
        cancelled: Callable[[], bool] | None,
    ) -> AgentHost:
        """Return the host behind the agent."""
        from vgpuctl.agent.client import AgentHost

        def is_stopped() -> bool:
            return bool(self._interrupt_count()) or (cancelled is not None and cancelled())

        call_settings = CallSettings(
            settings.wait,
            progress or NoProgress(),
            confirm or confirm_everything,
            is_stopped,
            ("vgpuctl", *settings.args),
            override_controller=settings.override_controller,
        )
        return AgentHost(self._agent.dial, call_settings, f"{SCHEME}{self._name}", read_file=self._sent_file.read)


def plan_agent(
    settings: Settings, context: click.Context, sent_file: SentFile, *, single_host: bool, has_progress: bool
) -> AgentTask:
    """Return how a command goes through the agents of hosts that have one.

    Of a single host `run_here` makes the calls. What only root may do is first tried as root, with sudo.
    """
    is_for_root = settings.kind in ROOT_COMMANDS or bool(context.params.get("fix"))
    call = None if single_host else partial(_call, settings, context, sent_file, has_progress)
    return AgentTask(_log_in, call, comes_first=not is_for_root, required=goes_on(settings, context))


def goes_on(settings: Settings, context: click.Context) -> bool:
    """Return whether the command has no end of its own, and no result: events --follow, and top's live screen."""
    if settings.kind == "top":
        from vgpuctl.cli.commands.top import wants_live_screen

        return wants_live_screen(settings, bool(context.params.get("once")))
    return settings.kind == "events" and bool(context.params.get("follow"))


def run_here(
    settings: Settings,
    context: click.Context,
    target: Target,
    agent: AgentLogin,
    sent_file: SentFile,
    interrupt_count: Callable[[], int],
) -> int:
    """Run the command as if it worked on this host, and log out."""
    assert isinstance(agent, SshAgent)
    settings.agent_route = AgentRoute(target.name, agent, sent_file, interrupt_count)
    try:
        status: int = click.Command.invoke(context.command, context)
        return status
    finally:
        agent.close()


def _log_in(session: Session, control: RunControl) -> SshAgent:
    return SshAgent(session, control)


def _call(
    settings: Settings,
    context: click.Context,
    sent_file: SentFile,
    has_progress: bool,
    target: Target,
    agent: AgentLogin,
    control: RunControl,
) -> Reply:
    """Run the command for one of several hosts, and return its document."""
    assert isinstance(agent, SshAgent)
    own = copy(settings)
    own.output = "json"
    own.agent_route = route = AgentRoute(target.name, agent, sent_file, control.interrupt_count)
    outputs: list[CommandOutput] = []
    route.outputs = outputs
    route.report_line = control.report_line if has_progress else None
    own_context = click.Context(context.command, context.parent, context.info_name, own)
    own_context.params = dict(context.params)
    try:
        with own_context:
            click.Command.invoke(context.command, own_context)
        body, status = documents.success_body(own.kind, outputs[0].result), outputs[0].status
    except DeadlineExceeded:
        raise
    except Exception as error:  # noqa: BLE001 - the others' replies are reported whatever happens here
        if not control.interrupt_count():
            failures.add_findings(error, own)
        failure = failures.failure_from_exception(error, own)
        body, status = documents.failure_document(failure, own.kind), failure.status
    return Reply(documents.to_json_value(body), status)
