# SPDX-License-Identifier: Apache-2.0
"""What the agent does by itself on a simulated host: it fixes what two looks found, and starts VMs after a boot."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import vgpuctl
from tests.agent.conftest import running
from tests.hosts import EagerClock
from vgpuctl import library
from vgpuctl.agent.boot_starts import FIRST_WAIT_SECONDS, LATEST_UPTIME_SECONDS, MAX_TRIES, BootStarter
from vgpuctl.agent.events import EventLog
from vgpuctl.agent.healing import (
    CONFIRM_SECONDS,
    MAX_FIXES,
    QUIET_SECONDS,
    ROUND_SECONDS,
    HealingDecision,
    HealingRounds,
    HostHealer,
    HostProblem,
)
from vgpuctl.agent.operation_store import OperationStore, StoredOperation
from vgpuctl.agent.operations import AgentOperations
from vgpuctl.errors import Failed, InvalidInput
from vgpuctl.model.documents import to_json_value
from vgpuctl.model.event import EventType
from vgpuctl.ports.devices import Sysfs
from vgpuctl.ports.host import Host
from vgpuctl.sim.host import open_host as open_sim
from vgpuctl.value import replace

HOST = "sim:a100-40"
PROBLEMS = (EventType.PROBLEM_BEGIN, EventType.PROBLEM_END)
LEAK = HostProblem("a vGPU is leaked", "remove it", has_fix=True)
OTHER = HostProblem("a VM is half made", "remove VM a", has_fix=True)
FOREIGN = HostProblem("a record is a copy", "nothing: it is a copy", has_fix=False)


# ------------------------------------------------------------------ decisions


def test_only_what_two_looks_found_is_fixed() -> None:
    rounds = HealingRounds()
    assert rounds.decide((LEAK, FOREIGN)) == HealingDecision(next_seconds=CONFIRM_SECONDS)
    second = rounds.decide((OTHER, LEAK, FOREIGN))
    assert (second.fix, second.confirmed, second.next_seconds) == ((LEAK,), (LEAK, FOREIGN), ROUND_SECONDS)
    assert rounds.decide((OTHER,)) == HealingDecision(next_seconds=CONFIRM_SECONDS), "the next round begins anew"
    assert rounds.decide(()) == HealingDecision(confirmed=())


def test_a_host_in_order_is_not_looked_at_twice() -> None:
    assert HealingRounds().decide(()) == HealingDecision(confirmed=(), next_seconds=ROUND_SECONDS)


def test_a_look_that_does_not_count_makes_the_one_before_it_worthless() -> None:
    rounds = HealingRounds()
    rounds.decide((LEAK,))
    rounds.forget()
    assert rounds.decide((LEAK,)).fix == ()
    assert rounds.decide((LEAK,)).fix == (LEAK,)


def test_a_vm_that_was_made_again_with_the_same_name_is_another_one() -> None:
    rounds = HealingRounds()
    rounds.decide((replace(OTHER, vm_uuid="1"),))
    assert rounds.decide((replace(OTHER, vm_uuid="2"),)).fix == ()


def test_nothing_is_fixed_while_there_are_many_problems() -> None:
    rounds = HealingRounds()
    some = tuple(replace(LEAK, what=f"leak {number}") for number in range(MAX_FIXES))
    for problems, fixes in ((some, some), ((*some, LEAK), ()), ((*some, FOREIGN), some)):
        rounds.decide(problems)
        decision = rounds.decide(problems)
        assert (decision.fix, decision.is_stopped) == (fixes, not fixes)


# ------------------------------------------------------------- on a host

Act = Callable[["Parts"], Awaitable[None]]


class Parts:
    """A simulated host with an agent's operations and events, and a clock that the test turns."""

    def __init__(self, directory: Path, host: str) -> None:
        self.clock = EagerClock()
        self.ports: Host = replace(library.open_ports(host), clock=self.clock)
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.events = EventLog(self.clock)
        self.operations = AgentOperations(library.opener(host), OperationStore(directory))
        self.returned: float | None = None
        self.healer = HostHealer(self.ports, self.operations, self.events, lambda: self.returned)
        self.starter = self.again()

    def again(self) -> BootStarter:
        """Return what starts VMs after a boot, as an agent that has just started has it."""
        return BootStarter(self.ports, self.operations, self.events, self.directory)

    async def round(self) -> None:
        """Take the two looks of a round of healing."""
        for _ in range(2):
            self.clock.seconds += await self.healer.check()

    def published(self, *types: EventType) -> list[tuple[EventType, str | None]]:
        """Return the events of these types with their VMs."""
        return [(event.type, event.vm) for event in self.events.since(None) if event.type in types]

    def done(self) -> list[str]:
        """Return the calls of the agent's operations, the oldest first."""
        return [stored.call for stored in reversed(self.operations.list())]


