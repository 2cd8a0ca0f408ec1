# SPDX-License-Identifier: Apache-2.0
"""The agent's side of the helpers in guests: it holds the channel of each running VM, and keeps what helpers report.

    helpers = AgentGuestHelpers(ports.guest_reports)    # for the calls of the agent: what helpers report and carry out
    watch = HelperWatch(ports, ports.guest_channels, helpers, events)
    await watch.run()                                   # until cancelled: opens and closes channels, publishes changes

A guest may send whatever it likes. So its lines are short and few, or they are counted and dropped, and nothing is read
of a guest that sends more, for some seconds. What it says is about the VM whose channel it is. An event says that it
changed who is logged on; where that changes all the time, there are at most `BUSY_CHANGES` in a minute. Events have no
names of users: everybody who may look at the host reads them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from itertools import count
from threading import Event, Lock
from typing import TYPE_CHECKING

from vgpuctl.agent.events import EventLog, shorten_reason
from vgpuctl.agent.watcher import SCOPE
from vgpuctl.errors import Busy, Refused, VgpuctlError
from vgpuctl.model.event import EventType
from vgpuctl.model.guest_report import CHANNEL, MAX_LINE_BYTES, GuestAnswer, GuestReport, parse_line
from vgpuctl.model.vm import NOT_RUNNING_STATES, Vm
from vgpuctl.observe import observe
from vgpuctl.operations.guest_helper import no_helper

if TYPE_CHECKING:
    from vgpuctl.ports.guests import GuestChannel, GuestChannels, GuestReports
    from vgpuctl.ports.host import Host
    from vgpuctl.ports.system import Clock

log = logging.getLogger("vgpuctl.agent")

LOOK_SECONDS = 5.0
PAUSE_SECONDS = 0.5
"""Between two looks, so that a storm of log-ons costs few of them."""
LINES_PER_SECOND = 10
BURST_LINES = 40
SILENT_SECONDS = 180.0
"""A helper reports at least once a minute."""
ANSWER_SECONDS = 20.0
BUSY_CHANGES, BUSY_SECONDS = 5, 60.0
"""So many changes of who is logged on in a VM are published in so many seconds, at most."""
RETRY_SECONDS = 30.0
_NO_CHANNEL, _TAKEN = 1, 9
"""libvirt's error numbers for "no such channel" and "another program has it"."""


class HelperLines:
    """Splits what a guest sends into lines, and drops what is too long or too much. `dropped`: how many lines."""

    def __init__(self) -> None:
        self.dropped = 0
        self._rest = b""
        self._is_too_long = False
        self._tokens, self._time = float(BURST_LINES), 0.0

    def feed(self, data: bytes, now: float) -> list[bytes]:
        """Return the lines that are complete. `now`: on a monotonic clock."""
        self._tokens = min(float(BURST_LINES), self._tokens + (now - self._time) * LINES_PER_SECOND)
        self._time = now
        *lines, rest = (self._rest + data).split(b"\n")
        kept = []
        for line in lines:
            if self._is_too_long or len(line) > MAX_LINE_BYTES or self._tokens < 1:
                self.dropped += 1
            else:
                kept.append(line)
            self._is_too_long = False
            self._tokens = max(0.0, self._tokens - 1)
        self._is_too_long = self._is_too_long or len(rest) > MAX_LINE_BYTES
        self._rest = b"" if self._is_too_long else rest
        return kept

    @property
    def is_flooded(self) -> bool:
        """Whether the guest sends more than it may: nothing more is read for now."""
        return self._tokens < 1 or self._is_too_long


