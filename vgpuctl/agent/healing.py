# SPDX-License-Identifier: Apache-2.0
"""The agent fixes by itself what a crash left: the findings of `reconcile-host`, with its steps, as an operation.

It is careful, since nobody watches it. A finding is fixed only when two looks a minute apart both had it, and only when
both read libvirt, the devices, the claims and host.yaml whole; never soon after the agent or libvirtd started, when VMs
are still on their way; and nothing while there are many findings at once, which is a case for a person. `reconcile`
itself leaves alone what a running operation works on and what vgpuctl did not make.

What it does not fix becomes events: problems that are there or gone, and whether the host differs from host.yaml.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from vgpuctl.agent.events import EventLog
from vgpuctl.agent.operation import wait_for_end
from vgpuctl.agent.operations import ROOT, AgentOperations
from vgpuctl.agent.protocol import RequestOptions
from vgpuctl.agent.request import CallRequest
from vgpuctl.errors import VgpuctlError
from vgpuctl.library.call_table import CALLS
from vgpuctl.library.requests import read_spec_of_host
from vgpuctl.model.event import EventType
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.apply import diff_host
from vgpuctl.operations.desired_state import read_desired_state
from vgpuctl.operations.reconcile import find_problems
from vgpuctl.ports.host import Host, for_another_operation
from vgpuctl.value import Value, replace

log = logging.getLogger("vgpuctl.agent")

ROUND_SECONDS = 600.0
CONFIRM_SECONDS = 60.0
"""Between the two looks that must both find a problem."""
QUIET_SECONDS = 120.0
"""Nothing is fixed within this time after the agent started or libvirtd came back."""
MAX_FIXES = 10
"""With more findings than this it fixes none: something larger is wrong."""
_MAX_REASON_CHARACTERS = 200


class Problem(Value):
    """A finding of `reconcile-host`: its text, what would be done, whether that is a fix, and its VM."""

    what: str
    action: str
    has_fix: bool
    vm: str | None = None
    vm_uuid: str | None = None


class Decision(Value):
    """What follows from a look: the problems to fix, those that two looks found, and when to look again.

    `is_stopped`: there are too many problems to fix any.
    """

    fix: tuple[Problem, ...] = ()
    confirmed: tuple[Problem, ...] | None = None
    is_stopped: bool = False
    next_seconds: float = ROUND_SECONDS


class HealingRounds:
    """Decides what to fix from what each look found, and when. It reads nothing itself."""

    def __init__(self) -> None:
        self._first_look: Mapping[str, Problem] | None = None

    def decide(self, problems: tuple[Problem, ...] | None, quiet_seconds: float) -> Decision:
        """Return what follows from a look.

        `problems`: None, if the host was not read whole. `quiet_seconds`: for how long nothing may be fixed yet.
        """
        if problems is None or quiet_seconds > 0:
            self._first_look = None
            return Decision(next_seconds=max(quiet_seconds, CONFIRM_SECONDS))
        if self._first_look is None:
            if not problems:
                return Decision(confirmed=())
            self._first_look = {problem.what: problem for problem in problems}
            return Decision(next_seconds=CONFIRM_SECONDS)
        confirmed = tuple(problem for problem in problems if problem.what in self._first_look)
        self._first_look = None
        fixable = tuple(problem for problem in confirmed if problem.has_fix)
        if len(fixable) > MAX_FIXES:
            return Decision(confirmed=confirmed, is_stopped=True)
        return Decision(fix=fixable, confirmed=confirmed)


class HostHealer:
    """Looks at a host again and again, and begins the operations that fix it.

    `libvirt_returned`: when libvirtd came back the last time, by the host's monotonic clock; None if it never left.
    """

    def __init__(
        self, host: Host, operations: AgentOperations, events: EventLog, libvirt_returned: Callable[[], float | None]
    ) -> None:
        self._host = replace(host, snapshots=None)
        self._operations = operations
        self._events = events
        self._libvirt_returned = libvirt_returned
        self._started = host.clock.monotonic()
        self._rounds = HealingRounds()
        self._reported: dict[str, Problem] = {}
        self._is_stopped = False
        self._differs = False

    async def run(self) -> None:
        """Look and fix until cancelled."""
        while True:
            await asyncio.sleep(await self.look())

    async def look(self) -> float:
        """Look once, fix what two looks found, and report the rest; return in how many seconds to look again."""
        try:
            decision = await asyncio.to_thread(self._decide)
            is_fixed = bool(decision.fix) and await self._fix(decision.fix)
        except Exception as error:  # noqa: BLE001 - the next look may succeed
            log.warning("the host cannot be checked: %s", error)
            return ROUND_SECONDS
        if decision.confirmed is not None:
            self._report(decision, decision.fix if is_fixed else ())
            await asyncio.to_thread(self._report_difference)
        return decision.next_seconds

    def _decide(self) -> Decision:
        host = for_another_operation(self._host)
        try:
            if not read_spec_of_host(host).agent.self_healing:
                return self._rounds.decide(None, ROUND_SECONDS)
            snapshot = observe(host, ReadScope(models=False))
            problems = None
            if snapshot.is_whole:
                problems = tuple(
                    Problem(f.what, f.action, f.has_fix, *((f.vm.name, f.vm.uuid) if f.vm is not None else ()))
                    for f in find_problems(host, snapshot)
                )
        finally:
            host.operations.end()
        begin = max(self._started, self._libvirt_returned() or self._started)
        return self._rounds.decide(problems, begin + QUIET_SECONDS - host.clock.monotonic())

    async def _fix(self, problems: tuple[Problem, ...]) -> bool:
        """Fix problems by an operation; return whether it fixed all."""
        log.info("fixing by itself: %s", "; ".join(problem.what for problem in problems))
        arguments = {"only": [problem.what for problem in problems]}
        operation = self._operations.begin(CallRequest(CALLS["reconcile-host"], arguments, RequestOptions(), ROOT))
        await wait_for_end(operation)
        document = operation.stored.document
        return bool(document is not None and document.get("ok"))

    def _report(self, decision: Decision, fixed: tuple[Problem, ...]) -> None:
        """Publish which problems are new and not fixed, which are gone, and whether nothing is fixed any more."""
        if decision.is_stopped and not self._is_stopped:
            count = sum(problem.has_fix for problem in decision.confirmed or ())
            reason = f"{count} problems at once, more than {MAX_FIXES}: vgpuctl reconcile-host --dry-run shows them"
            self._events.publish(EventType.HEALING_STOPPED, reason=reason)
        self._is_stopped = decision.is_stopped
        gone = {problem.what for problem in fixed}
        current = {problem.what: problem for problem in decision.confirmed or () if problem.what not in gone}
        for what in current.keys() - self._reported.keys():
            self._publish(EventType.PROBLEM_BEGIN, current[what])
        for what in self._reported.keys() - current.keys():
            self._publish(EventType.PROBLEM_END, self._reported[what])
        self._reported = current

    def _publish(self, event_type: EventType, problem: Problem) -> None:
        reason = f"{problem.what}: {problem.action}" if event_type is EventType.PROBLEM_BEGIN else problem.what
        self._events.publish(event_type, vm=problem.vm, vm_uuid=problem.vm_uuid, reason=reason[:_MAX_REASON_CHARACTERS])

    def _report_difference(self) -> None:
        """Publish whether the host differs from host.yaml, when that changes."""
        host = for_another_operation(self._host)
        try:
            outcome = diff_host(host, read_desired_state(host, None, ()), drain=False)
        except VgpuctlError as error:
            log.warning("the host cannot be compared with host.yaml: %s", error)
            return
        finally:
            host.operations.end()
        if outcome.changed and not self._differs:
            reason = "; ".join(outcome.steps) or "vgpuctl diff shows it"
            self._events.publish(EventType.DRIFT_BEGIN, reason=reason[:_MAX_REASON_CHARACTERS])
        elif self._differs and not outcome.changed:
            self._events.publish(EventType.DRIFT_END)
        self._differs = outcome.changed