def on_host(directory: Path, act: Act, host: str = HOST) -> None:
    """Carry out `act` in a loop, with the parts of an agent that has run for a while."""

    async def run() -> None:
        parts = Parts(directory / "agent", host)
        parts.clock.seconds += QUIET_SECONDS
        await act(parts)
        await parts.operations.stop(0)

    asyncio.run(run())


def leak(name: str = "a", host: str = HOST, profile: str = "A100-4C") -> None:
    """Leave the vGPU of a VM that virsh undefined."""
    with vgpuctl.open_host(host) as opened:
        uuid = opened.create_vm(name, profile=profile, start=False).data.uuid
    assert uuid is not None
    library.open_ports(host).hypervisor.undefine(uuid)


def states(host: str = HOST) -> dict[str, str]:
    return {vm.name: str(vm.state) for vm in vgpuctl.open_host(host).list_vms().data}


def test_a_leaked_vgpu_is_removed_a_minute_after_it_was_first_seen(tmp_path: Path) -> None:
    leak()

    async def act(parts: Parts) -> None:
        assert await parts.healer.check() == CONFIRM_SECONDS
        assert parts.done() == []
        assert await parts.healer.check() == ROUND_SECONDS
        assert parts.done() == ["reconcile-host"]
        assert vgpuctl.open_host(HOST).list_vgpus().data == ()
        assert parts.published(EventType.PROBLEM_BEGIN) == []

    on_host(tmp_path, act)


@pytest.mark.parametrize("since", ["the agent's start", "libvirtd's return"])
def test_nothing_is_fixed_in_the_first_two_minutes(tmp_path: Path, since: str) -> None:
    leak()

    async def act(parts: Parts) -> None:
        if since == "the agent's start":
            parts.clock.seconds -= QUIET_SECONDS
        else:
            parts.returned = parts.clock.seconds
        assert await parts.healer.check() == QUIET_SECONDS
        await parts.healer.check()
        assert parts.done() == []
        parts.clock.seconds += QUIET_SECONDS
        await parts.round()
        assert parts.done() == ["reconcile-host"]

    on_host(tmp_path, act)


def test_host_yaml_turns_fixes_off_and_the_problems_are_still_events(tmp_path: Path) -> None:
    leak()
    host_file = library.open_ports(HOST).host_file
    assert host_file is not None
    host_file.replace("version: 1\nagent: {self_healing: false}\n", host_file.read())

    async def act(parts: Parts) -> None:
        await parts.round()
        await parts.round()
        assert parts.done() == []
        assert parts.published(EventType.PROBLEM_BEGIN, EventType.HEALING_STOPPED) == [(EventType.PROBLEM_BEGIN, None)]

    on_host(tmp_path, act)


def test_nothing_is_fixed_while_the_host_cannot_be_read_whole(tmp_path: Path) -> None:
    host = scenario(tmp_path, "faults: [{on: sysfs-readlink, match: '*/virtfn7', times: 100000, errno: EIO}]")
    leak("a", host)

    async def act(parts: Parts) -> None:
        for _ in range(4):
            await parts.round()
        assert parts.done() == []
        assert parts.published(EventType.HEALING_STOPPED, *PROBLEMS) == [(EventType.HEALING_STOPPED, None)]

    on_host(tmp_path, act, host)


def test_a_fix_that_fails_says_why(tmp_path: Path) -> None:
    host = scenario(tmp_path, "faults: [{on: sysfs-write, match: '*/remove', errno: EIO}]", model="T4")
    leak("a", host, "T4-2Q")

    async def act(parts: Parts) -> None:
        await parts.round()
        (event,) = [event for event in parts.events.since(None) if event.type in PROBLEMS]
        assert (parts.done(), "Input/output error" in str(event.reason)) == (["reconcile-host"], True)

    on_host(tmp_path, act, host)


