# SPDX-License-Identifier: Apache-2.0
"""What a transaction claims is carried out or released, a VM that it works on is left alone, and its death is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.faults import Watch, error_of
from tests.halted import Halted, reopen
from tests.hosts import (
    SimulatedHost,
    context,
    create,
    delete,
    living_operation,
    open_sim_host,
    operation,
    picture,
    request,
    run_reconcile,
)
from tests.meanwhile import unchanged
from tests.unit.operations.test_ensure_vms import ensure
from tests.unit.operations.test_refresh import prepared, refresh
from tests.values import A4C, a100, assigned, claim
from vgpuctl.errors import Busy, Failed, FileFailed, NoCapacity, VgpuctlError
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.claim import claims_of_record
from vgpuctl.operations.transaction import Transaction
from vgpuctl.ports.host import Host
from vgpuctl.ports.step import Plan
from vgpuctl.value import replace

CONTEXT = context(wait_seconds=0)
TWO = "version: 1\ngpus:\n  - {model: A100, address: '0000:3b:00.0'}\n  - {model: A100, address: '0000:86:00.0'}\n"


def ours(ports: Host) -> object:
    return replace(claim(assigned(a100(), A4C), 1), operation=ports.operations.current().id)


def test_what_is_not_carried_out_is_released_whatever_ends_the_block(tmp_path: Path) -> None:
    ports = open_sim_host(tmp_path).ports
    for error in (KeyboardInterrupt, ValueError, NoCapacity):
        with pytest.raises(error), Transaction(ports, CONTEXT) as tx:  # noqa: PT012
            tx.take_over((ours(ports),))
            tx.note("vm", "uuid")
            assert len(ports.claims.all()) == len(ports.claims.vms_in_progress()) == 1
            raise error("stop")
        assert (ports.claims.all(), ports.claims.vms_in_progress()) == ((), ())


def test_what_is_carried_out_or_handed_over_stays(tmp_path: Path) -> None:
    ports = open_sim_host(tmp_path).ports
    with Transaction(ports, CONTEXT) as tx:
        tx.take_over((ours(ports),))
        tx.carry_out(Plan(()))
    assert len(ports.claims.all()) == 1
    with pytest.raises(ValueError, match="later"), Transaction(ports, CONTEXT) as tx:  # noqa: PT012
        tx.take_over((replace(ours(ports), carrier="0000:3b:00.9", function="0000:3b:00.9"),))
        assert len(tx.hand_over()) == 1
        raise ValueError("later")
    assert len(ports.claims.all()) == 2


def test_a_dry_run_notes_nothing(tmp_path: Path) -> None:
    ports = open_sim_host(tmp_path).ports
    with Transaction(ports, replace(CONTEXT, dry_run=True)) as tx:
        tx.note("vm", "uuid")
        assert ports.claims.vms_in_progress() == ()


def test_where_a_driver_refuses_the_other_gpu_gets_it_and_nothing_of_the_first_try_is_left(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, text=TWO)
    first = create(host.ports, request("A100-4C", name="shows-the-first-choice"), start=False).data.vgpus[0].gpu
    tried: list[str] = []

    def refuse(number: int, call: str, args: tuple[object, ...]) -> None:
        if call == "sysfs.write" and str(args[0]).endswith("current_vgpu_type") and first[:-1] in str(args[0]):
            tried.append(str(args[0]))
            raise OSError(5, "Input/output error", str(args[0]))

    made = create(Watch(before=refuse).watch(host.ports), request("A100-4C", name="vm"))
    assert tried
    assert made.data.vgpus[0].gpu != first
    assert len(picture(host).claims) == len(picture(host).domains) == 2


def test_a_vm_that_was_changed_before_its_claims_were_taken_is_refused(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"), start=False)
    vm = observe(host.ports, ReadScope()).vms[0]
    host.ports.hypervisor.start(vm.uuid)
    with pytest.raises(Busy, match="was changed or started in the meantime"), Transaction(host.ports, CONTEXT) as tx:
        tx.take_over_vm(vm, vm.record, ReadScope())


def test_a_claim_that_a_running_vm_uses_is_not_released(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"))
    vm = observe(host.ports, ReadScope()).vms[0]
    (held,) = host.ports.claims.all()
    host.ports.claims.remove(held.carrier, held.vm_uuid)
    with pytest.raises(VgpuctlError), Transaction(host.ports, CONTEXT) as tx:  # noqa: PT012
        tx.take_over(claims_of_record(host.ports, vm.name, vm.record))
        raise error_of("hypervisor.define")
    assert [c.carrier for c in host.ports.claims.all()] == [held.carrier]
    assert living_operation(host.ports).id != held.operation


def test_what_is_to_happen_on_failure_happens_before_the_notes_go_and_gets_the_error(tmp_path: Path) -> None:
    ports = open_sim_host(tmp_path).ports
    seen: list[object] = []

    def compensate(failure: VgpuctlError) -> None:
        seen.append((failure.code, len(ports.claims.vms_in_progress())))
        failure.left.append("the rest")

    def work() -> None:
        with Transaction(ports, context(wait_seconds=5)) as tx:
            tx.note("vm", "0" * 8 + "-0000-0000-0000-" + "0" * 12)
            tx.on_failure(compensate)
            raise PermissionError(13, "Permission denied", "/sys/x")

    with operation(ports), pytest.raises(FileFailed, match="Permission denied: /sys/x") as raised:
        work()
    assert raised.value.left == ["the rest"]
    assert seen == [("os-error", 1)]
    assert ports.claims.vms_in_progress() == ()


def reserving(name: str) -> Any:
    return request("T4-2Q", name=name, reserve="running")


def create_off(ports: Any) -> object:
    return create(ports, reserving("vm"), start=False)


def create_two(ports: Any) -> object:
    one_at_a_time = 1  # where it halts, nothing else of that process goes on
    return ensure(ports, reserving("vm-{}"), ("vm-1", "vm-2"), start=False, parallel=one_at_a_time)


WORKS = {"create": create_off, "count": create_two, "refresh": refresh}


def begun(tmp_path: Path, what: str) -> tuple[SimulatedHost, Halted]:
    host = prepared(tmp_path, reserve="running") if what == "refresh" else open_sim_host(tmp_path, "t4")
    return host, Halted(host, "hypervisor", "redefine" if what == "refresh" else "set_record", WORKS[what])


@pytest.mark.parametrize("what", WORKS)
def test_a_vm_without_a_place_is_left_alone_while_a_process_works_on_it(tmp_path, what):
    host, halted = begun(tmp_path, what)
    later = reopen(host)
    with unchanged(later):
        assert run_reconcile(later.ports).data.findings == ()
    assert halted.finish() == 0
    assert later.ports.claims.vms_in_progress() == ()
    assert run_reconcile(reopen(host).ports).data.findings == ()


@pytest.mark.parametrize("what", WORKS)
def test_it_is_fixed_once_that_process_is_dead(tmp_path, what):
    host, halted = begun(tmp_path, what)
    halted.die()
    later = reopen(host)
    assert run_reconcile(later.ports).changed
    assert len(picture(later).domains) == (what == "refresh")
    assert run_reconcile(later.ports).data.findings == ()
    assert later.ports.claims.vms_in_progress() == ()


def test_a_delete_in_flight_is_left_alone_too(tmp_path):
    host = open_sim_host(tmp_path, "t4")
    create_off(host.ports)
    halted = Halted(host, "hypervisor", "undefine", lambda ports: delete(ports, "vm"))
    assert run_reconcile(reopen(host).ports).data.findings == ()
    assert halted.finish() == 0
    assert picture(reopen(host)).domains == {}


def test_nothing_is_made_when_the_work_cannot_be_noted(tmp_path):
    host = open_sim_host(tmp_path, "t4")
    (host.ports.claims._run_dir / "working").write_text("does not exist")
    with unchanged(host), pytest.raises(Failed, match="cannot record"):
        create_off(host.ports)
