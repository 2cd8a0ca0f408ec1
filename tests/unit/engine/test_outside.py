# SPDX-License-Identifier: Apache-2.0
"""Another program starts, destroys or undefines a VM meanwhile: nothing of a VM that is not off is ever undone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.faults import Watch, error_of
from tests.outside.cases import HOSTS, all_cases, asked, empty, with_vm
from tests.outside.trial import Trials, sampled
from tests.worlds import Host, create, delete, mend, open_host, picture
from vgpuctl.domain.parse import parse
from vgpuctl.errors import InUse, PartlyApplied
from vgpuctl.model.vm import PromiseState
from vgpuctl.model.world import World

SEED, EACH = 14, 60
STARTED = "VM vm was started by another program"


@pytest.mark.parametrize("kind", HOSTS)
def test_whatever_another_program_does_meanwhile_nothing_of_a_running_vm_goes(tmp_path: Path, kind: str) -> None:
    cases = [case for case in all_cases() if case.kind == kind]
    trials = [Trials(case, tmp_path / str(number)) for number, case in enumerate(cases)]
    drawn = sampled(trials, EACH, SEED)
    assert len(drawn) == EACH
    results = [each.run(instant) for each, instant in drawn]
    assert {r.where: (r.status, r.error, r.wrong) for r in results if r.wrong} == {}
    assert sum(r.effective for r in results) >= EACH / 2


def started_before(host: Host, call: str, world: World | None = None) -> World:
    """Return the world in which another program starts the VM before the first such call."""
    beside, seen = open_host(host.directory, host.scenario), []

    def begin(number: int, name: str, args: tuple[Any, ...]) -> None:
        seen.extend([name] if name == call else [])
        if name == call and len(seen) == 1:
            beside.sim.hypervisor.start(beside.sim._core.look().names["vm"])

    return Watch(before=begin).watch(world or host.world)


def record(host: Host) -> Any:
    """Return the VM's record, and see that every disk it names is there."""
    found = host.world.hypervisor.find_domain("vm")
    assert found is not None
    promise = parse(found.xml, found.state, host.world.machine_id).promise
    assert promise is not None
    assert {d.path for d in promise.disks} <= set(picture(host).files)
    return promise


@pytest.mark.parametrize("kind", HOSTS)
def test_a_new_vm_that_somebody_starts_first_is_made_all_the_same_and_the_command_says_so(tmp_path, kind):
    host = empty(tmp_path, kind)
    done = create(started_before(host, "hypervisor.start"), asked(kind))
    assert (done.changed, done.data["state"]) == (True, "running")
    assert STARTED in done.warnings
    assert record(host).state is PromiseState.READY
    assert not mend(host.again().world, dry_run=True).data["findings"]


def half_made(directory: Path) -> tuple[Host, PartlyApplied]:
    """Return a host whose VM another program started before its record could be written as ready, which failed."""
    host = empty(directory, "sriov")

    def fail(number: int, call: str, args: tuple[Any, ...]) -> None:
        if call == "hypervisor.set_promise":
            raise error_of(call)

    with pytest.raises(PartlyApplied) as raised:
        create(started_before(host, "hypervisor.set_promise", Watch(before=fail).watch(host.world)), asked("sriov"))
    return host.again(), raised.value


def test_of_a_vm_that_runs_nothing_is_undone_when_its_creation_fails(tmp_path):
    host, error = half_made(tmp_path)
    assert error.left[0] == "VM vm is running: nothing of it is undone"
    assert error.undone == []
    assert picture(host).running
    mend(host.world)
    assert record(host).state is PromiseState.READY


def test_reconcile_does_not_call_a_vm_ready_whose_disk_is_gone(tmp_path):
    host, _ = half_made(tmp_path)
    disk = record(host).disks[0]
    host.world.storage.remove_volume(disk.pool, disk.volume)
    for _ in range(2):
        (found,) = mend(host.world).data["findings"]
        assert disk.path in found["action"]
        assert found["action"].startswith("nothing while it is not off")
    assert picture(host).running
    delete(host.world, "vm")
    assert not picture(host).domains


@pytest.mark.parametrize("reserve", ["always", "running"])
@pytest.mark.parametrize("kind", ["sriov", "passthrough"])
def test_a_start_ends_well_whenever_somebody_else_was_faster(tmp_path: Path, kind: str, reserve: str) -> None:
    command = "start-vm" if reserve == "always" else "start-vm --reserve running"
    case = next(c for c in all_cases() if (c.kind, c.command) == (kind, command))
    trials = Trials(case, tmp_path)
    starts = [i for i in trials.instants() if i.action == "start"]
    results = [trials.run(instant) for instant in starts]
    assert {(r.where, r.status, r.wrong) for r in results if r.status or r.wrong} == set()
    assert sum(r.effective for r in results) >= 10


def test_who_starts_a_vm_that_was_to_give_back_its_device_is_told_how_to_stop_it(tmp_path: Path) -> None:
    host = with_vm(tmp_path, "vendor-vf", on=True, reserve="running")
    host.sim.hypervisor.shutdown(host.sim._core.look().names["vm"])
    host = host.again()
    had = picture(host).types
    looked: list[str] = []

    def begin(number: int, call: str, args: tuple[Any, ...]) -> None:
        looked.extend([call] if call == "hypervisor.find_domain" else [])
        if looked == [call]:
            host.sim.hypervisor.start(host.sim._core.look().names["vm"])

    with pytest.raises(InUse, match="VM vm is running") as raised:
        mend(Watch(after=begin).watch(host.world))
    assert raised.value.hint == "vgpuctl stop-vm vm, then run the command again"
    assert picture(host).types == had
