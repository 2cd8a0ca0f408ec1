# SPDX-License-Identifier: Apache-2.0
"""What the agent makes of libvirt's events and the kernel's log."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event as ThreadEvent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hosts import EagerClock, SimulatedHost, create, delete, open_sim_host, request
from vgpuctl.agent.event_sources import EventSources, Xid, parse_xid
from vgpuctl.agent.events import EventLog
from vgpuctl.agent.gpu_losses import GpuLosses
from vgpuctl.agent.host_changes import HostChanges
from vgpuctl.host.processes import HostClock
from vgpuctl.model.event import Event, EventType, Severity
from vgpuctl.model.port_values import DomainEvent, DomainEventKind, DomainStatus
from vgpuctl.model.vm import VmState
from vgpuctl.observe import ReadScope, observe
from vgpuctl.value import replace

WAIT_SECONDS = 30
KIND = DomainEventKind
LOST_GPU = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


class Watched:
    """A port that reports what the test says, in the test's own thread."""

    def __init__(self) -> None:
        self.is_alive = True

    def watch(self, *_containing: str, **receivers: Callable[..., None]) -> Watched:
        self.receivers = receivers
        return self

    def answers(self) -> bool:
        return self.is_alive

    def close(self) -> None:
        self.is_alive = False

    def __getattr__(self, name: str) -> Callable[..., None]:
        return self.receivers[name]


class Agent:
    """The sources of a simulated host, with ports that the test speaks for."""

    def __init__(self, host: SimulatedHost) -> None:
        self.domains, self.kernel = Watched(), Watched()
        self.log = EventLog(EagerClock(), boot="b00t")
        self.changes = 0
        ports = replace(host.ports, domain_events=self.domains, kernel_messages=self.kernel)
        self.sources = EventSources(ports, self.log, on_change=self.count)
        self.sources.start()

    def count(self) -> None:
        self.changes += 1

    def events(self) -> list[Event]:
        """All events but the agent's start."""
        self.log.release(everything=True)
        started, *events = self.log.since(None)
        assert started.type is EventType.AGENT_STARTED
        return events


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return open_sim_host(tmp_path)


@pytest.fixture
def agent(host: SimulatedHost) -> Agent:
    return Agent(host)


def test_a_libvirt_that_goes_and_comes_back(agent: Agent) -> None:
    agent.domains.on_lost("libvirt does not answer")
    agent.domains.on_back((DomainStatus("vm", "u", VmState.RUNNING, 1),))
    agent.domains.on_event(DomainEvent(KIND.SUSPENDED, "vm", "u", "paused"))
    agent.domains.on_lost("libvirt's daemon ended")
    agent.domains.on_back((DomainStatus("vm", "u", VmState.STOPPED, off_reason="crashed"),))
    events = agent.events()
    assert [(event.type, event.vm, event.reason) for event in events] == [
        (EventType.LIBVIRT_LOST, None, "libvirt does not answer"),
        (EventType.LIBVIRT_BACK, None, None),
        (EventType.LIBVIRT_LOST, None, "libvirt's daemon ended"),
        (EventType.LIBVIRT_BACK, None, None),
        (EventType.VM_CRASHED, "vm", "crashed"),
    ]
    assert agent.changes == 5, "also what is no event changes what a look shows"


def test_a_list_without_a_loss_only_says_what_was_not_known(agent: Agent) -> None:
    for _ in range(2):
        agent.domains.on_back(())
    for _ in range(2):
        agent.domains.on_back((DomainStatus("vm", "u", VmState.STOPPED),))
    assert [event.type for event in agent.events()] == [EventType.VM_DEFINED]


