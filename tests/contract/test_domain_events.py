# SPDX-License-Identifier: Apache-2.0
"""The contract of the domains' events: the same kinds and reasons, in the same order, as libvirt sends them.

A guest that starts also sends `resumed` on a real host, and one that is shut down `shutdown`; the agent reads neither.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest

from tests.contract.site import Site
from tests.contract.test_libvirt import DOMAIN, RECORD
from vgpuctl.agent.event_sources import EventSources
from vgpuctl.agent.events import EventLog
from vgpuctl.host.processes import HostClock
from vgpuctl.model.event import EventType
from vgpuctl.model.port_values import DomainEvent, DomainEventKind, DomainStatus
from vgpuctl.model.vm import VmState

pytestmark = pytest.mark.forms("mdev-pf")
WAIT_SECONDS = 60
UNREAD = (DomainEventKind.RESUMED, DomainEventKind.SHUTDOWN)


class Watched:
    """What the site's watch reports about one domain."""

    def __init__(self, site: Site, uuid: str) -> None:
        self.uuid = uuid
        self.reports: queue.SimpleQueue[object] = queue.SimpleQueue()
        assert site.ports.domain_events is not None
        put = self.reports.put
        self.watch = site.ports.domain_events.watch(on_event=put, on_lost=put, on_back=put)

    def statuses(self) -> list[DomainStatus]:
        """The next list, without other domains."""
        while not isinstance(report := self.reports.get(timeout=WAIT_SECONDS), tuple):
            continue
        return [status for status in report if status.uuid == self.uuid]

    def next(self) -> tuple[str, str | None]:
        """The kind and reason of the next event."""
        while True:
            event = self.reports.get(timeout=WAIT_SECONDS)
            if isinstance(event, DomainEvent) and event.uuid == self.uuid and event.kind not in UNREAD:
                return event.kind, event.reason


@pytest.fixture
def watched(site: Site, uuid: str) -> Iterator[Watched]:
    """A watch that has had its list, in which the test's domain is not."""
    made = Watched(site, uuid)
    assert made.statuses() == []
    yield made
    made.watch.close()


def define(site: Site, uuid: str, memory_mib: int = 64) -> None:
    xml = DOMAIN.format(name="contract-events", uuid=uuid, devices="", cpu="")
    site.ports.hypervisor.define(xml.replace(">64<", f">{memory_mib}<"))


def test_a_definition_and_its_end(site: Site, uuid: str, watched: Watched) -> None:
    define(site, uuid)
    assert watched.next() == (DomainEventKind.DEFINED, "added")
    site.ports.hypervisor.redefine(uuid, site.domain(uuid).xml)
    assert watched.next() == (DomainEventKind.DEFINED, "updated")
    site.ports.hypervisor.set_record(uuid, RECORD)
    assert watched.next() == (DomainEventKind.CHANGED, None)
    site.ports.hypervisor.undefine(uuid)
    assert watched.next() == (DomainEventKind.UNDEFINED, "removed")


def test_a_start_and_a_stop_by_hand(site: Site, uuid: str, watched: Watched) -> None:
    define(site, uuid)
    assert watched.next() == (DomainEventKind.DEFINED, "added")
    for _ in range(2):
        site.ports.hypervisor.start(uuid)
        assert watched.next() == (DomainEventKind.STARTED, "booted")
        site.ports.hypervisor.destroy(uuid)
        assert watched.next() == (DomainEventKind.STOPPED, "destroyed")


def test_a_qemu_that_is_killed_is_stopped_because_it_failed(site: Site, uuid: str, watched: Watched) -> None:
    define(site, uuid)
    site.ports.hypervisor.start(uuid)
    site.kill_guest(site.domain(uuid))
    assert [watched.next() for _ in range(3)] == [
        (DomainEventKind.DEFINED, "added"),
        (DomainEventKind.STARTED, "booted"),
        (DomainEventKind.STOPPED, "failed"),
    ]


def test_a_list_names_what_runs_with_another_number_after_each_start(site: Site, uuid: str) -> None:
    define(site, uuid)
    numbers = []
    for _ in range(2):
        site.ports.hypervisor.start(uuid)
        running = Watched(site, uuid)
        (status,) = running.statuses()
        running.watch.close()
        assert (status.name, status.state, status.off_reason) == ("contract-events", VmState.RUNNING, None)
        numbers.append(status.run_id)
        site.ports.hypervisor.destroy(uuid)
    assert None not in numbers
    assert numbers[0] != numbers[1]
    stopped = Watched(site, uuid)
    (status,) = stopped.statuses()
    stopped.watch.close()
    assert (status.state, status.run_id) == (VmState.STOPPED, None)


def test_why_a_domain_is_off_is_known_until_its_next_start(site: Site, uuid: str) -> None:
    define(site, uuid)
    assert site.domain(uuid).stop_reason is None
    site.ports.hypervisor.start(uuid)
    assert site.domain(uuid).stop_reason is None
    site.ports.hypervisor.destroy(uuid)
    assert site.domain(uuid).stop_reason == "destroyed"
    site.ports.hypervisor.redefine(uuid, site.domain(uuid).xml)
    site.ports.hypervisor.set_record(uuid, RECORD)
    assert site.domain(uuid).stop_reason == "destroyed", "another definition does not change it"


def test_the_agent_makes_the_same_events_of_it(site: Site, uuid: str) -> None:
    log = EventLog(HostClock())
    sources = EventSources(site.ports, log)
    sources.start()
    log.start()
    try:
        define(site, uuid)
        for end in (lambda: site.ports.hypervisor.destroy(uuid), lambda: site.kill_guest(site.domain(uuid))):
            site.ports.hypervisor.start(uuid)
            end()
        wanted = [EventType.VM_STARTED, EventType.VM_STOPPED, EventType.VM_STARTED, EventType.VM_CRASHED]
        types: list[EventType] = []
        last_id = f"{log.boot}-0"
        while types[-1:] != [EventType.VM_CRASHED]:
            events = log.wait_after(last_id, WAIT_SECONDS)
            assert events, types
            last_id = events[-1].id
            types += [event.type for event in events if event.vm_uuid == uuid and event.type in wanted]
        assert types == wanted
        assert sources.answers()
    finally:
        sources.close()
        log.close()
