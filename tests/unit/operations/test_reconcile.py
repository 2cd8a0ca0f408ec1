# SPDX-License-Identifier: Apache-2.0
"""reconcile: it fixes what is provably managed, reports the rest, and a second run finds nothing."""

from __future__ import annotations

import os
import re
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults import Watch, counted
from tests.halted import Halted, elsewhere, reopen
from tests.hosts import SimulatedHost, context, create, delete, open_sim_host, picture, request, run_reconcile
from tests.layouts import FLEX, drained
from tests.meanwhile import on_call, unchanged
from tests.reserving_vms import record_of
from tests.unit.operations.test_attach import plug
from vgpuctl.domain.record import record_to_xml
from vgpuctl.errors import PartlyApplied, Stuck, Unmanaged
from vgpuctl.host.processes import HostProcesses
from vgpuctl.model.gpu import Backend
from vgpuctl.model.vm import Claim, DrainedVm, ProcessId, RecordState, StuckWrite
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations import queries
from vgpuctl.operations.reconcile import DRY_RUN_NOTE, MAX_ROUNDS, find_problems
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

COPY = "99999999-8888-4777-8666-555555555555"
GONE = ProcessId(4194399, 1)


def kinds(host: SimulatedHost, *, dry_run: bool = False) -> list[str]:
    return [f.kind for f in run_reconcile(host.ports, dry_run=dry_run).data.findings]


def with_vm(directory: Path, scenario: str = "a100-40", profile: str = "A100-4C", *, on: bool = False):
    """Return a host with a VM, and its uuid."""
    host = open_sim_host(directory, scenario)
    return host, create(host.ports, request(profile, name="vm"), start=on).data.uuid


def record_text(host: SimulatedHost, **changes: Any) -> str:
    """Return the VM's record as libvirt has it, with changes."""
    return record_to_xml(replace(record_of(host, "vm"), **changes))


