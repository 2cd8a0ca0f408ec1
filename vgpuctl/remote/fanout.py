# SPDX-License-Identifier: Apache-2.0
"""Runs one command on many hosts in parallel and independently: no host waits for another or stops another.

One thread per host, with a maximum at a time. Python delivers signals only to the main thread, which waits here and
counts them; each host's thread forwards a stop to its remote command.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence

from vgpuctl.errors import DeadlineExceeded, HostCannot, Interrupted, Unreachable, VgpuctlError
from vgpuctl.remote import reply as replies
from vgpuctl.remote.bootstrap import BootstrapPlan, bootstrap_host
from vgpuctl.remote.reply import AGENT_HINT, AGENT_SILENT, Reply
from vgpuctl.remote.session import (
    ROOT,
    AgentLogin,
    Connect,
    RemoteCommand,
    RemoteOutput,
    RunControl,
    Session,
    Target,
)
from vgpuctl.remote.ssh_session import MAX_STOPS
from vgpuctl.value import Value, replace

MAX_PARALLEL = 32
DEADLINE_SECONDS = 600.0
_POLL_SECONDS = 0.1
_LAST_SECONDS = 1.0
"""How long threads have to notice the end of the run."""


class HostReply(Value):
    """The result of one host: its reply, or the error instead; or `agent`, whose login stays open, for the caller."""

    target: Target
    seconds: float
    parsed: Reply | None = None
    error: BaseException | None = None
    agent: AgentLogin | None = None


class AgentTask(Value):
    """How a command goes through the host agent of a host that has one.

    `log_in` returns the agent behind a login. `call` makes the command's calls and returns the reply; None: the caller
    of `run` makes them. `comes_first`: for accounts that are not root; else only where no command can be run.
    `required`: only the agent can do it.
    """

    log_in: Callable[[Session, RunControl], AgentLogin]
    call: Callable[[Target, AgentLogin, RunControl], Reply] | None
    comes_first: bool = True
    required: bool = False


class FanoutTask(Value):
    """The command for all hosts. `local_version`: this vgpuctl's; `report_line` gets a host's name and a stderr line.

    With `bootstrap` vgpuctl is first installed on a host that lacks it. `agent`: None if the command never goes through
    the host agent.
    """

    command: RemoteCommand
    is_change: bool
    local_version: str
    report_line: Callable[[str, str], None]
    deadline_seconds: float = DEADLINE_SECONDS
    max_parallel: int = MAX_PARALLEL
    bootstrap: BootstrapPlan | None = None
    agent: AgentTask | None = None


def run(
    targets: Sequence[Target], task: FanoutTask, connect: Connect, stops: Callable[[], int]
) -> tuple[HostReply, ...]:
    """Run the command on every host and return the replies in host order. `stops` counts the signals so far.

    After the first stop no further host is started, and running hosts undo what they began; after the third stop
    vgpuctl does not wait any longer.
    """
    pending: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(targets)):
        pending.put(number)
    replies: dict[int, HostReply] = {}
    all_done = threading.Event()

    def worker() -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                number = pending.get_nowait()
                replies[number] = _run_on_host(targets[number], task, connect, stops)
                if len(replies) == len(targets):
                    all_done.set()

    for _ in range(min(task.max_parallel, len(targets))):
        threading.Thread(target=worker, daemon=True).start()
    _wait(all_done, stops)
    return tuple(
        replies.get(number) or _abandoned_reply(target, is_change=task.is_change)
        for number, target in enumerate(targets)
    )


def _wait(all_done: threading.Event, stops: Callable[[], int]) -> None:
    while True:
        try:
            while not all_done.is_set() and stops() < MAX_STOPS:
                all_done.wait(_POLL_SECONDS)
            all_done.wait(_LAST_SECONDS)
            return
        except (Interrupted, KeyboardInterrupt):  # counted by `stops`
            continue


def _run_on_host(target: Target, task: FanoutTask, connect: Connect, stops: Callable[[], int]) -> HostReply:
    started = time.monotonic()
    try:
        if stops():
            raise Interrupted(f"{target.name}: not contacted", signal_number=2)
        reply = _get_reply(target, task, connect, stops, started + task.deadline_seconds)
    except Exception as exc:  # noqa: BLE001 - a bug on one host must not lose the others' replies
        return HostReply(target, _elapsed_seconds(started), error=_add_deadline(exc, target, task, started))
    if isinstance(reply, Reply):
        return HostReply(target, _elapsed_seconds(started), reply)
    return HostReply(target, _elapsed_seconds(started), agent=reply)


def _get_reply(
    target: Target, task: FanoutTask, connect: Connect, stops: Callable[[], int], deadline: float
) -> Reply | AgentLogin:
    """Return a host's reply, or its agent, whose login stays open then."""
    session = connect(target, deadline)
    with contextlib.ExitStack() as login:
        login.callback(session.close)
        if stops():
            raise Interrupted(f"{target.name}: logged in, but no command was started", signal_number=2)
        control = RunControl(deadline, lambda line: task.report_line(target.name, line), stops)
        if task.bootstrap is not None:
            bootstrap_reply = bootstrap_host(session, target.name, control, task.bootstrap)
            if bootstrap_reply is not None:
                return bootstrap_reply
        through_agent = _ThroughAgent(target, task.agent, session, control)
        reply = through_agent.try_first() or _run_command(target, task, session, control, through_agent)
        if not isinstance(reply, Reply):
            login.pop_all()
        return reply