def test_what_is_not_fixed_is_an_event_once_until_it_is_gone(tmp_path: Path) -> None:
    with vgpuctl.open_host(HOST) as host:
        uuid = host.create_vm("a", profile="A100-4C", start=False).data.uuid
    ports = library.open_ports(HOST)
    definition = ports.hypervisor.definition(str(uuid))
    start, end = definition.index("<hostdev"), definition.index("</hostdev>") + len("</hostdev>")
    ports.hypervisor.redefine(str(uuid), definition[:start] + definition[end:])  # another program took it out

    async def act(parts: Parts) -> None:
        for _ in range(2):
            await parts.round()
        assert parts.published(*PROBLEMS) == [(EventType.PROBLEM_BEGIN, "a")]
        with vgpuctl.open_host(HOST) as host:
            host.delete_vm("a")
        await parts.round()
        begin, end = (event for event in parts.events.since(None) if event.type in PROBLEMS)
        assert (end.type, end.vm) == (EventType.PROBLEM_END, "a")
        assert str(begin.reason).startswith(f"{end.reason}: nothing: put it back: ")
        assert parts.done() == []

    on_host(tmp_path, act)


def test_many_problems_are_one_event_and_none_is_fixed(tmp_path: Path) -> None:
    host = "sim:a16"
    for number in range(MAX_FIXES + 1):
        leak(f"a-{number}", host, "A16-2Q")

    async def act(parts: Parts) -> None:
        for _ in range(3):
            await parts.round()
            assert parts.published(EventType.HEALING_STOPPED, *PROBLEMS) == [(EventType.HEALING_STOPPED, None)]
        assert parts.done() == []
        with vgpuctl.open_host(host) as opened:
            opened.reconcile_host()
        await parts.round()
        leak("b", host, "A16-2Q")
        await parts.round()
        assert parts.done() == ["reconcile-host"]

    on_host(tmp_path, act, host)


def test_a_difference_from_host_yaml_is_told_when_it_comes_and_when_it_goes(tmp_path: Path) -> None:
    host_file = library.open_ports(HOST).host_file
    assert host_file is not None
    wanted = "version: 1\ngpus: {0000:3b:00.0: {scheduler: {policy: fixed_share}}}\n"
    before = host_file.read()
    host_file.replace(wanted, before)

    async def act(parts: Parts) -> None:
        await parts.healer.check()
        assert parts.published(EventType.DRIFT_BEGIN) == [], "it may be a change that is being made"
        for _ in range(2):
            await parts.round()
        assert parts.published(EventType.DRIFT_BEGIN, EventType.DRIFT_END) == [(EventType.DRIFT_BEGIN, None)]
        host_file.replace("version: 1\n", wanted)
        await parts.round()
        assert parts.published(EventType.DRIFT_END) == [(EventType.DRIFT_END, None)]

    on_host(tmp_path, act)


# --------------------------------------------------------------- after a boot


def reboot(host: str = HOST) -> None:
    open_sim(host.removeprefix("sim:")).reboot()


def scenario(directory: Path, text: str, model: str = "A100") -> str:
    """Return the name of a host with one GPU and this in its scenario."""
    path = directory / "host.yaml"
    path.write_text(f"version: 1\ngpus: [{{model: {model}}}]\n{text}\n")
    return f"sim:{path}"


def test_vms_that_should_run_are_started_after_a_boot_in_their_order(tmp_path: Path) -> None:
    with vgpuctl.open_host(HOST) as host:
        host.create_vm("late", profile="A100-4C", autostart="enabled", start=False)
        host.create_vm("early", profile="A100-4C", autostart="last-state", start_order=1)
        host.create_vm("stopped", profile="A100-4C", autostart="last-state")
        host.stop_vm("stopped")
        host.create_vm("other", profile="A100-4C")

    async def act(parts: Parts) -> None:
        assert not await parts.starter.check(), "the agent's first start is after no boot"
        assert states()["late"] == "stopped"
        reboot()
        assert not await parts.again().check(), "nothing is left to start"
        assert states() == {"early": "running", "late": "running", "other": "stopped", "stopped": "stopped"}
        names = [event.vm for event in parts.events.since(None) if event.type is EventType.AUTOSTART_FAILED]
        assert names == []
        begun = sorted(parts.operations.list(), key=lambda stored: stored.started or 0)
        assert [one.document for one in begun] == [None, None]
        first = to_json_value(parts.operations.find(begun[0].id).stored.document)
        assert first["data"]["name"] == "early"

    on_host(tmp_path, act)


