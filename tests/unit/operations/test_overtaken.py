# SPDX-License-Identifier: Apache-2.0
"""Another command or program is faster: a command reports what it did alone, and undoes nothing of a VM that runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests import EVERYTHING
from tests.command_cases import AGENTS, CASES
from tests.faults import CHANGING, error_of
from tests.halted import elsewhere, reopen
from tests.hosts import SimulatedHost, context, create, delete, open_sim_host, picture, request, run_reconcile
from tests.layouts import FLEX, do, drained
from tests.meanwhile import on_call
from tests.outside.cases import HOSTS, all_cases, asked, empty, two_commands, with_vm
from tests.outside.trial import Trials, sampled
from tests.reserving_vms import record_of
from tests.schedulers import TWO_MS
from tests.unit.cli.command_tree import has_dry_run
from vgpuctl.errors import InUse, PartlyApplied
from vgpuctl.model.vm import RecordState, VmRecord
from vgpuctl.operations.apply import apply_host
from vgpuctl.operations.desired_state import read_desired_state
from vgpuctl.operations.diagnose import fix_problems
from vgpuctl.operations.gpu_scheduler import SchedulerRequest, set_scheduler
from vgpuctl.ports.host import Host


def overtaken(host, work):
    """Return ports before whose first lock another process does some work."""
    return on_call(host.ports, "claims.lock", lambda: elsewhere(lambda: work(reopen(host).ports)), nth=1)


@pytest.fixture
def leaked(tmp_path):
    """Return a host with what two VMs left that were undefined by hand."""
    host = open_sim_host(tmp_path, "mixed")
    for name in ("one", "two"):
        uuid = create(host.ports, request("A100-4C", name=name), start=False).data.uuid
        host.ports.hypervisor.undefine(uuid)
    return host.again()


def test_reconcile_reports_nothing_that_another_reconcile_did(leaked):
    done = run_reconcile(overtaken(leaked, run_reconcile))
    assert (done.changed, done.steps, done.data.findings) == (False, (), ())
    assert leaked.ports.claims.all() == ()


def test_reconcile_reports_what_it_did_of_several(leaked):
    claim = leaked.ports.claims.all()[0]

    def remove_one(ports):
        ports.sysfs.write(f"/sys/bus/pci/devices/{claim.function}/nvidia/current_vgpu_type", "0\n")
        ports.claims.remove(claim.carrier, claim.vm_uuid)

    done = run_reconcile(overtaken(leaked, remove_one))
    (finding,) = done.data.findings
    assert claim.function not in finding.what
    assert done.steps
    assert not [step for step in done.steps if claim.function in step]


def test_doctor_reports_what_it_fixed_and_not_what_it_offered(leaked):
    def confirm(_question, steps):
        assert steps
        elsewhere(lambda: run_reconcile(reopen(leaked).ports))

    done = fix_problems(leaked.ports, context(confirm=confirm), ())
    assert (done.changed, done.steps) == (False, ())


def test_a_setup_reports_only_the_vms_that_it_shut_down(tmp_path):
    host = drained(tmp_path)
    planned = do(host.ports, FLEX, "sriov", 6, drain=True, dry_run=True).steps
    assert {"shut down VM one", "shut down VM two"} <= {*planned}
    ports = overtaken(host, partial(delete, name="one"))
    done = do(ports, FLEX, "sriov", 6, drain=True).steps
    assert done == tuple(step for step in planned if "VM one" not in step)


def scheduled(directory):
    host = open_sim_host(directory)
    for name in ("one", "two"):
        create(host.ports, request("A100-4C", name=name))
    wanted = SchedulerRequest("0000:3b:00.0", TWO_MS, drain=True)
    return host, partial(set_scheduler, context=context(), request=wanted)


def applied(directory):
    host = drained(directory)
    desired = read_desired_state(host.ports, None, (f"gpus[{FLEX}].mode=sriov", f"gpus[{FLEX}].vfs=6"))
    return host, partial(apply_host, context=context(), desired=desired, drain=True)


@pytest.mark.parametrize("prepare", [scheduled, applied])
def test_a_drain_reports_only_the_vms_that_it_shut_down(tmp_path, prepare):
    host, act = prepare(tmp_path)
    done = act(overtaken(host, partial(delete, name="one"))).steps
    assert "shut down VM two" in done
    assert not [step for step in done if "VM one" in step]


SEED, EACH = 14, 60 if EVERYTHING else 10
STARTED = "another program started VM vm"


def test_every_command_that_changes_a_vm_has_a_case() -> None:
    of_vms = {name for name, case in CASES.items() if has_dry_run(name) and case.words.startswith("{")}
    of_two_hosts = {"end-migration", "migrate-vm"}  # test_migrate_meanwhile.py
    assert of_vms - {*AGENTS} - of_two_hosts - {case.command.split()[0] for case in all_cases()} == set()


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


def start_by_virsh(host: SimulatedHost) -> None:
    host.sim.hypervisor.start(host.sim._core.read_state().uuids_by_name["vm"])


def started_before(host: SimulatedHost, call: str, ports: Host | None = None) -> Host:
    """Return ports where another program starts the VM before the first such call."""
    other = open_sim_host(host.directory, host.scenario)
    return on_call(ports or host.ports, call, lambda: start_by_virsh(other), nth=1)


def read_record(host: SimulatedHost) -> VmRecord:
    """Return the VM's record, and check that every disk it names exists."""
    record = record_of(host, "vm")
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

    def fail() -> None:
        raise error_of("hypervisor.set_record")

    ports = on_call(host.ports, "hypervisor.set_record", fail)
    with pytest.raises(PartlyApplied) as raised:
        create(started_before(host, "hypervisor.set_record", ports), asked("sriov"))
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
    ports = on_call(host.ports, "hypervisor.find_domain", lambda: start_by_virsh(host), nth=1, after=True)
    with pytest.raises(InUse, match="VM vm is running") as raised:
        run_reconcile(ports)
    assert raised.value.hint == "vgpuctl stop-vm vm, then run the command again"
    assert picture(host).types == had
