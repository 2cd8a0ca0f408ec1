# SPDX-License-Identifier: Apache-2.0
"""Another program starts, destroys or undefines a VM meanwhile: only what belongs to a VM that is off is undone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import EVERYTHING
from tests.command_cases import CASES
from tests.faults import CHANGING, Watch, error_of
from tests.hosts import SimulatedHost, create, delete, open_sim_host, picture, run_reconcile
from tests.outside.cases import HOSTS, all_cases, asked, empty, two_commands, with_vm
from tests.outside.trial import Trials, sampled
from tests.unit.cli.command_tree import has_dry_run
from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.errors import InUse, PartlyApplied
from vgpuctl.model.vm import RecordState
from vgpuctl.ports.host import Host

SEED, EACH = 14, 60 if EVERYTHING else 24
STARTED = "another program started VM vm"


def test_every_command_that_changes_a_vm_has_a_case() -> None:
    of_vms = {name for name, case in CASES.items() if has_dry_run(name) and case.words.startswith("{")}
    assert of_vms - {case.command.split()[0] for case in all_cases()} == set()


@pytest.mark.parametrize("kind", HOSTS)
def test_whatever_another_program_does_meanwhile_nothing_of_a_running_vm_goes(tmp_path: Path, kind: str) -> None:
    cases = [case for case in all_cases() if case.kind == kind]
    trials = [Trials(case, tmp_path / str(number)) for number, case in enumerate(cases)]
    drawn = sampled(trials, EACH, SEED)
    assert len(drawn) == EACH
    results = [each.run(instant) for each, instant in drawn]
    assert {r.where: (r.status, r.error, r.wrong) for r in results if r.wrong} == {}
    assert sum(r.effective for r in results) >= EACH / 2


def test_nothing_leaks_when_another_vgpuctl_works_on_a_vm_of_a_gpu_that_is_being_changed(tmp_path: Path) -> None:
    trials = [Trials(case, tmp_path / str(number)) for number, case in enumerate(two_commands())]
    drawn = sampled(trials, 3 * len(trials), SEED, CHANGING)
    results = [each.run(instant) for each, instant in drawn]
    assert {r.where: (r.status, r.error, r.wrong) for r in results if r.wrong} == {}
    assert {r.effective for r in results} == {True, False}


def started_before(host: SimulatedHost, call: str, ports: Host | None = None) -> Host:
    """Return ports where another program starts the VM before the first such call."""
    other_host, seen = open_sim_host(host.directory, host.scenario), []

    def begin(number: int, name: str, args: tuple[Any, ...]) -> None:
        seen.extend([name] if name == call else [])
        if name == call and len(seen) == 1:
            other_host.sim.hypervisor.start(other_host.sim._core.read_state().uuids_by_name["vm"])

    return Watch(before=begin).watch(ports or host.ports)


def read_record(host: SimulatedHost) -> Any:
    """Return the VM's record, and check that every disk it names exists."""
    result = host.ports.hypervisor.find_domain("vm")
    assert result is not None
    record = parse_domain(result.xml, result.state, host.ports.machine_id).record
    assert record is not None
    assert {d.path for d in record.disks} <= set(picture(host).files)
    return record


@pytest.mark.parametrize("kind", HOSTS)
def test_a_new_vm_that_another_program_starts_first_is_created_and_reported(tmp_path, kind):
    host = empty(tmp_path, kind)
    done = create(started_before(host, "hypervisor.start"), asked(kind))
    assert (done.changed, done.data.state) == (True, "running")
    assert STARTED in done.warnings
    assert read_record(host).state is RecordState.READY
    assert not run_reconcile(host.again().ports, dry_run=True).data.findings


def half_made(directory: Path) -> tuple[SimulatedHost, PartlyApplied]:
    """Return a host whose VM another program started before its record could be written as ready, which failed."""
    host = empty(directory, "sriov")

    def fail(number: int, call: str, args: tuple[Any, ...]) -> None:
        if call == "hypervisor.set_record":
            raise error_of(call)

    with pytest.raises(PartlyApplied) as raised:
        create(started_before(host, "hypervisor.set_record", Watch(before=fail).watch(host.ports)), asked("sriov"))
    return host.again(), raised.value


def test_of_a_vm_that_runs_nothing_is_undone_when_its_creation_fails(tmp_path):
    host, error = half_made(tmp_path)
    assert error.left[0] == "VM vm is running: nothing of it is undone"
    assert error.undone == []
    assert picture(host).running
    run_reconcile(host.ports)
    assert read_record(host).state is RecordState.READY


def test_reconcile_does_not_call_a_vm_ready_whose_disk_is_gone(tmp_path):
    host, _ = half_made(tmp_path)
    disk = read_record(host).disks[0]
    host.ports.storage.remove_volume(disk.pool, disk.volume)
    for _ in range(2):
        (result,) = run_reconcile(host.ports).data.findings
        assert disk.path in result.action
        assert result.action.startswith("nothing while it is not off")
    assert picture(host).running
    delete(host.ports, "vm")
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


def test_a_vm_started_before_its_device_is_released_is_refused_with_a_hint(tmp_path: Path) -> None:
    host = with_vm(tmp_path, "vendor-vf", on=True, reserve="running")
    host.sim.hypervisor.shutdown(host.sim._core.read_state().uuids_by_name["vm"])
    host = host.again()
    had = picture(host).types
    looked: list[str] = []

    def begin(number: int, call: str, args: tuple[Any, ...]) -> None:
        looked.extend([call] if call == "hypervisor.find_domain" else [])
        if looked == [call]:
            host.sim.hypervisor.start(host.sim._core.read_state().uuids_by_name["vm"])

    with pytest.raises(InUse, match="VM vm is running") as raised:
        run_reconcile(Watch(after=begin).watch(host.ports))
    assert raised.value.hint == "vgpuctl stop-vm vm, then run the command again"
    assert picture(host).types == had
