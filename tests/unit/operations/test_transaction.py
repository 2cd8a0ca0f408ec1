# SPDX-License-Identifier: Apache-2.0
"""What a transaction claims is carried out or released, and a GPU whose driver refuses is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import Watch, error_of
from tests.hosts import context, create, kill_operation, living_operation, open_sim_host, operation, picture, request
from tests.values import A4C, a100, assigned, claim
from vgpuctl.errors import Busy, FileFailed, NoCapacity, VgpuctlError
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


def test_a_vm_on_which_another_operation_works_is_refused_until_that_has_ended(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"), start=False)
    vm = observe(host.ports, ReadScope()).vms[0]
    assert vm.record is not None
    other = open_sim_host(host.directory, host.scenario)
    with Transaction(other.ports, CONTEXT) as tx:
        tx.take_over_vm(vm, vm.record, ReadScope())
    with pytest.raises(Busy, match="works on VM vm"), Transaction(host.ports, CONTEXT) as tx, operation(host.ports):
        tx.take_over_vm(vm, vm.record, ReadScope())
    kill_operation(other.ports)
    with Transaction(host.ports, CONTEXT) as tx, operation(host.ports):
        assert tx.take_over_vm(vm, vm.record, ReadScope()).vm("vm") == vm


def test_a_vm_that_was_changed_before_its_claims_were_taken_is_refused(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"), start=False)
    vm = observe(host.ports, ReadScope()).vms[0]
    assert vm.record is not None
    host.ports.hypervisor.start(vm.uuid)
    with pytest.raises(Busy, match="was changed or started in the meantime"), Transaction(host.ports, CONTEXT) as tx:
        tx.take_over_vm(vm, vm.record, ReadScope())


def test_a_claim_that_a_running_vm_uses_is_not_released(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"))
    vm = observe(host.ports, ReadScope()).vms[0]
    assert vm.record is not None
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
