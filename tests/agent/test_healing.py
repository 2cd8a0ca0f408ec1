# SPDX-License-Identifier: Apache-2.0
"""What the agent fixes by itself: what two looks found, on a host that was read whole."""

from __future__ import annotations

from pathlib import Path

import pytest

import vgpuctl
from tests.agent.acting_agent import HOST, Parts, leak, on_host, scenario
from vgpuctl import library
from vgpuctl.agent.healing import (
    CONFIRM_SECONDS,
    MAX_FIXES,
    QUIET_SECONDS,
    ROUND_SECONDS,
    HealingDecision,
    HealingRounds,
    HostProblem,
)
from vgpuctl.model.event import EventType
from vgpuctl.value import replace

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
    assert rounds.decide((OTHER,)) == HealingDecision(next_seconds=CONFIRM_SECONDS), "the next round begins again"
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


def test_a_problem_is_not_gone_because_the_host_could_not_be_read_after_a_fix(tmp_path: Path) -> None:
    host = scenario(tmp_path, "faults: [{on: sysfs-write, match: '*/remove', errno: EIO}]", model="T4")
    leak("a", host, "T4-2Q")

    async def act(parts: Parts) -> None:
        await parts.round()
        assert parts.published(*PROBLEMS) == [(EventType.PROBLEM_BEGIN, None)]
        host_file = parts.ports.host_file
        assert host_file is not None
        before = host_file.read()
        parts.operations.on_end = lambda _: host_file.replace("version: 9\n", before)
        await parts.round()
        assert parts.published(*PROBLEMS) == [(EventType.PROBLEM_BEGIN, None)]

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
