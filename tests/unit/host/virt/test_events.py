# SPDX-License-Identifier: Apache-2.0
"""The events of libvirt's test driver, whose daemon cannot die: a connection's end is handed over by the test."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

import libvirt
import pytest

from vgpuctl.errors import HostCannot
from vgpuctl.host.virt import constants
from vgpuctl.host.virt.connection import LibvirtConnection, event_loop_answers
from vgpuctl.host.virt.events import EventInbox, LibvirtDomainEvents, NoEvent, WatchSettings, read_event
from vgpuctl.model.port_values import DomainEvent, DomainEventKind, DomainStatus
from vgpuctl.model.vm import VmState

FIRST = "00000000-0000-4000-8000-000000000001"
SECOND = "00000000-0000-4000-8000-000000000002"
URI = "test:///default"
"""All connections of a process to this address share one driver; to a file's address each has its own."""
WAIT_SECONDS = 30
XML = (
    f"<domain type='test'><name>second</name><uuid>{SECOND}</uuid><memory>8192</memory><vcpu>1</vcpu>"
    "<os><type>hvm</type></os></domain>"
)


class Receiver:
    """Keeps what a watch reports, in its order."""

    def __init__(self) -> None:
        self.reports: queue.SimpleQueue[object] = queue.SimpleQueue()

    def watch(self, events: LibvirtDomainEvents):
        put = self.reports.put
        return events.watch(on_event=put, on_lost=put, on_back=put)

    def next(self) -> object:
        return self.reports.get(timeout=WAIT_SECONDS)

    def next_of(self, uuid: str) -> DomainEvent:
        """The next lifecycle event of this domain: other tests may use the same driver at the same time."""
        while True:
            report = self.next()
            if isinstance(report, DomainEvent) and report.uuid == uuid and report.kind is not DomainEventKind.CHANGED:
                return report


class Breakable(LibvirtConnection):
    """A connection that the test ends: it calls what was registered for that, as libvirt does when its daemon dies."""

    def __init__(self) -> None:
        super().__init__(URI, lambda: False)
        self.refusals: list[str] = []
        self.opened = 0
        self.on_close = lambda reason: None

    @contextmanager
    def listen(self, function: str, failure: str, **facts: object) -> Iterator[libvirt.virConnect]:
        self.opened += 1
        if self.refusals:
            raise HostCannot(self.refusals.pop(0))
        with super().listen(function, failure, **facts) as connect:
            register = connect.registerCloseCallback

            def keep(callback, opaque):
                self.on_close = lambda reason: callback(connect, reason, opaque)
                return register(callback, opaque)

            connect.registerCloseCallback = keep
            yield connect


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
def driver() -> Iterator[libvirt.virConnect]:
    with LibvirtConnection(URI, lambda: False).call("open", "cannot open") as connect:
        yield connect


def test_a_life_is_reported_in_its_order(driver, receiver) -> None:
    watch = receiver.watch(LibvirtDomainEvents(LibvirtConnection(URI, lambda: False)))
    try:
        listed = receiver.next()
        assert [status.uuid for status in listed] == [driver.lookupByName("test").UUIDString()]
        domain = driver.defineXML(XML)
        domain.create()
        number = domain.ID()
        domain.destroy()
        domain.create()
        domain.shutdown()
        domain.undefine()
        assert [receiver.next_of(SECOND) for _ in range(6)] == [
            DomainEvent(DomainEventKind.DEFINED, "second", SECOND, "added"),
            DomainEvent(DomainEventKind.STARTED, "second", SECOND, "booted", number),
            DomainEvent(DomainEventKind.STOPPED, "second", SECOND, "destroyed"),
            DomainEvent(DomainEventKind.STARTED, "second", SECOND, "booted", number + 1),
            DomainEvent(DomainEventKind.STOPPED, "second", SECOND, "shutdown"),
            DomainEvent(DomainEventKind.UNDEFINED, "second", SECOND, "removed"),
        ]
        assert watch.answers()
    finally:
        watch.close()
    assert not watch.answers()


def test_a_changed_record_is_a_change(driver, receiver) -> None:
    watch = receiver.watch(LibvirtDomainEvents(LibvirtConnection(URI, lambda: False)))
    receiver.next()
    domain = driver.lookupByName("test")
    domain.setMetadata(constants.VIR_DOMAIN_METADATA_ELEMENT, "<a/>", "vgpuctl", "urn:test", 0)
    event = receiver.next()
    watch.close()
    assert event == DomainEvent(DomainEventKind.CHANGED, "test", domain.UUIDString())


def test_a_list_has_what_runs_and_why_others_are_off(host, receiver) -> None:
    watch = receiver.watch(LibvirtDomainEvents(LibvirtConnection(host, lambda: False)))
    assert receiver.next() == (DomainStatus("first", FIRST, VmState.RUNNING, run_id=1),)
    watch.close()


def test_after_a_loss_it_connects_again_and_lists(driver, receiver) -> None:
    connection = Breakable()
    watch = receiver.watch(LibvirtDomainEvents(connection, WatchSettings(first_pause_seconds=0.001)))
    try:
        assert isinstance(receiver.next(), tuple)
        connection.refusals += ["not yet", "still not"]
        connection.on_close(constants.VIR_CONNECT_CLOSE_REASON_EOF)
        assert receiver.next() == "libvirt's daemon ended"
        assert isinstance(receiver.next(), tuple)
        assert connection.opened == 4
        domain = driver.lookupByName("test")
        domain.suspend()
        assert receiver.next_of(domain.UUIDString()).kind is DomainEventKind.SUSPENDED
        domain.resume()
        connection.on_close(constants.VIR_CONNECT_CLOSE_REASON_KEEPALIVE)
        while (report := receiver.next()) != "libvirt's daemon does not answer":
            assert isinstance(report, DomainEvent)
    finally:
        watch.close()