class _Link:
    """The channel of one VM, and what came through it. The channel's threads call `receive` and `end`."""

    def __init__(self, vm: Vm, clock: Clock, on_change: Callable[[], None]) -> None:
        """`on_change`: called, in the channel's threads, when the report is the first one, or has other users."""
        self.vm = vm
        self.channel: GuestChannel | None = None
        self.lines = HelperLines()
        self.report: GuestReport | None = None
        self.published: GuestReport | None = None
        self.written: GuestReport | None = None
        self.reason: str | None = None
        """Why the channel has ended; None while it is open."""
        self.is_paused = False
        self.bad_lines = 0
        self.has_complained = False
        self.changes: list[float] = []
        self._clock = clock
        self._on_change = on_change
        self._lock = Lock()
        self._asking = Lock()
        self._waiting: dict[int, Event] = {}
        self._answers: dict[int, GuestAnswer] = {}

    def receive(self, data: bytes) -> bool:
        """Take what the guest sent; return whether to go on reading."""
        with self._lock:
            for line in self.lines.feed(data, self._clock.monotonic()):
                self._take(line)
            self.is_paused = self.lines.is_flooded
            return not self.is_paused

    def _take(self, line: bytes) -> None:
        try:
            message = parse_line(line, self._clock.now())
        except ValueError:
            self.bad_lines += 1
            return
        if isinstance(message, GuestReport):
            is_change = self.report is None or _users(self.report) != _users(message)
            self.report = message
            if is_change:
                self._on_change()
        elif message.id in self._waiting:
            self._answers[message.id] = message
            self._waiting.pop(message.id).set()

    def end(self, reason: str) -> None:
        """Note that the channel has ended."""
        with self._lock:
            self.reason = reason
            for waiting in self._waiting.values():
                waiting.set()
            self._waiting.clear()
            self._on_change()

    def ask(self, number: int, request: Mapping[str, object]) -> GuestAnswer | None:
        """Send a request and return its answer; None for none in time, also where another request waits for so long."""
        if not self._asking.acquire(timeout=ANSWER_SECONDS):
            return None
        try:
            with self._lock:
                self._waiting[number] = arrived = Event()
            self.send({**request, "id": number})
            arrived.wait(ANSWER_SECONDS)
            with self._lock:
                return self._answers.pop(number, None)
        finally:
            with self._lock:
                self._waiting.pop(number, None)
                self._answers.pop(number, None)
            self._asking.release()

    def send(self, message: Mapping[str, object]) -> None:
        """Send a request."""
        if self.channel is not None:
            self.channel.send(json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n")


class AgentGuestHelpers:
    """What the helpers of this host's guests report, and what they are asked, for any thread.

    Implements `ports.guests.GuestHelpers`, and `ports.guests.GuestReports` for the agent's own calls. `files`: where
    other commands read the reports.
    """

    def __init__(self, files: GuestReports) -> None:
        self._files = files
        self._reports: dict[str, GuestReport] = {}
        self._links: dict[str, _Link] = {}
        self._numbers = count(1)
        self._is_new = True

    def read(self) -> Mapping[str, GuestReport]:
        """Return the last reports."""
        return dict(self._reports)

    def write(self, uuid: str, report: GuestReport) -> None:
        """Keep a VM's last report."""
        self._reports[uuid] = report
        self._files.write(uuid, report)

    def remove(self, uuid: str) -> None:
        """Remove a VM's report."""
        self._reports.pop(uuid, None)
        self._files.remove(uuid)

    def remove_others(self, uuids: Collection[str]) -> None:
        """Remove the reports of all other VMs, those that an earlier agent has left, too."""
        written = self._files.read().keys() if self._is_new else ()
        self._is_new = False
        for uuid in {*self._reports, *written}.difference(uuids):
            self.remove(uuid)

    def set_link(self, uuid: str, link: _Link | None) -> None:
        """Use this channel of a VM from now on; None: it has none."""
        if link is None:
            self._links.pop(uuid, None)
        else:
            self._links[uuid] = link

    def ask(self, uuid: str, verb: str, **values: object) -> None:
        """Have a helper carry out a request; of several for one VM, one after the other."""
        link = self._links.get(uuid)
        if link is None or uuid not in self._reports:
            raise no_helper(uuid if link is None else link.vm.name, verb)
        answer = link.ask(next(self._numbers), {"verb": verb, **values})
        if answer is None:
            raise Busy(
                f"the helper in {link.vm.name} did not answer within {ANSWER_SECONDS:g} s ({verb})",
                hint=f"vgpuctl show-vm {shlex.quote(link.vm.name)} shows when it reported last; try again",
                vm=link.vm.name,
            )
        if answer.error is not None:
            raise Refused(f"the helper in {link.vm.name} refused {verb}: {answer.error}", vm=link.vm.name, verb=verb)


class HelperWatch:
    """Holds the channel of each running VM of one host."""

    def __init__(self, host: Host, channels: GuestChannels, helpers: AgentGuestHelpers, events: EventLog) -> None:
        self._host = host
        self._channels = channels
        self._helpers = helpers
        self._events = events
        self._links: dict[str, _Link] = {}
        self._retry: dict[str, float] = {}
        """By the uuid of a VM whose channel could not be opened, when to try again; infinity: not while it runs."""
        self._lock = Lock()
        self._on_change: Callable[[], None] = _ignore

    async def run(self) -> None:
        """Hold the channels until cancelled: look after each change of who is logged on, and now and then."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(changed.set)

        self._on_change = wake
        try:
            while True:
                changed.clear()
                try:
                    await asyncio.to_thread(self.check)
                except Exception as error:  # noqa: BLE001 - the next look may succeed
                    log.warning("the helpers in guests cannot be read: %s", error)
                await asyncio.sleep(PAUSE_SECONDS)
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), LOOK_SECONDS - PAUSE_SECONDS)
        finally:
            self._on_change = _ignore
            await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Close all channels; the reports stay for the commands that read them."""
        with self._lock:
            for uuid, link in self._links.items():
                self._helpers.set_link(uuid, None)
                if link.channel is not None:
                    link.channel.close()
            self._links.clear()
            self._channels.close()

    def check(self) -> None:
        """Open and close channels, publish what changed, and write the reports."""
        with self._lock:
            self._check()

    def _check(self) -> None:
        snapshot = observe(self._host, SCOPE)
        if not snapshot.hypervisor.available:
            return
        running = {vm.uuid: vm for vm in snapshot.vms if vm.state not in NOT_RUNNING_STATES}
        for uuid in [uuid for uuid, link in self._links.items() if uuid not in running or link.reason is not None]:
            self._drop(uuid)
        self._helpers.remove_others(running)
        self._retry = {uuid: time for uuid, time in self._retry.items() if uuid in running}
        now = self._host.clock.monotonic()
        for uuid, vm in running.items():
            if uuid not in self._links and self._retry.get(uuid, now) <= now:
                self._open(vm, now)
        for uuid, link in self._links.items():
            link.vm = running[uuid]
            self._look_at(link, now)

    def _open(self, vm: Vm, now: float) -> None:
        link = _Link(vm, self._host.clock, lambda: self._on_change())
        try:
            link.channel = self._channels.open(vm.uuid, CHANNEL, on_data=link.receive, on_end=link.end)
            link.send({"verb": "report"})
        except VgpuctlError as error:
            code = error.facts.get("libvirt_code")
            self._retry[vm.uuid] = float("inf") if code == _NO_CHANNEL else now + RETRY_SECONDS
            if code == _TAKEN:
                log.warning("another program holds the channel to the helper in %s: %s", vm.name, error)
            elif code != _NO_CHANNEL:
                log.warning("the channel to the helper in %s cannot be opened: %s", vm.name, error)
            if link.channel is not None:
                link.channel.close()
            return
        self._links[vm.uuid] = link
        self._helpers.set_link(vm.uuid, link)

    def _drop(self, uuid: str) -> None:
        link = self._links.pop(uuid)
        self._helpers.set_link(uuid, None)
        if link.channel is not None:
            link.channel.close()
        self._forget(link, link.reason or "the VM does not run any more")

    def _forget(self, link: _Link, reason: str) -> None:
        """Take what a helper said for nothing any more."""
        if link.published is not None:
            self._publish(EventType.GUEST_HELPER_LOST, link, reason)
        link.report = link.published = None
        self._helpers.remove(link.vm.uuid)

    def _look_at(self, link: _Link, now: float) -> None:
        self._report_bad_lines(link)
        if link.is_paused and link.channel is not None:
            link.is_paused = False
            link.channel.resume()
        report = link.report
        if report is None:
            return
        if self._host.clock.now() - report.seen > SILENT_SECONDS:
            self._forget(link, f"it has said nothing for {SILENT_SECONDS:g} s")
            return
        if report is not link.written:
            self._helpers.write(link.vm.uuid, report)
            link.written = report
        if link.published is None:
            self._publish(EventType.GUEST_HELPER_UP, link, f"version {report.helper}")
            self._publish_users(link, report)
        elif _users(link.published) != _users(report):
            link.changes = [time for time in link.changes if now - time < BUSY_SECONDS]
            if len(link.changes) < BUSY_CHANGES:  # else it changes all the time
                link.changes.append(now)
                self._publish_users(link, report)

    def _report_bad_lines(self, link: _Link) -> None:
        """Publish once that a guest sends what is no report."""
        bad, dropped = link.bad_lines, link.lines.dropped
        if (bad or dropped) and not link.has_complained:
            link.has_complained = True
            reason = f"of what it sent {bad} lines are no reports, {dropped} are too long or too many"
            self._publish(EventType.GUEST_HELPER_BAD, link, reason)

    def _publish_users(self, link: _Link, report: GuestReport) -> None:
        link.published = report
        number = None if report.users is None else len(report.users)
        reason = "not known" if number is None else f"{number} logged on" if number else "nobody logged on"
        self._publish(EventType.GUEST_USERS, link, reason)

    def _publish(self, kind: EventType, link: _Link, reason: str) -> None:
        self._events.publish(kind, vm=link.vm.name, vm_uuid=link.vm.uuid, reason=shorten_reason(reason))


def _ignore() -> None:
    """Nobody waits for a change."""


def _users(report: GuestReport) -> object:
    """Return who is logged on, and whether connected; idle times are no change."""
    return None if report.users is None else [(user.user, user.state) for user in report.users]