def test_a_host_in_order_has_no_findings_and_nothing_is_changed(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    create(host.ports, request("A100-4C"))
    with unchanged(host):
        done = run_reconcile(host.again().ports)
    assert (done.changed, done.data.findings) == (False, ())


@pytest.mark.parametrize(("scenario", "profile"), [("a100-40", "A100-4C"), ("t4", "T4-2Q")])
def test_a_device_whose_vm_was_undefined_by_hand_is_removed(tmp_path, scenario, profile):
    host, uuid = with_vm(tmp_path, scenario, profile)
    host.ports.hypervisor.undefine(uuid)
    later = host.again()
    assert kinds(later, dry_run=True) == ["leaked"]
    assert picture(later).claims
    assert kinds(later) == ["leaked"]
    now = picture(later)
    assert now.types == now.mdevs == now.claims == {}
    assert kinds(later) == []


@pytest.mark.parametrize(("scenario", "profile"), [("a100-40", "A100-4C"), ("t4", "T4-2Q")])
def test_a_lost_record_is_written_again_and_the_vm_can_be_deleted(tmp_path, scenario, profile):
    host, uuid = with_vm(tmp_path, scenario, profile, on=True)
    host.ports.hypervisor.set_record(uuid, None)
    later = host.again()
    assert kinds(later) == ["record-lost"]
    assert queries.show_vm(later.ports, context(), "vm").data.ownership == "managed"
    assert kinds(later) == []
    delete(later.ports, "vm")
    assert picture(later).types == picture(later).mdevs == {}


def newer(host: SimulatedHost, uuid: str, old: str = 'state="ready"', new: str = 'state="parked"') -> None:
    """Rewrite a VM's record as a later vgpuctl might."""
    text = record_text(host)
    assert old in text
    host.ports.hypervisor.set_record(uuid, text.replace(old, new))


@pytest.mark.parametrize(("scenario", "profile"), [("a100-40", "A100-4C"), ("t4", "T4-2Q")])
@pytest.mark.parametrize(
    ("old", "new"), [('state="ready"', 'state="parked"'), ('backend="', 'backend="new-'), (' index="0"', "")]
)
def test_an_unreadable_record_is_reported_and_never_overwritten(tmp_path, scenario, profile, old, new):
    host, uuid = with_vm(tmp_path, scenario, profile, on=True)
    newer(host, uuid, old, new)
    later = host.again()
    with unchanged(later):
        (finding,) = run_reconcile(later.ports).data.findings
    assert (finding.kind, finding.action.startswith("nothing: ")) == ("unreadable-record", True)
    assert "a newer vgpuctl may have written it" in finding.action
    with unchanged(later), pytest.raises(Unmanaged, match="a newer one"):
        delete(later.ports, "vm")
    assert [row.name for row in queries.list_vms(later.ports, context()).data] == ["vm"]
    shown = queries.show_vm(later.ports, context(), "vm").data
    assert (shown.record, [v.present for v in shown.vgpus]) == (None, [True])


def test_what_only_an_unreadable_record_may_name_is_not_taken_away(tmp_path):
    host, uuid = with_vm(tmp_path)
    newer(host, uuid)
    host.ports.hypervisor.detach_device(uuid, "ua-vgpuctl-0", live=False, config=True)
    later = host.again()
    with unchanged(later):
        assert kinds(later) == ["unreadable-record"]


def before_the_second_look(host: SimulatedHost, act: Callable[[], object]) -> Host:
    return on_call(host.again().ports, "hypervisor.find_domain", act, nth=1)


def test_a_record_that_a_newer_vgpuctl_wrote_meanwhile_is_left_alone(tmp_path):
    host, uuid = with_vm(tmp_path)
    text = record_text(host).replace('state="ready"', 'state="parked"')
    host.ports.hypervisor.set_record(uuid, None)
    ports = before_the_second_look(host, lambda: host.ports.hypervisor.set_record(uuid, text))
    assert [f.kind for f in run_reconcile(ports).data.findings] == ["unreadable-record"]
    assert "state='parked'" in host.ports.hypervisor.find_domain(uuid).xml


def test_a_copy_of_a_managed_vm_is_left_alone(tmp_path):
    host, uuid = with_vm(tmp_path)
    copied = host.ports.hypervisor.find_domain("vm").xml.replace(f"<uuid>{uuid}</uuid>", f"<uuid>{COPY}</uuid>")
    copied = re.sub(r"<mac address=[^>]*>", "", copied.replace("<name>vm</name>", "<name>copy</name>"))
    host.ports.hypervisor.define(copied)
    later = host.again()
    with unchanged(later):
        assert kinds(later) == ["copied-record"]
    assert queries.show_vm(later.ports, context(), "copy").data.ownership == "copy"
    (vgpu,) = queries.show_vm(later.ports, context(), "vm").data.vgpus
    assert (vgpu.vm, vgpu.ownership) == ("vm", "managed")


def test_a_claim_that_vanished_is_written_again(tmp_path):
    host, uuid = with_vm(tmp_path, on=True)
    host.ports.claims.remove(host.ports.claims.all()[0].carrier, uuid)
    later = host.again()
    assert kinds(later) == ["claim-lost"]
    assert len(picture(later).claims) == 1
    assert kinds(later) == []


def test_unmanaged_devices_are_unchanged(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    path = "/sys/bus/pci/devices/0000:3b:00.5/nvidia/current_vgpu_type"
    host.ports.sysfs.write(path, "468\n")
    with unchanged(host):
        assert kinds(host.again()) == []


def test_a_vm_that_another_vgpuctl_finished_meanwhile_is_left_alone(tmp_path):
    host, uuid = with_vm(tmp_path)
    ready = record_text(host)
    host.ports.hypervisor.set_record(uuid, record_text(host, state=RecordState.CREATING))
    before = picture(host)
    done = run_reconcile(before_the_second_look(host, lambda: host.ports.hypervisor.set_record(uuid, ready)))
    assert (done.changed, done.data.findings) == (False, ())
    later = host.again()
    after = picture(later)
    assert (after.types, after.files, after.domains.keys()) == (before.types, before.files, before.domains.keys())
    assert queries.show_vm(later.ports, context(), "vm").data.record == "ready"


def test_a_claim_whose_vm_appeared_meanwhile_is_left_alone(tmp_path):
    host, uuid = with_vm(tmp_path)
    xml = host.ports.hypervisor.find_domain(uuid).xml
    host.ports.hypervisor.undefine(uuid)
    before = picture(host)
    ports = before_the_second_look(host, lambda: host.ports.hypervisor.define(xml))
    assert run_reconcile(ports).data.findings == ()
    later = host.again()
    after = picture(later)
    assert (after.types, after.claims) == (before.types, before.claims)
    assert queries.show_vm(later.ports, context(), "vm").data.vgpus[0].present


def test_a_vm_that_a_living_command_is_making_is_no_finding(tmp_path):
    host = open_sim_host(tmp_path)
    wanted = request("A100-4C", name="vm")
    making = Halted(host, "hypervisor", "set_record", lambda ports: create(ports, wanted, start=False))
    assert len(picture(host).claims) == len(picture(host).domains) == 1
    with unchanged(host):
        assert kinds(host, dry_run=True) == kinds(host) == []
    assert making.finish() == 0
    assert queries.show_vm(host.ports, context(), "vm").data.record == "ready"


def test_a_vm_that_runs_is_recorded_and_keeps_all_although_its_record_says_half_made(tmp_path):
    host, uuid = with_vm(tmp_path, on=True)
    ready = picture(host)
    host.ports.hypervisor.set_record(uuid, record_text(host, state=RecordState.CREATING))
    later = host.again()
    assert kinds(later) == ["half-made"]
    assert picture(later) == ready
    assert queries.show_vm(later.ports, context(), "vm").data.record == "ready"


def test_what_a_living_command_is_about_to_make_is_not_stray(tmp_path):
    """An attach has claimed, and neither the record nor the devices of its VM show it yet."""
    host = open_sim_host(tmp_path)
    elsewhere(lambda: create(reopen(host).ports, request("A100-4C", name="vm"), start=False))
    attached = Halted(host, "hypervisor", "set_record", lambda ports: plug(replace(host, ports=ports), "A100-4C"))
    assert len(picture(host).claims) == 2
    with unchanged(host):
        assert kinds(host, dry_run=True) == kinds(host) == []
    assert attached.finish() == 0
    assert len(queries.show_vm(host.ports, context(), "vm").data.vgpus) == 2


def test_a_vm_that_was_drained_on_a_gpu_with_a_stuck_write_is_to_be_started_and_nothing_is_read_there(tmp_path):
    """The GPU's state is unknown until the write ends: start-vm says so, and names the process."""
    host = drained(tmp_path)
    for name in ("one", "two"):
        host.ports.hypervisor.destroy(host.ports.hypervisor.find_domain(name).uuid)
    uuid = host.ports.hypervisor.find_domain("one").uuid
    host.ports.claims.add_drained_vm(DrainedVm(uuid, FLEX, ProcessId(999999, 1)))
    host.ports.sysfs.write(f"/sys/bus/pci/devices/{FLEX}/sriov_numvfs", "0\n")
    (seen,) = run_reconcile(host.ports, dry_run=True).data.findings
    assert seen.action.startswith("nothing before the GPU is set up")
    host.ports.claims.add_stuck_write(StuckWrite(host.ports.operations.current().process, FLEX, "/sys/x", "0"))
    assert "start VM one" in [f.action for f in run_reconcile(host.ports, dry_run=True).data.findings]
    with pytest.raises(Stuck) as raised:
        run_reconcile(host.ports)
    assert raised.value.facts["gpu"] == FLEX


def claim_of(host: SimulatedHost, number: int) -> Claim:
    """Return the claim of a VM that is gone, by a process that is gone, on an mdev that was never made."""
    gpu = next(g for g in observe(host.ports, ReadScope(models=False)).gpus if g.backend is Backend.MDEV_PF)
    return Claim(
        carrier=str(uuid.UUID(int=number)),
        backend=Backend.MDEV_PF,
        gpu=gpu.address,
        function=gpu.address,
        vm=f"gone-{number}",
        vm_uuid=str(uuid.UUID(int=1 << 64 | number)),
        profile="T4-2Q",
        framebuffer_mib=2048,
        process=GONE,
        command="vgpuctl create-vm",
    )


def leaking(directory: Path, number: int) -> SimulatedHost:
    host = open_sim_host(directory, "t4")
    one = claim_of(host, 1)
    for at in range(1, number + 1):
        carrier, vm_uuid = str(uuid.UUID(int=at)), str(uuid.UUID(int=1 << 64 | at))
        host.ports.claims.add(replace(one, carrier=carrier, vm=f"gone-{at}", vm_uuid=vm_uuid))
    return host.again()


class Counted(tuple[Claim, ...]):
    """Claims that count how often one of them is read."""

    looked = 0

    def __iter__(self) -> Iterator[Claim]:
        for claim in super().__iter__():
            Counted.looked += 1
            yield claim


def claims_read(host: SimulatedHost) -> int:
    """Return how many claims are read to find what is wrong on a host."""
    snapshot = observe(host.ports, ReadScope(models=False))
    Counted.looked = 0
    assert find_problems(host.ports, replace(snapshot, claims=Counted(snapshot.claims)))
    return Counted.looked


def reads(host: SimulatedHost, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many files reconcile opens."""
    number, real = 0, os.open

    def counting(*args: Any, **more: Any) -> int:
        nonlocal number
        number += 1
        return real(*args, **more)

    monkeypatch.setattr(os, "open", counting)
    assert run_reconcile(host.ports).changed
    monkeypatch.setattr(os, "open", real)
    assert picture(host).claims == {}
    return number


def test_twice_as_many_leaks_are_twice_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (leaking(tmp_path / str(number), number) for number in (60, 120))
    assert claims_read(many) <= 2 * claims_read(few)
    few_calls = len(counted(leaking(tmp_path / "few", 60).ports, run_reconcile))
    assert len(counted(leaking(tmp_path / "many", 120).ports, run_reconcile)) <= 2 * few_calls
    assert reads(many, monkeypatch) <= 2 * reads(few, monkeypatch)


def test_a_fault_exposed_by_a_fix_is_fixed(tmp_path: Path) -> None:
    """A stray claim, which its VM does not have, loses its owner once its half-removed VM is gone."""
    host = open_sim_host(tmp_path, "t4")
    uuid_of_vm = str(create(host.ports, request("T4-2Q", name="vm"), start=False).data.uuid)
    host.ports.hypervisor.set_record(uuid_of_vm, record_text(host, state=RecordState.REMOVING))
    host.ports.claims.add(replace(claim_of(host, 1), vm="vm", vm_uuid=uuid_of_vm))
    later = host.again()
    assert [f.kind for f in run_reconcile(later.ports).data.findings][:2] == ["half-removed", "leaked"]
    now = picture(later)
    assert now.claims == now.mdevs == now.domains == {}
    assert run_reconcile(later.ports).data.findings == ()


def restless(host: SimulatedHost, times: int) -> Host:
    """Return the host while another program uses it: so many reads of domains add one more claim without an owner."""
    left = list(range(1, times + 1))
    return on_call(host.ports, "hypervisor.domains", lambda: left and host.ports.claims.add(claim_of(host, left.pop())))


@pytest.mark.parametrize("times", [1, 2, MAX_ROUNDS])
def test_it_repeats_until_nothing_is_found_and_reports_all(tmp_path: Path, times: int) -> None:
    host = open_sim_host(tmp_path, "t4").again()
    done = run_reconcile(restless(host, times))
    assert len(done.data.findings) == times
    assert len(done.steps) >= times
    assert picture(host).claims == {}


def test_after_the_last_round_it_says_that_there_is_more(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, "t4").again()
    with pytest.raises(PartlyApplied, match=f"after {MAX_ROUNDS} rounds") as raised:
        run_reconcile(restless(host, 100))
    assert len(raised.value.left) == 1
    assert len(picture(host).claims) == 1


def test_what_fails_is_not_tried_again_and_the_rest_is_done(tmp_path: Path) -> None:
    host, carrier = leaking(tmp_path, 3), str(uuid.UUID(int=2))

    def refuse(number: int, call: str, args: tuple[Any, ...]) -> None:
        if (call, args[:1]) == ("claims.remove", (carrier,)):
            raise OSError(5, "Input/output error", carrier)

    watch = Watch(before=refuse)
    with pytest.raises(PartlyApplied) as raised:
        run_reconcile(watch.watch(host.ports))
    assert len(raised.value.left) == 1
    assert set(picture(host).claims) == {carrier}
    assert watch.calls.count("hypervisor.domains") == 2


def test_a_dry_run_shows_the_first_look_and_that_more_may_follow(tmp_path: Path) -> None:
    host = leaking(tmp_path, 1)
    shown = run_reconcile(host.ports, dry_run=True)
    assert (shown.notes, len(shown.data.findings)) == ((DRY_RUN_NOTE,), 1)
    run_reconcile(host.ports)
    assert run_reconcile(host.ports, dry_run=True).notes == ()


def test_what_killed_commands_were_writing_goes_and_a_living_ones_file_stays(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, "t4")
    killed_while_it_claims(host)
    me = HostProcesses().current_process()
    claims = host.sim.run_dir / "claims"
    living = claims / f".other.vgpuctl-{me.pid}-{me.start_ticks}"
    living.write_text("{")
    (left,) = (path for path in claims.iterdir() if path != living)
    (finding,) = run_reconcile(host.ports, dry_run=True).data.findings
    assert (finding.kind, finding.action) == ("unfinished-file", f"remove {left}")
    assert left.exists()
    run_reconcile(host.ports)
    assert list(claims.iterdir()) == [living]
    assert run_reconcile(host.ports).data.findings == ()


def killed_while_it_claims(host: SimulatedHost) -> None:
    """Let a process be killed between writing a claim and giving it its name."""
    one = claim_of(host, 1)
    child = os.fork()
    if not child:
        os.link = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        try:
            open_sim_host(host.directory, host.scenario).ports.claims.add(one)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
