# SPDX-License-Identifier: Apache-2.0
"""The log of events: order, merging, gaps, readers."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hosts import EagerClock
from vgpuctl.agent.events import COLLAPSE_SECONDS, KEPT_EVENTS, MAX_READERS, EventLog
from vgpuctl.errors import Busy
from vgpuctl.model.event import SEVERITIES, VM_STATE_TYPES, Event, EventType, Severity

WAIT_SECONDS = 30
ALWAYS = (EventType.VM_STARTED, EventType.VM_CRASHED)

FIVE_OCLOCK = 1_795_755_600.0
"""2026-11-27 05:00:00 UTC."""


def make(kept: int = KEPT_EVENTS) -> tuple[EventLog, EagerClock]:
    clock = EagerClock(FIVE_OCLOCK)
    return EventLog(clock, boot="b00t", kept=kept), clock


def vm(log: EventLog, event_type: EventType, number: int = 1) -> None:
    log.publish(event_type, vm=f"vm-{number}", vm_uuid=f"uuid-{number}")


def shown(events: tuple[Event, ...]) -> list[tuple[str, str, int]]:
    return [(event.id, event.type, event.count) for event in events]


def test_an_event_has_an_id_a_time_and_its_usual_severity() -> None:
    log, clock = make()
    log.publish(EventType.VM_CRASHED, vm="vdi-001", vm_uuid="u", reason="failed")
    clock.sleep(0.25)
    log.publish(EventType.GPU_XID, gpu="0000:3b:00.0", severity=Severity.ERROR)
    first, second = log.since(None)
    assert first == Event(
        "b00t-1", EventType.VM_CRASHED, Severity.ERROR, "2026-11-27T05:00:00.000Z", "vdi-001", "u", reason="failed"
    )
    assert (second.id, second.time, second.severity) == ("b00t-2", "2026-11-27T05:00:00.250Z", Severity.ERROR)
    assert log.last_id == "b00t-2"


def test_each_run_has_another_name() -> None:
    clock = EagerClock(FIVE_OCLOCK)
    assert EventLog(clock).boot != EventLog(clock).boot


def test_severities_are_of_types_that_exist() -> None:
    assert set(SEVERITIES) < set(EventType)


# ------------------------------------------------------------------- merging


def test_the_first_event_is_published_at_once_and_the_next_ones_merged() -> None:
    log, clock = make()
    for event_type in (
        EventType.VM_DEFINED,
        EventType.VM_DEFINED,
        EventType.VM_DEFINED,
        EventType.VM_STARTED,
        EventType.VM_CRASHED,
        EventType.VM_STARTED,
        EventType.VM_STOPPED,
        EventType.VM_UNDEFINED,
    ):
        vm(log, event_type)
    assert shown(log.since(None)) == [("b00t-1", "vm-defined", 1)]
    clock.sleep(COLLAPSE_SECONDS / 2)
    assert log.release() == COLLAPSE_SECONDS / 2
    clock.sleep(COLLAPSE_SECONDS / 2)
    assert log.release() == COLLAPSE_SECONDS
    assert shown(log.since("b00t-1")) == [
        ("b00t-2", "vm-defined", 2),
        ("b00t-3", "vm-started", 1),
        ("b00t-4", "vm-crashed", 1),
        ("b00t-5", "vm-started", 1),
        ("b00t-6", "vm-undefined", 2),
    ]
    clock.sleep(COLLAPSE_SECONDS)
    assert log.release() is None
    vm(log, EventType.VM_DEFINED)
    assert log.last_id == "b00t-7"


def test_one_vm_does_not_hold_up_another_nor_an_operation() -> None:
    log, _ = make()
    for number in (1, 2):
        vm(log, EventType.VM_STOPPED, number)
    for _ in range(2):
        log.publish(EventType.OPERATION_END, vm="vm-1", vm_uuid="uuid-1", operation="op")
    assert [event.type for event in log.since(None)] == ["vm-stopped", "vm-stopped", "operation-end", "operation-end"]


def test_a_storm_of_one_xid_is_one_event_with_a_count() -> None:
    log, clock = make()
    for _ in range(500):
        log.publish(EventType.GPU_XID, gpu="0000:3b:00.0", collapse="0000:3b:00.0 Xid 31")
    log.publish(EventType.GPU_XID, gpu="0000:3b:00.0", collapse="0000:3b:00.0 Xid 79")
    clock.sleep(COLLAPSE_SECONDS)
    log.release()
    assert [event.count for event in log.since(None)] == [1, 1, 499]


STEPS = st.lists(
    st.tuples(st.sampled_from(sorted(VM_STATE_TYPES)), st.integers(1, 3), st.sampled_from((0.0, 0.1, 0.3))),
    max_size=60,
)


@given(STEPS)
def test_no_burst_loses_a_start_a_crash_a_last_state_or_a_step(steps: list[tuple[EventType, int, float]]) -> None:
    log, clock = make()
    published: dict[str, list[EventType]] = defaultdict(list)
    for event_type, number, pause in steps:
        vm(log, event_type, number)
        published[f"vm-{number}"].append(event_type)
        clock.sleep(pause)
        log.release()
    log.release(everything=True)
    events = log.since(None)
    assert [event.id for event in events] == [f"b00t-{number}" for number in range(1, len(events) + 1)]
    for name, types in published.items():
        own = [event for event in events if event.vm == name]
        assert own[-1].type == types[-1]
        assert [e.type for e in own if e.type in ALWAYS] == [t for t in types if t in ALWAYS]
        assert sum(event.count for event in own) == len(types)
        remaining = iter(types)
        assert all(event.type in remaining for event in own), "in the order in which they happened"


def test_a_burst_from_several_threads_has_every_id_once() -> None:
    log, _ = make()

    def burst(number: int) -> None:
        for step in range(250):
            vm(log, (EventType.VM_STARTED, EventType.VM_STOPPED)[step % 2], number)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(burst, range(4)))
    log.release(everything=True)
    events = log.since(None)
    assert [event.id for event in events] == [f"b00t-{number}" for number in range(1, 1001)]
    assert Counter((event.vm, event.type) for event in events if event.type is EventType.VM_STARTED) == {
        (f"vm-{number}", EventType.VM_STARTED): 125 for number in range(4)
    }


def test_nothing_grows_with_the_number_of_events() -> None:
    log, clock = make()
    for number in range(10_000):
        vm(log, EventType.VM_STOPPED, number)
        clock.sleep(0.01)
        log.release()
    assert len(log.since(None)) == KEPT_EVENTS
    clock.sleep(COLLAPSE_SECONDS)
    assert log.release() is None


# ---------------------------------------------------------------- coming back


@given(st.integers(0, 20), st.integers(0, 25))
def test_a_reader_that_comes_back_gets_what_it_missed_or_a_gap(published: int, last: int) -> None:
    log, _ = make(kept=5)
    for _ in range(published):
        log.publish(EventType.CORDON)
    kept = [f"b00t-{number}" for number in range(max(1, published - 4), published + 1)]
    events = log.since(f"b00t-{last}")
    if max(0, published - 5) <= last <= published:
        assert [event.id for event in events] == [f"b00t-{number}" for number in range(last + 1, published + 1)]
    else:
        assert events[0].type is EventType.GAP
        assert [event.id for event in events[1:]] == kept
        assert log.since(events[0].id) == events[1:]


@pytest.mark.parametrize(
    "event_id", ["0ther-1", "b00t-", "b00t--1", "b00t-x", "b00t-\u0661", "", "-", "b00t-" + "9" * 99]
)
def test_an_id_of_another_run_or_none_at_all_is_a_gap(event_id: str) -> None:
    log, _ = make()
    log.publish(EventType.AGENT_STARTED)
    gap, started = log.since(event_id)
    assert (gap.id, gap.type, gap.severity) == ("b00t-0", EventType.GAP, Severity.WARNING)
    assert started.type is EventType.AGENT_STARTED


def test_a_thread_waits_for_the_next_event() -> None:
    log, _ = make()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(log.wait_after, log.last_id, WAIT_SECONDS)
        log.publish(EventType.AGENT_STARTED)
        assert shown(waiting.result(WAIT_SECONDS)) == [("b00t-1", "agent-started", 1)]
        waiting = threads.submit(log.wait_after, log.last_id, WAIT_SECONDS)
        log.close()
        assert waiting.result(WAIT_SECONDS) == ()
    assert log.wait_after(log.last_id, WAIT_SECONDS) == ()


# --------------------------------------------------------------------- readers


def test_a_reader_gets_what_is_published_from_other_threads_until_the_log_closes() -> None:
    log, _ = make()
    log.publish(EventType.AGENT_STARTED)

    async def follow() -> list[str]:
        with log.subscribe() as reader:
            publishing = asyncio.get_running_loop().run_in_executor(None, publish)
            ids = [event.id async for events in reader for event in events]
            await publishing
        return ids

    def publish() -> None:
        for number in range(500):
            log.publish(EventType.OPERATION_END, operation=str(number))
        log.close()

    assert asyncio.run(follow()) == [f"b00t-{number}" for number in range(2, 502)]
    assert log.reader_count == 0


def test_a_read_that_was_cancelled_loses_nothing() -> None:
    log, _ = make()

    async def follow() -> tuple[Event, ...]:
        reader = log.subscribe()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(), 0)
        reading = asyncio.ensure_future(reader.read())
        await asyncio.sleep(0)
        reading.cancel()
        log.publish(EventType.CORDON)
        return await asyncio.wait_for(reader.read(), WAIT_SECONDS)

    assert shown(asyncio.run(follow())) == [("b00t-1", "cordon", 1)]


def test_a_reader_that_is_behind_by_more_than_is_kept_gets_a_gap_and_is_closed() -> None:
    log, _ = make()

    async def follow() -> None:
        slow, quick = log.subscribe(), log.subscribe()
        for _ in range(KEPT_EVENTS):
            log.publish(EventType.CORDON)
        assert len(await quick.read()) == KEPT_EVENTS
        log.publish(EventType.CORDON)
        (gap,) = await slow.read()
        assert (gap.type, gap.id) == (EventType.GAP, log.last_id)
        assert await slow.read() == ()
        assert len(await quick.read()) == 1
        assert log.reader_count == 1

    asyncio.run(follow())


def test_a_reader_that_comes_back_too_late_gets_a_gap_and_goes_on() -> None:
    log, _ = make(kept=2)
    for _ in range(5):
        log.publish(EventType.CORDON)

    async def follow() -> None:
        for after in ("b00t-1", "0ther-5"):
            reader = log.subscribe(after)
            assert [event.type for event in await reader.read()] == ["gap", "cordon", "cordon"]
            log.publish(EventType.CORDON)
            assert [event.type for event in await reader.read()] == ["cordon"]
        assert [event.id for event in await log.subscribe("b00t-6").read()] == ["b00t-7"]

    asyncio.run(follow())


def test_so_many_readers_and_no_more() -> None:
    log, _ = make()

    async def follow() -> None:
        readers = [log.subscribe() for _ in range(MAX_READERS)]
        with pytest.raises(Busy, match="64 readers"):
            log.subscribe()
        readers[0].close()
        readers[0].close()
        log.subscribe().close()

    asyncio.run(follow())


def test_readers_of_a_loop_that_ended_are_forgotten() -> None:
    log, _ = make()

    async def leave() -> None:
        log.subscribe()

    asyncio.run(leave())
    assert log.reader_count == 1
    log.publish(EventType.CORDON)
    assert log.reader_count == 0


def test_the_logs_own_thread_publishes_what_was_merged() -> None:
    from vgpuctl.host.processes import HostClock

    log = EventLog(HostClock(), boot="b00t")
    log.start()
    for event_type in (EventType.VM_DEFINED, EventType.VM_STARTED, EventType.VM_STOPPED, EventType.VM_UNDEFINED):
        vm(log, event_type)
    last_id = "b00t-0"
    types: list[str] = []
    while types[-1:] != ["vm-undefined"]:
        events = log.wait_after(last_id, WAIT_SECONDS)
        types += [event.type for event in events]
        last_id = events[-1].id
    assert types == ["vm-defined", "vm-started", "vm-undefined"]
    vm(log, EventType.VM_DEFINED)
    log.close()
    assert log.since(last_id)[-1].type == "vm-defined"