def test_xids(agent: Agent) -> None:
    agent.kernel.on_message(LOST_GPU)
    for _ in range(3):
        agent.kernel.on_message("NVRM: Xid (PCI:0000:3B:00): 31, pid=1, name=x, MMU Fault")
    agent.kernel.on_message("NVRM: Xid (PCI:0000:3b:00): 48, DBE")
    agent.kernel.on_message("NVRM: Xid of no form that is known")
    agent.kernel.on_lost("the kernel overwrote messages")
    lost, fault, serious, gap, more = agent.events()
    assert (lost.type, lost.severity, lost.gpu) == (EventType.GPU_LOST, Severity.ERROR, "0000:3b:00.0")
    assert lost.reason == "Xid 79: pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    assert (fault.type, fault.severity, fault.count) == (EventType.GPU_XID, Severity.WARNING, 1)
    assert (serious.type, serious.severity) == (EventType.GPU_XID, Severity.ERROR)
    assert (gap.type, gap.reason) == (EventType.GAP, "the kernel overwrote messages")
    assert (more.reason, more.count) == (fault.reason, 2)
    assert agent.changes == 6


def test_a_lost_gpu_is_one_event_whoever_reports_it(host: SimulatedHost) -> None:
    agent, clock = Agent(host), EagerClock()
    agent.log.gpu_losses = GpuLosses(clock)
    whole, works = HostChanges(agent.log), observe(host.ports, ReadScope())
    lost = replace(works, gpus=tuple(replace(gpu, is_lost=True) for gpu in works.gpus))
    unreadable = replace(works, gpus=(), unreadable_devices=("sysfs cannot be read",))
    xid, no_answer = (EventType.GPU_LOST, "Xid 79"), (EventType.GPU_LOST, "NVML d")

    def reported() -> list[tuple[EventType, str]]:
        return [(event.type, (event.reason or "")[:6]) for event in agent.events()]

    whole.read(works)
    for _ in range(2):
        agent.kernel.on_message(LOST_GPU)
    whole.read(works)
    whole.read(lost)
    clock.sleep(3600)
    agent.kernel.on_message(LOST_GPU)
    assert reported() == [xid]
    whole.read(works)
    whole.read(lost)
    agent.kernel.on_message(LOST_GPU)
    assert reported() == [xid, (EventType.GPU_BACK, ""), no_answer]
    whole.read(unreadable)
    whole.read(works)
    agent.kernel.on_message(LOST_GPU)
    assert reported()[3:] == [xid]
    clock.sleep(61)
    agent.kernel.on_message(LOST_GPU)
    assert reported()[3:] == [xid, xid], "no look saw the former loss: this is another one"
    assert agent.changes == 6


@pytest.mark.parametrize(
    ("message", "xid"),
    [
        (LOST_GPU, Xid(79, "0000:3b:00.0", "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")),
        ("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 31, pid=12", Xid(31, "0000:01:00.0", "pid=12")),
        ("NVRM: Xid (0000:03:00): 13, Graphics SM", Xid(13, "0000:03:00.0", "Graphics SM")),
        ("[  12.5] NVRM: Xid (PCI:10000:01:00): 119", Xid(119, "10000:01:00.0", "")),
        ("NVRM: Xid (PCI:zz): 79, x", None),
        ("NVRM: Xid (PCI:0000:3b:00): many, x", None),
        ("NVRM: loading NVIDIA UNIX x86_64 Kernel Module", None),
        ("", None),
    ],
)
def test_a_message_is_parsed(message: str, xid: Xid | None) -> None:
    assert parse_xid(message) == xid


@given(st.text(max_size=80))
def test_no_message_breaks_it(text: str) -> None:
    for message in (
        text,
        f"NVRM: Xid (PCI:0000:3b:00): 79, {text}",
        f"NVRM: Xid ({text}): 79",
        f"{LOST_GPU[:-40]}{text}",
    ):
        parse_xid(message)


def test_a_long_text_is_shortened(agent: Agent) -> None:
    agent.kernel.on_message(f"NVRM: Xid (PCI:0000:3b:00): 31, {'x' * 9999}")
    (event,) = agent.events()
    assert len(event.reason or "") == 200


def test_the_sources_answer_while_every_watch_does(agent: Agent) -> None:
    assert agent.sources.answers()
    agent.kernel.is_alive = False
    assert not agent.sources.answers()
    agent.sources.close()
    assert not agent.domains.is_alive


def test_a_host_without_sources_has_none(host: SimulatedHost) -> None:
    log = EventLog(EagerClock())
    sources = EventSources(replace(host.ports, domain_events=None, kernel_messages=None), log)
    sources.start()
    assert sources.answers()
    assert [event.type for event in log.since(None)] == [EventType.AGENT_STARTED]
    sources.close()


