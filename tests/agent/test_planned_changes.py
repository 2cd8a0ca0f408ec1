# SPDX-License-Identifier: Apache-2.0
"""The agent makes what set-vm --when-off planned, once the VM is off, and says what it cannot make."""

from __future__ import annotations

from pathlib import Path

import vgpuctl
from tests.agent.acting_agent import HOST, Parts, on_host, states
from vgpuctl.agent.planned_changes import PlannedChanger
from vgpuctl.host.processes import HostProcesses
from vgpuctl.model.event import EventType
from vgpuctl.model.gpu import Backend
from vgpuctl.model.results.vms import VmResult
from vgpuctl.model.vm import Claim, DrainedVm
from vgpuctl.ports.host import for_another_operation


def changer_of(parts: Parts) -> PlannedChanger:
    return PlannedChanger(parts.ports, parts.operations, parts.events)


def vm(name: str = "a") -> VmResult:
    return vgpuctl.open_host(HOST).show_vm(name).data


def test_a_planned_change_is_made_when_the_vm_is_off_and_once(tmp_path: Path) -> None:
    with vgpuctl.open_host(HOST) as host:
        host.create_vm("a", profile="A100-8C")
        host.set_vm("a", profile="A100-4C", memory="6GiB", when_off=True)

    async def act(parts: Parts) -> None:
        changer = changer_of(parts)
        await changer.check()
        assert parts.done() == [], "it runs"
        vgpuctl.open_host(HOST).stop_vm("a")
        await changer.check()
        changed = vm()
        assert (changed.vgpus[0].profile, changed.memory_mib, changed.planned) == ("A100-4C", 6144, {})
        assert states() == {"a": "stopped"}
        await changer.check()
        assert [(done.call, done.vm) for done in parts.operations.list()] == [("set-vm", "a")]
        assert parts.published(EventType.PLANNED_CHANGE_FAILED) == []

    on_host(tmp_path, act)


def test_what_is_not_possible_is_told_once_and_tried_again_after_a_change(tmp_path: Path) -> None:
    with vgpuctl.open_host(HOST) as host:
        host.create_vm("a", profile="A100-8C")
        host.set_vm("a", profile="A100-20C", when_off=True)
        host.stop_vm("a")
        host.create_vm("b", profile="A100-8C")

    async def act(parts: Parts) -> None:
        changer = changer_of(parts)
        for _ in range(3):
            await changer.check()
        (event,) = [e for e in parts.events.since(None) if e.type is EventType.PLANNED_CHANGE_FAILED]
        assert (event.vm, len(parts.done())) == ("a", 1)
        assert "to plan nothing any more: vgpuctl set-vm a --when-off" in (event.reason or "")
        assert vm().planned == {"profile": "A100-20C"}
        assert vm().vgpus[0].profile == "A100-8C"
        with vgpuctl.open_host(HOST) as host:
            host.delete_vm("b")
            host.set_vm("a", labels={"team": "cad"})
        parts.clock.seconds += 60
        await changer.check()
        assert (vm().vgpus[0].profile, vm().planned) == ("A100-20C", {})

    on_host(tmp_path, act)


def test_while_somebody_works_on_the_vm_it_waits(tmp_path: Path) -> None:
    with vgpuctl.open_host(HOST) as host:
        host.create_vm("a", profile="A100-8C")
        host.set_vm("a", profile="A100-4C", when_off=True)
        host.stop_vm("a")

    async def act(parts: Parts) -> None:
        other = for_another_operation(parts.ports)
        other.operations.begin()
        gpu, function = "0000:3b:00.0", "0000:3b:00.7"
        claim = Claim(
            function, Backend.VENDOR_VF, gpu, function, "a", vm().uuid, None, None,
            HostProcesses().current_process(), "attach-vgpu a", operation=other.operations.current().id,
        )  # fmt: skip
        with other.claims.lock(1):
            other.claims.add(claim)
        note = DrainedVm(vm().uuid, gpu, claim.process, operation=claim.operation)
        changer = changer_of(parts)
        await changer.check()
        assert (len(parts.done()), vm().planned) == (1, {"profile": "A100-4C"}), "it was busy"
        await changer.check()
        assert len(parts.done()) == 1, "not so soon again"
        parts.clock.seconds += 60
        other.claims.add_drained_vm(note)
        await changer.check()
        assert (len(parts.done()), vm().planned) == (1, {"profile": "A100-4C"}), "it is to run again"
        other.claims.remove_drained_vm(note.vm_uuid)
        with other.claims.lock(1):
            other.claims.remove(claim.carrier, claim.vm_uuid)
        other.operations.end()
        await changer.check()
        assert (vm().vgpus[0].profile, vm().planned) == ("A100-4C", {})
        assert parts.published(EventType.PLANNED_CHANGE_FAILED) == [], "it was only for now"

    on_host(tmp_path, act)