def test_a_libvirt_that_is_not_there_is_reported_with_its_reason(tmp_path, receiver) -> None:
    uri = f"qemu+unix:///system?socket={tmp_path}/none"
    watch = receiver.watch(
        LibvirtDomainEvents(LibvirtConnection(uri, lambda: False), WatchSettings(first_pause_seconds=0.001))
    )
    assert f"{tmp_path}/none" in str(receiver.next())
    watch.close()


def test_a_connection_that_ended_is_opened_again_before_the_next_call(connection) -> None:
    with connection.call("virConnectGetVersion", "cannot read libvirt's version") as first:
        first.close()
    with connection.call("virConnectGetVersion", "cannot read libvirt's version") as second:
        assert second is not first


@pytest.mark.parametrize(
    ("event", "detail", "kind", "reason"),
    [
        (constants.VIR_DOMAIN_EVENT_STOPPED, 5, DomainEventKind.STOPPED, "failed"),
        (constants.VIR_DOMAIN_EVENT_STOPPED, 2, DomainEventKind.STOPPED, "crashed"),
        (constants.VIR_DOMAIN_EVENT_CRASHED, 0, DomainEventKind.CRASHED, "panicked"),
        (constants.VIR_DOMAIN_EVENT_CRASHED, 99, DomainEventKind.CRASHED, None),
        (99, 0, DomainEventKind.CHANGED, None),
    ],
)
def test_numbers_become_words(event, detail, kind, reason) -> None:
    assert read_event("vm", FIRST, 7, event, detail) == DomainEvent(kind, "vm", FIRST, reason)


def test_every_word_is_at_its_number() -> None:
    """Details have names such as VIR_DOMAIN_EVENT_STOPPED_FAILED."""
    spellings = {"I/O error": "IOERROR", "API error": "API_ERROR", "post-copy": "POSTCOPY"}
    spellings |= {"post-copy failed": "POSTCOPY_FAILED"}
    for kind, reasons in constants.EVENT_REASONS.items():
        for number, reason in enumerate(reasons):
            name = spellings.get(reason, reason.upper().replace(" ", "_"))
            value = getattr(libvirt, f"VIR_DOMAIN_EVENT_{kind.upper()}_{name}", None)
            assert value in (number, None), (kind, reason)
    for number, reason in enumerate(constants.SHUTOFF_REASONS):
        name = (reason or "unknown").upper().replace(" ", "_")
        assert getattr(libvirt, f"VIR_DOMAIN_SHUTOFF_{name}") == number


def event_number(number: int) -> DomainEvent:
    return DomainEvent(DomainEventKind.CHANGED, f"vm-{number}", FIRST)


def test_events_before_the_end_are_read_before_it() -> None:
    inbox = EventInbox(9)
    inbox.put(event_number(1))
    inbox.close("first reason")
    inbox.close("another")
    assert [inbox.get() for _ in range(3)] == [event_number(1), "first reason", "first reason"]


def test_events_that_do_not_fit_are_a_loss() -> None:
    inbox = EventInbox(size=3)
    for number in range(5):
        inbox.put(event_number(number))
    assert inbox.get() is NoEvent.LOST
    inbox.put(event_number(6))
    assert inbox.get(0) == event_number(6)
    assert inbox.get(0) is NoEvent.LATE
    inbox.close("the end")
    assert inbox.get() == "the end"


def test_all_domains_are_listed_once_more_some_time_after_a_connection(driver, receiver) -> None:
    connection = LibvirtConnection(URI, lambda: False)
    watch = receiver.watch(LibvirtDomainEvents(connection, WatchSettings(recheck_seconds=0.001)))
    assert receiver.next() == receiver.next()
    domain = driver.lookupByName("test")
    domain.suspend()
    assert receiver.next_of(domain.UUIDString()).kind is DomainEventKind.SUSPENDED
    domain.resume()
    watch.close()


def test_events_that_are_too_many_are_listed_instead(driver, receiver) -> None:
    """The receiver holds up the watch's thread until more events wait than there is room for."""
    go_on = Event()

    class Slow(Receiver):
        def watch(self, events: LibvirtDomainEvents):
            def wait(event: DomainEvent) -> None:
                assert go_on.wait(WAIT_SECONDS)
                self.reports.put(event)

            return events.watch(on_event=wait, on_lost=self.reports.put, on_back=self.reports.put)

    slow = Slow()
    watch = slow.watch(LibvirtDomainEvents(LibvirtConnection(URI, lambda: False), WatchSettings(max_waiting=4)))
    slow.next()
    domain = driver.lookupByName("test")
    for _ in range(5):
        domain.suspend()
        domain.resume()
    assert event_loop_answers(WAIT_SECONDS), "every callback has run"
    go_on.set()
    reports = [slow.next()]
    while not isinstance(reports[-1], tuple):
        reports.append(slow.next())
    assert reports[-2] == "events of VMs came faster than they were read"
    watch.close()
