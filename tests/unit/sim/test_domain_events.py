# SPDX-License-Identifier: Apache-2.0
"""The simulated libvirt's events: every step in its order, whichever process did it."""

from __future__ import annotations

import queue

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.sim.hosts import MakeHost, domain_xml, uuid
from vgpuctl.model.port_values import DomainEvent, DomainEventKind, DomainStatus
from vgpuctl.model.vm import VmState
from vgpuctl.sim import SimHost
from vgpuctl.sim.domain_events import DomainHistory, SimWatch

WAIT_SECONDS = 30
SCENARIO = "gpus: [{model: A100}]\n"
KINDS = DomainEventKind


class Receiver:
    """What a host's watch reports."""

    def __init__(self, host: SimHost) -> None:
        self.reports: queue.SimpleQueue[object] = queue.SimpleQueue()
        put = self.reports.put
        self.watch: SimWatch = host.domain_events.watch(on_event=put, on_lost=put, on_back=put)

    def next(self) -> object:
        return self.reports.get(timeout=WAIT_SECONDS)

    def events(self, number: int) -> list[tuple[str, str | None]]:
        """The next events, as kind and reason."""
        events = [self.next() for _ in range(number)]
        assert all(isinstance(event, DomainEvent) for event in events), events
        return [(event.kind, event.reason) for event in events]


def live(host: SimHost, number: int) -> None:
    """Define, start, crash, start, stop by hand, and undefine a VM, without a pause."""
    vm, libvirt = uuid(number), host.hypervisor
    libvirt.define(domain_xml(f"vm-{number}", number))
    libvirt.start(vm)
    libvirt.crash(vm)
    libvirt.start(vm)
    libvirt.shutdown(vm)
    libvirt.start(vm)
    libvirt.destroy(vm)
    libvirt.undefine(vm)


LIFE = [
    (KINDS.DEFINED, "added"),
    (KINDS.STARTED, "booted"),
    (KINDS.STOPPED, "failed"),
    (KINDS.STARTED, "booted"),
    (KINDS.STOPPED, "shutdown"),
    (KINDS.STARTED, "booted"),
    (KINDS.STOPPED, "destroyed"),
    (KINDS.UNDEFINED, "removed"),
]


@pytest.mark.parametrize("other", [False, True], ids=["this process", "another"])
def test_every_step_of_a_life_is_reported(make: MakeHost, other: bool) -> None:
    host = make(SCENARIO)
    receiver = Receiver(host)
    assert receiver.next() == ()
    live(make(SCENARIO) if other else host, 1)
    assert receiver.events(len(LIFE)) == LIFE
    assert receiver.watch.answers()
    receiver.watch.close()
    assert not receiver.watch.answers()


def test_what_there_was_before_is_in_the_list(make: MakeHost) -> None:
    host = make(SCENARIO)
    host.hypervisor.define(domain_xml("vm-1", 1))
    host.hypervisor.define(domain_xml("vm-2", 2))
    host.hypervisor.start(uuid(2))
    receiver = Receiver(host)
    first, second = receiver.next()
    assert first == DomainStatus("vm-1", uuid(1), VmState.STOPPED)
    assert (second.state, second.run_id is None) == (VmState.RUNNING, False)
    host.hypervisor.destroy(uuid(2))
    host.hypervisor.start(uuid(2))
    receiver.next()
    again = receiver.next()
    assert again.run_id not in (None, second.run_id)
    receiver.watch.close()


def test_changes_of_a_domain_are_reported(make: MakeHost) -> None:
    host = make(SCENARIO)
    receiver = Receiver(host)
    receiver.next()
    host.hypervisor.define(domain_xml("vm-1", 1))
    host.hypervisor.redefine(uuid(1), domain_xml("vm-1", 1))
    host.hypervisor.set_record(uuid(1), '<vm xmlns="urn:vgpuctl:1"/>')
    host.hypervisor.start(uuid(1))
    host.hypervisor.reset(uuid(1))
    host.hypervisor.make_transient(uuid(1))
    host.hypervisor.destroy(uuid(1))
    assert receiver.events(7) == [
        (KINDS.DEFINED, "added"),
        (KINDS.DEFINED, "updated"),
        (KINDS.CHANGED, None),
        (KINDS.STARTED, "booted"),
        (KINDS.REBOOTED, None),
        (KINDS.UNDEFINED, "removed"),
        (KINDS.STOPPED, "destroyed"),
    ]
    receiver.watch.close()


