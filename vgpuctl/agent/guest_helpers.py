# SPDX-License-Identifier: Apache-2.0
"""The agent's side of the helpers in guests: it holds the channel of each running VM, and keeps what helpers report.

    helpers = AgentGuestHelpers(ports.guest_reports)    # for the calls of the agent: what helpers report and carry out
    watch = HelperWatch(ports, ports.guest_channels, helpers, events)
    await watch.run()                                   # until cancelled: opens and closes channels, publishes changes

A guest may send whatever it likes (`helper_link`). What it says is about the VM whose channel it is. An event says that
it changed who is logged on; where that changes all the time, there are at most `BUSY_CHANGES` in a minute. Events have
no names of users: everybody who may look at the host reads them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING

from vgpuctl.agent.events import EventLog, shorten_reason
from vgpuctl.agent.helper_link import HelperLink, users_of
from vgpuctl.agent.watcher import SCOPE
from vgpuctl.errors import Refused, VgpuctlError
from vgpuctl.model.event import EventType
from vgpuctl.model.guest_report import CHANNEL, GuestReport
from vgpuctl.model.vm import NOT_RUNNING_STATES, Vm
from vgpuctl.observe import observe
from vgpuctl.operations.guest_helper import no_helper

if TYPE_CHECKING:
    from vgpuctl.ports.guests import GuestChannels, GuestReports
    from vgpuctl.ports.host import Host

log = logging.getLogger("vgpuctl.agent")

LOOK_SECONDS = 5.0
PAUSE_SECONDS = 0.5
"""Between two looks, so that a storm of log-ons costs few of them."""
SILENT_SECONDS = 180.0
"""A helper reports at least once a minute."""
BUSY_CHANGES, BUSY_SECONDS = 5, 60.0
"""So many changes of who is logged on in a VM are published in so many seconds, at most."""
RETRY_SECONDS = 30.0
FLOOD_SECONDS, NO_CHANNEL_SECONDS = 60.0, 600.0
"""So long the channel stays closed of a guest that sends too much, and nobody tries one that a VM has not."""
_NO_CHANNEL = 1
"""libvirt's error number for "no such channel"."""


class AgentGuestHelpers:
    """What the helpers of this host's guests report, and what they are asked, for any thread.

    Implements `ports.guests.GuestHelpers`, and `ports.guests.GuestReports` for the agent's own calls. `files`: where
    other commands read the reports.
    """

    def __init__(self, files: GuestReports) -> None:
        self._files = files
        self._reports: dict[str, GuestReport] = {}
        self._links: dict[str, HelperLink] = {}
        self._numbers = count(1)
        self._is_new = True

    def read(self) -> Mapping[str, GuestReport]:
        """Return the last reports."""
        return dict(self._reports)

    def write(self, uuid: str, report: GuestReport) -> None:
        """Keep a VM's last report. That other commands cannot read it is only logged."""
        self._reports[uuid] = report
        with _logged(uuid):
            self._files.write(uuid, report)

    def remove(self, uuid: str) -> None:
        """Remove a VM's report."""
        self._reports.pop(uuid, None)
        with _logged(uuid):
            self._files.remove(uuid)

    def note_boot(self, uuid: str) -> None:
        """Take what a helper said for nothing: its guest boots again, and the channel stays open. From any thread."""
        link = self._links.get(uuid)
        if link is not None:
            link.forget_report()

    def remove_others(self, uuids: Collection[str]) -> None:
        """Remove the reports of all other VMs, those that an earlier agent has left, too."""
        written = self._files.read().keys() if self._is_new else ()
        self._is_new = False
        for uuid in {*self._reports, *written}.difference(uuids):
            self.remove(uuid)

    def set_link(self, uuid: str, link: HelperLink | None) -> None:
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
        if answer.error is not None:
            raise Refused(f"the helper in {link.vm.name} refused {verb}: {answer.error}", vm=link.vm.name, verb=verb)


