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
from collections.abc import Callable

from vgpuctl.agent.events import EventLog, shorten_reason
from vgpuctl.agent.operation import failure_text, wait_for_end
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


class HostProblem(Value):
    """A finding of `reconcile-host`: its text, what would be done, whether that is a fix, and its VM."""

    what: str
    action: str
    has_fix: bool
    vm: str | None = None
    vm_uuid: str | None = None

    @property
    def key(self) -> tuple[str, str | None]:
        """What identifies it in another look: a VM that was made again with the same name is another one."""
        return self.what, self.vm_uuid


class HealingDecision(Value):
    """What follows from a look: the problems to fix, those that two looks found, and when to look again.

    `confirmed`: None, if no two looks count. `is_stopped`: there are too many problems to fix any.
    """

    fix: tuple[HostProblem, ...] = ()
    confirmed: tuple[HostProblem, ...] | None = None
    is_stopped: bool = False
    next_seconds: float = ROUND_SECONDS


class HealingRounds:
    """Decides what to fix from what each look found, and when. It reads nothing itself."""

    def __init__(self) -> None:
        self._first_look: frozenset[tuple[str, str | None]] | None = None

    def forget(self) -> None:
        """Begin a new round with the next look."""
        self._first_look = None

    def decide(self, problems: tuple[HostProblem, ...]) -> HealingDecision:
        """Return what follows from a look at the whole host."""
        first_look, self._first_look = self._first_look, None
        if first_look is None:
            if not problems:
                return HealingDecision(confirmed=())
            self._first_look = frozenset(problem.key for problem in problems)
            return HealingDecision(next_seconds=CONFIRM_SECONDS)
        confirmed = tuple(problem for problem in problems if problem.key in first_look)
        fixable = tuple(problem for problem in confirmed if problem.has_fix)
        if len(fixable) > MAX_FIXES:
            return HealingDecision(confirmed=confirmed, is_stopped=True)
        return HealingDecision(fix=fixable, confirmed=confirmed)


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
        self._reported: dict[tuple[str, str | None], HostProblem] = {}
        self._is_stopped = self._is_unread = False
        self._differs = self._is_difference_reported = False

    async def run(self) -> None:
        """Look and fix until cancelled."""
        while True:
            try:
                seconds = await self.check()
            except Exception as error:  # noqa: BLE001 - the next look may succeed
                log.warning("the host is not checked and fixed: %s", error)
                self._rounds.forget()
                seconds = ROUND_SECONDS
            await asyncio.sleep(seconds)

    async def check(self) -> float:
        """Look once, fix what two looks found, and report the rest; return in how many seconds to look again."""
        begin = max(self._started, self._libvirt_returned() or self._started)
        quiet_seconds = begin + QUIET_SECONDS - self._host.clock.monotonic()
        if quiet_seconds > 0:
            self._rounds.forget()
            return quiet_seconds
        is_on, unread, problems = await asyncio.to_thread(self._find_problems)
        if unread:
            return self._note_unread(unread)
        self._is_unread = False
        decision = self._rounds.decide(problems)
        if decision.confirmed is None:
            return decision.next_seconds
        left, reason = decision.confirmed, None
        if decision.fix and is_on:
            reason = await self._fix(decision.fix)
            _, unread, now = await asyncio.to_thread(self._find_problems)
            remaining = {problem.key for problem in (left if unread else now)}
            left = tuple(problem for problem in left if problem.key in remaining)
        self._report(left, reason, is_stopped=decision.is_stopped and is_on)
        await asyncio.to_thread(self._report_difference)
        return decision.next_seconds

    def _find_problems(self) -> tuple[bool, tuple[str, ...], tuple[HostProblem, ...]]:
        """Return whether host.yaml allows fixes, what was not read of the host, and the problems."""
        host = for_another_operation(self._host)
        try:
            snapshot = observe(host, ReadScope(models=False))
            if snapshot.unread_texts:
                return False, snapshot.unread_texts, ()
            problems = tuple(
                HostProblem(f.what, f.action, f.has_fix, *((f.vm.name, f.vm.uuid) if f.vm is not None else ()))
                for f in find_problems(host, snapshot)
            )
            return read_spec_of_host(host).agent.self_healing, (), problems
        finally:
            host.operations.end()

    def _note_unread(self, unread: tuple[str, ...]) -> float:
        """Begin again, since the host was not read whole; publish it when it is so for longer than a moment."""
        self._rounds.forget()
        if not self._is_unread:
            self._is_unread = True
            return CONFIRM_SECONDS
        self._stop(f"not all of this host can be read: {unread[0]}")
        return ROUND_SECONDS

    async def _fix(self, problems: tuple[HostProblem, ...]) -> str | None:
        """Fix problems by an operation; return why it failed, None if it did not."""
        log.info("fixing by itself: %s", "; ".join(problem.what for problem in problems))
        arguments = {"only": [problem.what for problem in problems]}
        operation = self._operations.begin(CallRequest(CALLS["reconcile-host"], arguments, RequestOptions(), ROOT))
        await wait_for_end(operation)
        return failure_text(operation.stored.document)

    def _report(self, left: tuple[HostProblem, ...], reason: str | None, *, is_stopped: bool) -> None:
        """Publish which problems are new, which are gone, and whether nothing is fixed any more.

        `reason`: why the fix failed. Where nothing is fixed, the many problems that could be are one event.
        """
        fixable = [problem for problem in left if problem.has_fix]
        if is_stopped:
            count = f"{len(fixable)} problems at once, more than {MAX_FIXES}"
            self._stop(f"{count}: vgpuctl reconcile-host --dry-run shows them")
            left = tuple(problem for problem in left if not problem.has_fix)
        else:
            self._is_stopped = False
        current = {problem.key: problem for problem in left}
        for key in current.keys() - self._reported.keys():
            problem = current[key]
            action = reason if reason is not None and problem.has_fix else problem.action
            self._publish(EventType.PROBLEM_BEGIN, problem, f"{problem.what}: {action}")
        for key in self._reported.keys() - current.keys():
            self._publish(EventType.PROBLEM_END, self._reported[key], self._reported[key].what)
        self._reported = current

    def _stop(self, why: str) -> None:
        """Publish that nothing is fixed, once until it is again."""
        if not self._is_stopped:
            self._events.publish(EventType.HEALING_STOPPED, reason=shorten_reason(why))
        self._is_stopped = True

    def _publish(self, event_type: EventType, problem: HostProblem, reason: str) -> None:
        self._events.publish(event_type, vm=problem.vm, vm_uuid=problem.vm_uuid, reason=shorten_reason(reason))

    def _report_difference(self) -> None:
        """Publish whether the host differs from host.yaml, when two rounds in a row say so; one may see a change."""
        host = for_another_operation(self._host)
        try:
            outcome = diff_host(host, read_desired_state(host, None, ()), drain=False)
        except VgpuctlError as error:
            log.warning("the host cannot be compared with host.yaml: %s", error)
            return
        finally:
            host.operations.end()
        if outcome.changed and self._differs and not self._is_difference_reported:
            reason = "; ".join(outcome.steps) or "vgpuctl diff shows it"
            self._events.publish(EventType.DRIFT_BEGIN, reason=shorten_reason(reason))
            self._is_difference_reported = True
        elif self._is_difference_reported and not outcome.changed:
            self._events.publish(EventType.DRIFT_END)
            self._is_difference_reported = False
        self._differs = outcome.changed