def test_a_vm_that_somebody_stopped_since_the_boot_is_not_started_again(tmp_path: Path) -> None:
    with vgpuctl.open_host(HOST) as host:
        host.create_vm("a", profile="A100-4C", autostart="enabled")

    async def act(parts: Parts) -> None:
        await parts.starter.check()
        reboot()
        await parts.again().check()
        assert states() == {"a": "running"}
        with vgpuctl.open_host(HOST) as host:
            host.stop_vm("a")
        await parts.again().check()  # an agent that started again knows what the former one did
        assert states() == {"a": "stopped"}

    on_host(tmp_path, act)


def test_a_boot_unit_that_failed_is_an_event(tmp_path: Path) -> None:
    with vgpuctl.open_host(HOST) as host:
        host.create_vm("a", profile="A100-4C", autostart="enabled")
    host_file = library.open_ports(HOST).host_file
    assert host_file is not None

    async def act(parts: Parts) -> None:
        await parts.starter.check()
        reboot()
        host_file.replace("version: 1\ngpus: {0000:3b:00.0: {mode: wrong}}\n", host_file.read())
        with vgpuctl.open_host(HOST) as host, pytest.raises(Failed):
            host.restore_host()
        starter = parts.again()
        for _ in range(2):
            with pytest.raises(InvalidInput):
                await starter.check()
        (event,) = [event for event in parts.events.since(None) if event.type is EventType.RESTORE_FAILED]
        assert "mode" in str(event.reason)

    on_host(tmp_path, act)


def test_host_yaml_turns_the_starts_of_this_boot_off(tmp_path: Path) -> None:
    with vgpuctl.open_host(HOST) as host:
        host.create_vm("a", profile="A100-4C", autostart="enabled")
    host_file = library.open_ports(HOST).host_file
    assert host_file is not None
    off = "version: 1\nagent: {self_healing: false}\n"
    host_file.replace(off, host_file.read())

    async def act(parts: Parts) -> None:
        await parts.starter.check()
        reboot()
        assert not await parts.again().check()
        host_file.replace("version: 1\n", off)
        assert not await parts.again().check()
        assert states() == {"a": "stopped"}

    on_host(tmp_path, act)


def test_a_vm_whose_start_fails_is_tried_again_and_given_up_with_an_event(tmp_path: Path) -> None:
    host = scenario(tmp_path, "faults: [{on: start, match: a, code: 38, message: no power}]")
    with vgpuctl.open_host(host) as opened:
        opened.create_vm("a", profile="A100-4C", autostart="enabled", start=False)

    async def act(parts: Parts) -> None:
        await parts.starter.check()
        reboot(host)
        starter, tries = parts.again(), []
        while await starter.check():
            tries.append(len(parts.done()))
            parts.clock.seconds += FIRST_WAIT_SECONDS
        assert tries[:5] == [1, 2, 2, 3, 3], "each wait is twice as long as the one before"
        assert len(parts.done()) == MAX_TRIES
        (event,) = [event for event in parts.events.since(None) if event.type is EventType.AUTOSTART_FAILED]
        assert (event.vm, "no power" in str(event.reason)) == ("a", True)

    on_host(tmp_path, act, host)


@pytest.mark.parametrize("storage", ["local", "any"])
def test_a_vm_with_a_disk_on_a_server_starts_only_if_its_spec_says_so(tmp_path: Path, storage: str) -> None:
    host = scenario(tmp_path, "storage: {pools: [{name: default}, {name: far, path: /far, kind: netfs}]}")
    with vgpuctl.open_host(host) as opened:
        opened.create_vm(
            "a", profile="A100-4C", autostart="enabled", autostart_storage=storage, storage_pool="far", start=False
        )

    async def act(parts: Parts) -> None:
        await parts.starter.check()
        reboot(host)
        is_left = await parts.again().check()
        failed = parts.published(EventType.AUTOSTART_FAILED)
        if storage == "local":
            assert (states(host), is_left, failed) == ({"a": "stopped"}, True, [(EventType.AUTOSTART_FAILED, "a")])
        else:
            assert (states(host), failed) == ({"a": "running"}, [])

    on_host(tmp_path, act, host)


def test_a_damaged_file_is_set_aside_and_nothing_is_started(tmp_path: Path) -> None:
    with vgpuctl.open_host(HOST) as host:
        host.create_vm("a", profile="A100-4C", autostart="enabled", start=False)
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "boot-starts.json").write_text("{damaged")

    async def act(parts: Parts) -> None:
        assert not await parts.starter.check()
        content = json.loads((tmp_path / "agent" / "boot-starts.json").read_text())
        assert content["pending"] == []
        assert (tmp_path / "agent" / "boot-starts.damaged").read_text() == "{damaged"
        assert len(parts.published(EventType.AUTOSTART_FAILED)) == 1

    on_host(tmp_path, act)