def test_a_burst_of_1000_vm_events_ends_in_every_vms_state(agent: Agent) -> None:
    """Each VM's last event is what holds, and no start and no crash is missing."""
    choose = random.Random(30)
    agent.domains.on_back(tuple(DomainStatus(f"vm-{n}", f"u-{n}", VmState.STOPPED) for n in range(100)))
    runs: dict[str, int | None] = {f"u-{n}": None for n in range(100)}
    starts: dict[str, int] = defaultdict(int)
    crashes: dict[str, int] = defaultdict(int)
    last_types: dict[str, EventType] = {}
    for number in range(1000):
        uuid = choose.choice(sorted(runs))
        name = uuid.replace("u-", "vm-")
        if runs[uuid] is None:
            runs[uuid] = number
            agent.domains.on_event(DomainEvent(KIND.STARTED, name, uuid, "booted", number))
            starts[uuid] += 1
            last_types[uuid] = EventType.VM_STARTED
        else:
            runs[uuid] = None
            reason = choose.choice(("failed", "destroyed"))
            agent.domains.on_event(DomainEvent(KIND.STOPPED, name, uuid, reason))
            crashes[uuid] += reason == "failed"
            last_types[uuid] = EventType.VM_CRASHED if reason == "failed" else EventType.VM_STOPPED
    own: dict[str, list[EventType]] = defaultdict(list)
    agent.log.release(everything=True)
    for event in agent.log.since(None):
        own[event.vm_uuid or ""].append(event.type)
    for uuid, last_type in last_types.items():
        assert own[uuid][-1] is last_type
    assert agent.log.last_id == "b00t-1001", "starts, stops and crashes in turn: no two can be merged"
    assert {u: own[u].count(EventType.VM_STARTED) for u in starts} == starts
    assert {u: own[u].count(EventType.VM_CRASHED) for u in crashes} == crashes


@pytest.fixture
def followed(host: SimulatedHost) -> Iterator[tuple[SimulatedHost, EventLog]]:
    """A simulated host whose own watches feed a log; the first list has come."""
    listed = ThreadEvent()
    log = EventLog(HostClock())
    sources = EventSources(host.ports, log, on_change=listed.set)
    sources.start()
    log.start()
    assert listed.wait(WAIT_SECONDS)
    yield host, log
    sources.close()
    log.close()


def wait_for(log: EventLog, wanted: EventType) -> list[Event]:
    """All events up to the first of this type."""
    events: list[Event] = []
    last_id = f"{log.boot}-0"
    while not any(event.type is wanted for event in events):
        new = log.wait_after(last_id, WAIT_SECONDS)
        assert new, f"no {wanted}: {events}"
        events += new
        last_id = new[-1].id
    return events


def test_the_life_of_a_vm_on_the_simulated_host(followed: tuple[SimulatedHost, EventLog]) -> None:
    host, log = followed
    create(host.ports, request("A100-4C", name="vdi-001"))
    wait_for(log, EventType.VM_STARTED)
    host.sim.hypervisor.crash(host.ports.hypervisor.find_domain("vdi-001").uuid)
    crash = wait_for(log, EventType.VM_CRASHED)[-1]
    assert (crash.vm, crash.reason, crash.severity) == ("vdi-001", "failed", Severity.ERROR)
    delete(host.ports, "vdi-001")
    types = [event.type for event in wait_for(log, EventType.VM_UNDEFINED)]
    assert types[0] is EventType.AGENT_STARTED
    assert types[-1] is EventType.VM_UNDEFINED
    assert types.count(EventType.VM_STARTED) == types.count(EventType.VM_CRASHED) == 1


def test_a_gpu_that_is_lost_on_the_simulated_host(followed: tuple[SimulatedHost, EventLog]) -> None:
    host, log = followed
    host.sim.kernel_messages.write(LOST_GPU)
    lost = wait_for(log, EventType.GPU_LOST)[-1]
    assert lost.gpu == "0000:3b:00.0"