def test_a_reboot_is_a_libvirt_that_went_and_came_back(make: MakeHost) -> None:
    host = make(SCENARIO)
    host.hypervisor.define(domain_xml("vm-1", 1))
    host.hypervisor.start(uuid(1))
    receiver = Receiver(host)
    receiver.next()
    make(SCENARIO).reboot()
    assert receiver.next() == "the host was rebooted"
    (status,) = receiver.next()
    assert status.state is VmState.STOPPED
    receiver.watch.close()


def test_a_reset_lists_again(make: MakeHost) -> None:
    host = make(SCENARIO)
    host.hypervisor.define(domain_xml("vm-1", 1))
    receiver = Receiver(host)
    assert len(receiver.next()) == 1
    make(SCENARIO).reset()
    assert receiver.next() == ()
    host.hypervisor.define(domain_xml("vm-2", 2))
    assert receiver.events(1) == [(KINDS.DEFINED, "added")]
    receiver.watch.close()


def test_a_libvirt_that_does_not_run_is_lost(make: MakeHost) -> None:
    receiver = Receiver(make(f"{SCENARIO}libvirt: {{running: false}}\n"))
    assert "Failed to connect socket" in str(receiver.next())
    receiver.watch.close()


def test_guests_that_stop_without_being_off(make: MakeHost) -> None:
    host = make(SCENARIO)
    host.hypervisor.define(domain_xml("vm-1", 1))
    host.hypervisor.start(uuid(1))
    history = DomainHistory((DomainStatus("vm-1", uuid(1), VmState.RUNNING, 1),))
    events = history.read([["halt", uuid(1), "paused"], ["halt", uuid(1), "crashed"], ["off", uuid(1)], ["hit", 3]])
    assert [(event.kind, event.reason, event.name) for event in events] == [
        (KINDS.SUSPENDED, "I/O error", "vm-1"),
        (KINDS.CRASHED, "panicked", "vm-1"),
        (KINDS.STOPPED, "shutdown", "vm-1"),
    ]


@given(st.lists(st.sampled_from(["define", "start", "crash", "destroy", "undefine"]), max_size=30))
def test_a_domains_events_alternate(steps: list[str]) -> None:
    """Whatever records come: nothing stops that does not run, and what is undefined was defined."""
    history = DomainHistory(())
    records = {
        "define": ["domain", "u", "vm", "<domain/>"],
        "start": ["run", "u", 7, [], {}],
        "crash": ["off", "u", "failed"],
        "destroy": ["off", "u", "destroyed"],
        "undefine": ["undefine", "u"],
    }
    running = defined = False
    for step in steps:
        kinds = [event.kind for event in history.read([records[step]])]
        if step in ("crash", "destroy"):
            assert kinds == ([KINDS.STOPPED] if running else [])
            running = False
        elif step == "undefine":
            assert kinds == ([KINDS.UNDEFINED] if defined else [])
            defined = False
        else:
            running, defined = running or step == "start", defined or step == "define"
            assert kinds == [KINDS.STARTED if step == "start" else KINDS.DEFINED]


def test_messages_of_the_simulated_kernel(make: MakeHost) -> None:
    host, other = make(SCENARIO), make(SCENARIO)
    host.kernel_messages.write("NVRM: Xid (PCI:0000:3b:00): 31, before")
    messages: queue.SimpleQueue[str] = queue.SimpleQueue()
    watch = host.kernel_messages.watch("NVRM: Xid", on_message=messages.put, on_lost=messages.put)
    other.kernel_messages.write("something else")
    other.kernel_messages.write("NVRM: Xid (PCI:0000:3b:00): 79, now")
    assert messages.get(timeout=WAIT_SECONDS) == "NVRM: Xid (PCI:0000:3b:00): 79, now"
    host.kernel_messages.path.write_text("")
    assert messages.get(timeout=WAIT_SECONDS) == "the log was emptied"
    assert watch.answers()
    watch.close()
    assert not watch.answers()