class _ThroughAgent:
    """The agent of one host, as an alternative to a command there; it is looked for once."""

    def __init__(self, target: Target, task: AgentTask | None, session: Session, control: RunControl) -> None:
        self._target = target
        self._task = task
        self._session = session
        self._control = control
        self.problem: str | None = None
        """Why it does not answer, once it was looked for."""

    def try_first(self) -> Reply | AgentLogin | None:
        """Return what comes of it where it comes before a command; None if that is to run.

        Raises:
            Unreachable: nothing else can do it, and it does not answer.
        """
        if self._task is None or not (self._task.required or (self._task.comes_first and self._session.user != ROOT)):
            return None
        reply = self._use(self._task)
        if reply is None and self._task.required:
            raise Unreachable(f"{self._target.name}: {AGENT_SILENT}: {self.problem}", hint=AGENT_HINT)
        return reply

    def try_after(self, output: RemoteOutput) -> Reply | AgentLogin | None:
        """Return what comes of it where a command did not begin, as with a key that reaches the agent alone."""
        is_refused = output.noise is None and output.abandon_reason is None and not output.is_late
        if self._task is None or self.problem is not None or not is_refused:
            return None
        return self._use(self._task)

    def _use(self, task: AgentTask) -> Reply | AgentLogin | None:
        agent = task.log_in(self._session, self._control)
        self.problem = agent.find_problem()
        if self.problem is not None:
            return None
        return agent if task.call is None else task.call(self._target, agent, self._control)


def _run_command(
    target: Target, task: FanoutTask, session: Session, control: RunControl, through_agent: _ThroughAgent
) -> Reply | AgentLogin:
    output = session.run(task.command, control)
    by_agent = through_agent.try_after(output)
    if by_agent is not None:
        return by_agent
    reply = replies.parse(output, target.name, is_change=task.is_change, agent_problem=through_agent.problem)
    if replies.is_usage_error(reply):
        quiet = replace(control, report_line=lambda line: None)
        remote_version = replies.parse_version(session.run(RemoteCommand(("--version",)), quiet))
        replies.refuse_other_version(reply, target.name, remote_version, task.local_version)
    return reply


def _add_deadline(exc: Exception, target: Target, task: FanoutTask, begun: float) -> Exception:
    """Return the error, with the deadline in its facts if the deadline ended the host's run."""
    if isinstance(exc, DeadlineExceeded):
        exc.facts["host_deadline_seconds"] = task.deadline_seconds
    elif (
        _elapsed_seconds(begun) >= task.deadline_seconds
        and isinstance(exc, VgpuctlError)
        and not isinstance(exc, HostCannot)
    ):
        exc.facts.setdefault("host_deadline_seconds", task.deadline_seconds)
    return exc


def _abandoned_reply(target: Target, *, is_change: bool) -> HostReply:
    exc = Interrupted(f"{target.name}: no longer waited for", signal_number=2)
    if is_change:
        exc.left = [f"{target.name}: changes that the command may have made there; it continues on its own"]
    return HostReply(target, 0.0, error=exc)


def _elapsed_seconds(begun: float) -> float:
    return round(time.monotonic() - begun, 3)
