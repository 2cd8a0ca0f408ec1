# SPDX-License-Identifier: Apache-2.0
"""Whatever no record requests is found, however much there is, and is gone after one reconcile."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults import Watch, counted
from tests.hosts import SimulatedHost, create, open_sim_host, picture, request, run_reconcile
from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.domain.record import record_to_xml
from vgpuctl.errors import PartlyApplied
from vgpuctl.host.processes import HostProcesses
from vgpuctl.model.gpu import Backend
from vgpuctl.model.vm import Claim, ProcessId
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.reconcile import DRY_RUN_NOTE, MAX_ROUNDS, find_problems
from vgpuctl.value import replace

GONE = ProcessId(4194399, 1)


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
    text = record_of(host, uuid_of_vm).replace('state="ready"', 'state="removing"')
    host.ports.hypervisor.set_record(uuid_of_vm, text)
    host.ports.claims.add(replace(claim_of(host, 1), vm="vm", vm_uuid=uuid_of_vm))
    later = host.again()
    assert [f.kind for f in run_reconcile(later.ports).data.findings][:2] == ["half-removed", "leaked"]
    now = picture(later)
    assert now.claims == now.mdevs == now.domains == {}
    assert run_reconcile(later.ports).data.findings == ()


def record_of(host: SimulatedHost, uuid_of_vm: str) -> str:
    domain = host.ports.hypervisor.find_domain(uuid_of_vm)
    assert domain is not None
    record = parse_domain(domain.xml, domain.state, host.ports.machine_id).record
    assert record is not None
    return record_to_xml(record)


class Restless:
    """A libvirt that another program uses: each read of its domains adds one more claim without an owner."""

    def __init__(self, host: SimulatedHost, times: int) -> None:
        self.host, self.left = host, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self.host.ports.hypervisor, name)

    def domains(self) -> Any:
        if self.left:
            self.host.ports.claims.add(claim_of(self.host, self.left))
            self.left -= 1
        return self.host.ports.hypervisor.domains()


@pytest.mark.parametrize("times", [1, 2, MAX_ROUNDS])
def test_it_repeats_until_nothing_is_found_and_reports_all(tmp_path: Path, times: int) -> None:
    host = open_sim_host(tmp_path, "t4").again()
    done = run_reconcile(replace(host.ports, hypervisor=Restless(host, times)))
    assert len(done.data.findings) == times
    assert len(done.steps) >= times
    assert picture(host).claims == {}


def test_after_the_last_round_it_says_that_there_is_more(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, "t4").again()
    with pytest.raises(PartlyApplied, match=f"after {MAX_ROUNDS} rounds") as raised:
        run_reconcile(replace(host.ports, hypervisor=Restless(host, 100)))
    assert len(raised.value.left) == 1
    assert len(picture(host).claims) == 1


def test_what_fails_is_not_tried_again_and_the_rest_is_done(tmp_path: Path) -> None:
    host = leaking(tmp_path, 3)
    watch = Watch(before=refusing_to_remove(str(uuid.UUID(int=2))))
    with pytest.raises(PartlyApplied) as raised:
        run_reconcile(watch.watch(host.ports))
    assert len(raised.value.left) == 1
    assert set(picture(host).claims) == {str(uuid.UUID(int=2))}
    assert watch.calls.count("hypervisor.domains") == 2


def refusing_to_remove(carrier: str) -> Callable[[int, str, tuple[Any, ...]], None]:
    def before(number: int, call: str, args: tuple[Any, ...]) -> None:
        if (call, args[:1]) == ("claims.remove", (carrier,)):
            raise OSError(5, "Input/output error", carrier)

    return before


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
    (finding,) = run_reconcile(host.ports, dry_run=True).data.findings  # type: ignore[misc]
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
        os.link = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        try:
            open_sim_host(host.directory, host.scenario).ports.claims.add(one)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
