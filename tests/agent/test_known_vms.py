# SPDX-License-Identifier: Apache-2.0
"""What is known of each VM, from events and lists in any order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.agent.known_vms import KnownVms, VmStep
from vgpuctl.model.event import EventType
from vgpuctl.model.port_values import DomainEvent, DomainEventKind, DomainStatus
from vgpuctl.model.vm import VmState

KIND = DomainEventKind
NEW, STARTED, STOPPED = EventType.VM_DEFINED, EventType.VM_STARTED, EventType.VM_STOPPED
CRASHED, GONE = EventType.VM_CRASHED, EventType.VM_UNDEFINED
OFF = DomainStatus("vm", "u", VmState.STOPPED)
CRASHED_OFF = DomainStatus("vm", "u", VmState.STOPPED, off_reason="crashed")
RUNS = DomainStatus("vm", "u", VmState.RUNNING, run_id=7)


def event(kind: DomainEventKind, reason: str | None = None, run_id: int | None = None, name: str = "vm") -> DomainEvent:
    return DomainEvent(kind, name, "u", reason, run_id)


def read(known: KnownVms, *events: DomainEvent) -> list[tuple[EventType, str | None]]:
    steps = [known.read_event(each) for each in events]
    return [(step.type, step.reason) for step in steps if step is not None]


def knowing(*statuses: DomainStatus) -> KnownVms:
    known = KnownVms()
    assert known.read_list(statuses) == [], "the first list is no news"
    return known


def types(steps: list[VmStep]) -> list[EventType]:
    return [step.type for step in steps]


def test_a_life() -> None:
    assert read(
        knowing(),
        event(KIND.DEFINED, "added"),
        event(KIND.STARTED, "booted", 1),
        event(KIND.RESUMED, "unpaused"),
        event(KIND.CHANGED),
        event(KIND.SHUTDOWN, "guest"),
        event(KIND.STOPPED, "shutdown"),
        event(KIND.UNDEFINED, "removed"),
        event(KIND.CHANGED),
    ) == [(NEW, "added"), (STARTED, "booted"), (STOPPED, "shutdown"), (GONE, "removed")]


@pytest.mark.parametrize("reason", ["failed", "crashed"])
def test_qemu_that_ends_by_itself_is_a_crash(reason: str) -> None:
    assert read(knowing(RUNS), event(KIND.STOPPED, reason)) == [(CRASHED, reason)]


@pytest.mark.parametrize("reason", ["shutdown", "destroyed", "migrated", "saved", "from snapshot", None])
def test_other_ends_are_no_crash(reason: str | None) -> None:
    assert read(knowing(RUNS), event(KIND.STOPPED, reason)) == [(STOPPED, reason)]


def test_a_guest_that_panics_crashes_once_and_again_after_its_reset() -> None:
    panic = event(KIND.CRASHED, "panicked")
    assert read(knowing(RUNS), panic, event(KIND.STOPPED, "crashed")) == [(CRASHED, "panicked"), (STOPPED, "crashed")]
    known = knowing(RUNS)
    assert read(known, panic, event(KIND.RESUMED), panic) == [(CRASHED, "panicked")] * 2
    assert known.is_running("u")


def test_what_a_list_contains_already_is_no_news() -> None:
    known = knowing(RUNS)
    assert read(known, event(KIND.STARTED, "booted", 7)) == []
    assert read(known, event(KIND.STOPPED, "destroyed"), event(KIND.STOPPED, "destroyed")) == [(STOPPED, "destroyed")]
    assert read(known, event(KIND.STARTED, "booted", 8), event(KIND.STARTED, "booted", 9)) == [(STARTED, "booted")] * 2


def test_a_renamed_vm_is_the_same() -> None:
    known = knowing(OFF)
    events = (event(KIND.UNDEFINED, "renamed"), event(KIND.DEFINED, "renamed", name="other"))
    assert read(known, *events) == [(GONE, "renamed"), (NEW, "renamed")]
    assert known.read_list((DomainStatus("other", "u", VmState.STOPPED),)) == []


def test_a_vm_that_is_undefined_while_it_runs_is_known_until_it_stops() -> None:
    known = knowing(RUNS)
    assert read(known, event(KIND.UNDEFINED, "removed")) == [(GONE, "removed")]
    assert known.is_running("u")
    assert read(known, event(KIND.STOPPED, "failed")) == [(CRASHED, "failed")]
    assert known.is_running("u") is None
    assert known.read_list(()) == []


@pytest.mark.parametrize(
    ("before", "after", "steps"),
    [
        ((), (OFF,), [NEW]),
        ((), (RUNS,), [NEW, STARTED]),
        ((OFF,), (), [GONE]),
        ((RUNS,), (), [STOPPED, GONE]),
        ((OFF,), (OFF,), []),
        ((OFF,), (RUNS,), [STARTED]),
        ((RUNS,), (RUNS,), []),
        ((RUNS,), (OFF,), [STOPPED]),
        ((RUNS,), (CRASHED_OFF,), [CRASHED]),
        ((OFF,), (CRASHED_OFF,), []),
        ((RUNS,), (DomainStatus("vm", "u", VmState.STOPPED, off_reason="failed"),), [STOPPED]),
        ((RUNS,), (DomainStatus("vm", "u", VmState.RUNNING, 9),), [STOPPED, STARTED]),
        ((RUNS,), (DomainStatus("vm", "u", VmState.RUNNING),), []),
        ((RUNS,), (DomainStatus("vm", "u", VmState.CRASHED, 7),), [CRASHED]),
        ((RUNS,), (DomainStatus("new name", "u", VmState.PAUSED, 7),), [NEW]),
        ((DomainStatus("vm", "u", VmState.CRASHED, 7),), (CRASHED_OFF,), [STOPPED]),
    ],
)
def test_a_list_is_compared_with_what_is_known(
    before: tuple[DomainStatus, ...], after: tuple[DomainStatus, ...], steps: list[EventType]
) -> None:
    known = knowing(*before)
    assert types(known.read_list(after)) == steps
    assert known.read_list(after) == []


class Model:
    """VMs as libvirt has them; what happens while `connected` is False sends no event."""

    def __init__(self) -> None:
        self.vms: dict[str, int | None] = {}
        self.runs = 0

    def statuses(self) -> tuple[DomainStatus, ...]:
        return tuple(
            DomainStatus(uuid, uuid, VmState.STOPPED if run is None else VmState.RUNNING, run)
            for uuid, run in sorted(self.vms.items())
        )

    def act(self, step: str, uuid: str) -> DomainEvent | None:
        """Do what is possible, and return its event."""
        exists, run = uuid in self.vms, self.vms.get(uuid)
        if step == "define" and not exists:
            self.vms[uuid] = None
            return DomainEvent(KIND.DEFINED, uuid, uuid, "added")
        if step == "start" and exists and run is None:
            self.runs += 1
            self.vms[uuid] = self.runs
            return DomainEvent(KIND.STARTED, uuid, uuid, "booted", self.runs)
        if step in ("failed", "destroyed") and run is not None:
            self.vms[uuid] = None
            return DomainEvent(KIND.STOPPED, uuid, uuid, step)
        if step == "undefine" and exists and run is None:
            del self.vms[uuid]
            return DomainEvent(KIND.UNDEFINED, uuid, uuid, "removed")
        return None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("define", "start", "failed", "destroyed", "undefine")),
        st.sampled_from(("a", "b")),
        st.booleans(),
        st.booleans(),
    ),
    max_size=40,
)


@given(STEPS)
def test_after_each_return_of_libvirt_every_vms_last_step_is_its_state(
    steps: list[tuple[str, str, bool, bool]],
) -> None:
    """A step is lost or not, and after some a list comes, which events that were on their way may follow once more."""
    model, known = Model(), knowing()
    states: dict[str, EventType] = {}

    def take(*new: VmStep | None) -> None:
        states.update((step.vm_uuid, step.type) for step in new if step is not None)

    for name, uuid, is_lost, is_listed in steps:
        sent = model.act(name, uuid)
        if sent is not None and not is_lost:
            take(known.read_event(sent))
        if is_listed:
            take(*known.read_list(model.statuses()))
            take(known.read_event(sent) if sent is not None else None)
    take(*known.read_list(model.statuses()))
    for uuid, state in states.items():
        assert known.is_running(uuid) == (None if uuid not in model.vms else model.vms[uuid] is not None)
        if uuid not in model.vms:
            assert state is GONE
        else:
            assert (state is STARTED) == (model.vms[uuid] is not None), (uuid, state)