class HelperWatch:
    """Holds the channel of each running VM of one host."""

    def __init__(self, host: Host, channels: GuestChannels, helpers: AgentGuestHelpers, events: EventLog) -> None:
        self._host = host
        self._channels = channels
        self._helpers = helpers
        self._events = events
        self._links: dict[str, HelperLink] = {}
        self._retry: dict[str, float] = {}
        """By the uuid of a VM without an open channel, when to try again."""
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

    def check(self) -> None:
        """Open and close channels, publish what changed, and write the reports."""
        with self._lock:
            self._check()

    def _check(self) -> None:
        snapshot = observe(self._host, SCOPE)
        if not snapshot.hypervisor.available:
            return
        running = {vm.uuid: vm for vm in snapshot.vms if vm.state not in NOT_RUNNING_STATES}
        now = self._host.clock.monotonic()
        self._retry = {uuid: time for uuid, time in self._retry.items() if uuid in running}
        for uuid, link in list(self._links.items()):
            if link.is_flooded:
                self._report_bad_lines(link)
                self._retry[uuid] = now + FLOOD_SECONDS
            if link.is_flooded or link.reason is not None or uuid not in running:
                self._drop(uuid)
        self._helpers.remove_others(running)
        for uuid, vm in running.items():
            if uuid not in self._links and self._retry.get(uuid, now) <= now:
                self._open(vm, now)
        for uuid, link in self._links.items():
            link.vm = running[uuid]
            self._look_at(link, now)

    def _open(self, vm: Vm, now: float) -> None:
        link = HelperLink(vm, self._host.clock, lambda: self._on_change())
        try:
            link.channel = self._channels.open(vm.uuid, CHANNEL, on_data=link.receive, on_end=link.end)
            link.send({"verb": "report"})
        except VgpuctlError as error:
            code = error.facts.get("libvirt_code")
            self._retry[vm.uuid] = now + (NO_CHANNEL_SECONDS if code == _NO_CHANNEL else RETRY_SECONDS)
            if code != _NO_CHANNEL:
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
        too_much = "it sent more than it may" if link.is_flooded else "the VM does not run any more"
        self._forget(link, link.reason or too_much)

    def _forget(self, link: HelperLink, reason: str) -> None:
        """Take what a helper said for nothing any more."""
        if link.published is not None:
            self._publish(EventType.GUEST_HELPER_LOST, link, reason)
        link.report = link.published = None
        self._helpers.remove(link.vm.uuid)

    def _look_at(self, link: HelperLink, now: float) -> None:
        self._report_bad_lines(link)
        report = link.report
        if report is None:
            if link.published is not None:
                self._forget(link, "its guest boots again")
            return
        if now - link.heard > SILENT_SECONDS:
            self._forget(link, f"it has said nothing for {SILENT_SECONDS:g} s")
            return
        if report is not link.written:
            self._helpers.write(link.vm.uuid, report)
            link.written = report
        if link.published is None:
            self._publish(EventType.GUEST_HELPER_UP, link, f"version {report.helper}")
            self._publish_users(link, report)
        elif users_of(link.published) != users_of(report):
            link.changes = [time for time in link.changes if now - time < BUSY_SECONDS]
            if len(link.changes) < BUSY_CHANGES:  # else it changes all the time
                link.changes.append(now)
                self._publish_users(link, report)

    def _report_bad_lines(self, link: HelperLink) -> None:
        """Publish once that a guest sends what is no report."""
        bad, dropped = link.bad_lines, link.lines.dropped
        if (bad or dropped or link.is_flooded) and not link.has_complained:
            link.has_complained = True
            reason = f"of what it sent {bad} lines are no reports, {dropped} are too long or too many"
            reason += "; it is not read for a minute" if link.is_flooded else ""
            self._publish(EventType.GUEST_HELPER_BAD, link, reason)

    def _publish_users(self, link: HelperLink, report: GuestReport) -> None:
        link.published = report
        number = None if report.users is None else len(report.users)
        reason = "not known" if number is None else f"{number} logged on" if number else "nobody logged on"
        self._publish(EventType.GUEST_USERS, link, reason)

    def _publish(self, kind: EventType, link: HelperLink, reason: str) -> None:
        self._events.publish(kind, vm=link.vm.name, vm_uuid=link.vm.uuid, reason=shorten_reason(reason))


@contextmanager
def _logged(uuid: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        log.warning("the report of the helper in VM %s cannot be written or removed: %s", uuid, error)


def _ignore() -> None:
    """Nobody waits for a change."""
