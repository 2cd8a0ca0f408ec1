# SPDX-License-Identifier: Apache-2.0
"""What looks at a simulated host say that the look before did not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts import EagerClock, SimulatedHost, create, delete, open_sim_host, request, stop
from vgpuctl.agent.events import EventLog
from vgpuctl.agent.host_changes import HostChanges, HostStep, compare_snapshots
from vgpuctl.model.event import EventType
from vgpuctl.model.gpu import Ownership
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import ProcessId, StuckWrite
from vgpuctl.observe import ReadScope, observe
from vgpuctl.value import replace

GPU = "0000:3b:00.0"


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return open_sim_host(tmp_path)


def seen(host: SimulatedHost) -> Snapshot:
    return observe(host.ports, ReadScope())


def steps(before: Snapshot, after: Snapshot) -> list[HostStep]:
    return list(compare_snapshots(before, after))


def types(before: Snapshot, after: Snapshot) -> list[EventType]:
    return [step.type for step in compare_snapshots(before, after)]


def test_a_vgpu_is_made_and_removed(host: SimulatedHost) -> None:
    empty = seen(host)
    create(host.ports, request("A100-4C", name="vdi-001"))
    running = seen(host)
    (vm,) = running.vms
    made = HostStep(EventType.VGPU_MADE, GPU, "vdi-001", vm.uuid, "0")
    assert steps(empty, running) == [made]
    assert steps(running, running) == []
    stop(host.ports, "vdi-001")
    delete(host.ports, "vdi-001")
    assert steps(running, seen(host)) == [replace(made, type=EventType.VGPU_REMOVED)]


def test_a_vgpu_that_is_gone_under_its_running_vm_is_lost(host: SimulatedHost) -> None:
    create(host.ports, request("A100-4C", name="vdi-001"))
    before = seen(host)
    (vgpu,) = before.vgpus
    after = replace(before, vgpus=(replace(vgpu, present=False),))
    assert types(before, after) == [EventType.VGPU_LOST]
    assert types(before, replace(after, vms=())) == [EventType.VGPU_REMOVED]
    assert types(after, before) == [EventType.VGPU_MADE]
    assert types(before, replace(after, unreadable_devices=("sysfs cannot be read",))) == []


def test_a_leak_is_reported_once(host: SimulatedHost) -> None:
    empty = seen(host)
    create(host.ports, request("A100-4C", name="vdi-001"))
    running = seen(host)
    (vgpu,) = running.vgpus
    leaked = replace(running, vgpus=(replace(vgpu, owner=Ownership.LEAKED, reason="its VM is gone"),))
    assert types(empty, leaked) == [EventType.VGPU_MADE, EventType.LEAK]
    (leak,) = steps(running, leaked)
    assert (leak.type, leak.reason) == (EventType.LEAK, "its VM is gone")
    assert steps(leaked, leaked) == []
    for blind in (
        replace(leaked, hypervisor=replace(leaked.hypervisor, available=False)),
        replace(leaked, unreadable_claims=("x",)),
    ):
        assert steps(running, blind) == []
        assert types(blind, leaked) == [EventType.LEAK]


def test_a_gpu_that_does_not_answer_or_is_not_listed_is_lost_and_comes_back(host: SimulatedHost) -> None:
    there = seen(host)
    silent = replace(there, gpus=tuple(replace(gpu, is_lost=True) for gpu in there.gpus))
    gone = replace(there, gpus=())
    assert steps(there, silent) == [HostStep(EventType.GPU_LOST, GPU, reason="NVML does not answer for it")]
    assert steps(there, gone) == [HostStep(EventType.GPU_LOST, GPU, reason="it is no longer listed")]
    assert types(silent, gone) == types(silent, silent) == []
    assert types(gone, silent) == [EventType.GPU_LOST]
    for lost in (silent, gone):
        assert steps(lost, there) == [HostStep(EventType.GPU_BACK, GPU)]
    unreadable = replace(gone, unreadable_devices=("sysfs cannot be read",))
    assert steps(there, unreadable) == steps(unreadable, there) == []


def test_writes_that_hang_and_return(host: SimulatedHost) -> None:
    before = seen(host)
    write = StuckWrite(ProcessId(7, 8), GPU, "/sys/x/remove", "1")
    after = replace(before, stuck_writes=(write,))
    assert steps(before, after) == [HostStep(EventType.STUCK_BEGIN, GPU, reason="1 > /sys/x/remove")]
    assert types(after, before) == [EventType.STUCK_END]


def test_whole_looks_become_events_from_the_second_on(host: SimulatedHost) -> None:
    log = EventLog(EagerClock(), boot="b00t")
    changes = HostChanges(log)
    changes.read(seen(host))
    create(host.ports, request("A100-4C", name="vdi-001"))
    changes.read(replace(seen(host), partial=True))
    assert log.since(None) == ()
    for _ in range(2):
        changes.read(seen(host))
    (made,) = log.since(None)
    assert (made.type, made.vm, made.gpu, made.vgpu) == (EventType.VGPU_MADE, "vdi-001", GPU, "0")


def test_a_gpu_is_cordoned_and_no_longer(host: SimulatedHost) -> None:
    before = seen(host)
    assert host.ports.host_file is not None
    host.ports.host_file.replace(f"version: 1\ngpus: {{{GPU}: {{cordoned: true}}}}\n", None)
    cordoned = seen(host)
    assert steps(before, cordoned) == [HostStep(EventType.CORDON, GPU, reason="cordoned")]
    assert steps(cordoned, before) == [HostStep(EventType.CORDON, GPU, reason="uncordoned")]
    assert steps(cordoned, replace(before, host_file_problem="it is damaged")) == []