class LateHost:
    """A host's files, with a time since the boot that the test sets."""

    def __init__(self, real: Sysfs) -> None:
        self._real, self.uptime = real, 60.0

    def read(self, path: str) -> str:
        return f"{self.uptime:.2f} 0.00" if path == "/proc/uptime" else self._real.read(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.mark.parametrize("late", ["at the first look", "while a VM waits"])
def test_hours_after_the_boot_nothing_is_started(tmp_path: Path, late: str) -> None:
    host = scenario(tmp_path, "faults: [{on: start, match: a, code: 38, message: no power, nth: 2}]")
    with vgpuctl.open_host(host) as opened:
        opened.create_vm("a", profile="A100-4C", autostart="enabled")

    async def act(parts: Parts) -> None:
        await parts.starter.check()
        reboot(host)
        files = LateHost(parts.ports.sysfs)
        parts.ports = replace(parts.ports, sysfs=files)
        starter = parts.again()
        if late == "while a VM waits":
            assert await starter.check(), "the first start fails"
        files.uptime = LATEST_UPTIME_SECONDS + 1
        parts.clock.seconds += FIRST_WAIT_SECONDS
        assert not await starter.check()
        assert states(host) == {"a": "stopped"}
        assert len(parts.published(EventType.AUTOSTART_FAILED)) == (late == "while a VM waits")

    on_host(tmp_path, act, host)


def test_a_request_to_stop_a_vm_is_obeyed_though_its_start_was_decided(tmp_path: Path) -> None:
    with vgpuctl.open_host(HOST) as host:
        host.create_vm("first", profile="A100-4C", autostart="last-state", start_order=1)
        host.create_vm("second", profile="A100-4C", autostart="last-state", start_order=2)

    async def act(parts: Parts) -> None:
        await parts.starter.check()
        reboot()

        def stop_second(stored: StoredOperation) -> None:
            if len(parts.done()) == 1:
                with vgpuctl.open_host(HOST) as host:
                    host.stop_vm("second")

        parts.operations.on_end = stop_second
        starter = parts.again()
        for _ in range(2):
            await starter.check()
        assert states() == {"first": "running", "second": "stopped"}
        assert not vgpuctl.open_host(HOST).show_vm("second").data.should_run

    on_host(tmp_path, act)


def test_a_vm_that_somebody_else_started_is_not_started_again(tmp_path: Path) -> None:
    host = scenario(tmp_path, "faults: [{on: start, match: a, code: 38, message: no power, nth: 2}]")
    with vgpuctl.open_host(host) as opened:
        uuid = opened.create_vm("a", profile="A100-4C", autostart="enabled").data.uuid

    async def act(parts: Parts) -> None:
        await parts.starter.check()
        reboot(host)
        starter = parts.again()
        assert await starter.check()
        parts.events.publish(EventType.VM_STARTED, vm="a", vm_uuid=uuid)  # and stopped, between two looks
        parts.clock.seconds += FIRST_WAIT_SECONDS
        assert not await starter.check()
        assert states(host) == {"a": "stopped"}

    on_host(tmp_path, act, host)


def test_a_file_that_cannot_be_written_stops_nothing_for_ever(tmp_path: Path) -> None:
    with vgpuctl.open_host(HOST) as host:
        host.create_vm("a", profile="A100-4C", autostart="enabled")

    async def act(parts: Parts) -> None:
        await parts.starter.check()
        reboot()
        starter, file = parts.again(), parts.directory / "boot-starts.json"
        file.rename(parts.directory / "kept")
        file.mkdir()
        with pytest.raises(OSError, match="boot-starts"):
            await starter.check()
        file.rmdir()
        (parts.directory / "kept").rename(file)
        await starter.check()
        assert states() == {"a": "running"}

    on_host(tmp_path, act)


def test_a_running_agent_starts_them(tmp_path: Path) -> None:
    with vgpuctl.open_host(HOST) as host:
        host.create_vm("a", profile="A100-4C", autostart="last-state")
    with running(HOST, tmp_path):
        pass
    reboot()
    with running(HOST, tmp_path) as agent:
        agent.connect().wait("a", event="running", timeout_seconds=60)
