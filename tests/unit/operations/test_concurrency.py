# SPDX-License-Identifier: Apache-2.0
"""Many processes at once, all released at a barrier: never more VMs than slots, and every failure has its reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.faults import Watch, error_of
from tests.hosts import (
    Silent,
    SimulatedHost,
    context,
    create,
    delete,
    open_sim_host,
    picture,
    request,
    run_reconcile,
    set_vm,
    start,
)
from tests.meanwhile import on_call, with_calls
from tests.unit.operations.test_attach import FOREIGN
from tests.unit.operations.test_ensure_vms import ensure, names
from tests.values import claim
from tests.vgpus import drop, make
from vgpuctl.errors import Busy, Locked, NotFound, PartlyApplied, VgpuctlError
from vgpuctl.host.processes import HostClock
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.vm import AssignedVgpu, Claim
from vgpuctl.observe import ReadScope, observe
from vgpuctl.observe.host_file import read_host_spec
from vgpuctl.operations.attach import attach
from vgpuctl.operations.create import create_vm
from vgpuctl.operations.plans.choose import choose_vgpus
from vgpuctl.operations.transaction import Transaction
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

CALLERS = 20
TEN_SLOTS = "version: 1\nnvidia: {nvml: %s}\ngpus:\n  - {model: A100}\n"
WAIT_SECONDS = 120


@pytest.fixture
def host(tmp_path):
    return open_sim_host(tmp_path, text=TEN_SLOTS % "present")


def _run(directory: str, act: str, argument: str, ready: Any, answers: Any) -> None:
    """Perform the act as an operation of its own: `argument` is its argument, several with "+" are threads."""
    threads = [Thread(target=_perform, args=(directory, act, one, ready, answers)) for one in argument.split("+")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _perform(directory: str, act: str, argument: str, ready: Any, answers: Any) -> None:
    host = open_sim_host(Path(directory), str(Path(directory) / "scenario.yaml"), clock=HostClock())
    ready.wait(WAIT_SECONDS)
    try:
        work, changed, unchanged = _ACTS[act]
        answers.put((argument, changed if work(host.ports, argument).changed else unchanged))
    except VgpuctlError as error:
        answers.put((argument, f"{error.code}: {error} {error.left}"))
    except Exception as error:  # noqa: BLE001 - the parent needs the error, or it waits forever
        answers.put((argument, f"bug: {error!r}"))


_ACTS: dict[str, tuple[Callable[[Host, str], Outcome], str, str]] = {
    "create": (lambda ports, name: create(ports, request("A100-4C", name=name)), "made", ""),
    "create-six": (lambda ports, stem: ensure(ports, request("A100-4C"), names(6, stem)), "made", ""),
    "delete": (delete, "gone", ""),
    "start": (start, "started", "runs already"),
    "reconcile": (lambda ports, _: run_reconcile(ports), "mended", "mended"),
    "attach": (lambda ports, name: attach(ports, context(), request("A100-4C", name=name)), "attached", ""),
    "set-vm": (lambda ports, name: set_vm(ports, request("A100-5C", name=name)), "changed", "has it already"),
    "create-vgpu": (lambda ports, name: make(ports, "A100-4C", name), "made", ""),
    "delete-vgpu": (drop, "gone", ""),
}
"""What an act does, and what it answers when it changed something and when it did not."""


def at_once(context: Any, host: SimulatedHost, *work: tuple[str, str]) -> list[tuple[str, str]]:
    """Run each (act, argument) in its own process, all released together, and return their results.

    Arguments that "+" joins are threads of one process, each with an operation of its own.
    """
    count = sum(len(argument.split("+")) for _, argument in work)
    ready, answers = context.Barrier(count), context.Queue()
    children = [
        context.Process(target=_run, args=(str(host.directory), act, argument, ready, answers))
        for act, argument in work
    ]
    for child in children:
        child.start()
    result = [answers.get(timeout=WAIT_SECONDS) for _ in range(count)]
    for child in children:
        child.join(WAIT_SECONDS)
    return sorted(result)


@pytest.mark.parametrize("nvml", ["present", "absent"])
def test_twenty_callers_for_ten_slots_give_ten_vms_and_ten_no_capacity(tmp_path, spawn, nvml):
    host = open_sim_host(tmp_path, text=TEN_SLOTS % nvml)
    answers = at_once(spawn, host, *(("create", f"vm-{n}") for n in range(CALLERS)))
    kinds = Counter(text.partition(":")[0] for _, text in answers)
    assert kinds == {"made": 10, "no-capacity": 10}, answers
    seen = picture(host)
    assert len(seen.types) == len(seen.domains) == len(seen.running) == len(seen.claims) == 10
    assert len([p for p in seen.files if p.endswith(".qcow2")]) == 10
    assert sorted(name for name, _ in seen.domains.values()) == sorted(n for n, text in answers if text == "made")


def test_sixteen_operations_of_one_process_beside_eight_processes_share_ten_slots(host, spawn):
    threads = "+".join(f"thread-{n}" for n in range(16))
    answers = at_once(spawn, host, ("create", threads), *(("create", f"process-{n}") for n in range(8)))
    kinds = Counter(text.partition(":")[0] for _, text in answers)
    assert kinds == {"made": 10, "no-capacity": 14}, answers
    seen = picture(host)
    assert len(seen.types) == len(seen.domains) == len(seen.running) == len(seen.claims) == 10
    assert run_reconcile(host.ports).data.findings == ()


def test_operations_of_one_process_do_not_work_on_the_same_vm_at_once(host, spawn):
    create(host.ports, request("A100-4C", name="same"), start=False)
    answers = at_once(spawn, host, ("start", "+".join(["same"] * 6)), ("delete", "+".join(["same"] * 3)))
    kinds = Counter(text.partition(":")[0] for _, text in answers)
    assert kinds["started"] <= 1, answers
    assert kinds["gone"] <= 1, answers
    assert set(kinds) <= {"started", "runs already", "gone", "busy", "in-use", "not-found"}, answers
    assert kinds["started"] + kinds["gone"] >= 1, answers
    assert run_reconcile(host.ports).data.findings == ()


def test_a_start_leaves_no_claim_when_a_delete_ends_between_its_looks_at_the_claims_and_at_their_holder(host):
    create(host.ports, request("A100-4C", name="vm"), start=False)
    other = open_sim_host(host.directory, host.scenario).ports
    calls: list[str] = []

    def finish_delete(number: int, call: str, args: tuple[Any, ...]) -> None:
        """Do the last of another command's delete, which needs no lock for it."""
        calls.append(call)
        if call == "operations.living" and calls[-3:-1] == ["claims.lock", "claims.read"]:
            (domain,) = other.hypervisor.domains()
            other.hypervisor.undefine(domain.uuid)
            other.claims.remove(other.claims.all()[0].carrier, domain.uuid)

    with pytest.raises(NotFound):
        start(Watch(before=finish_delete).watch(host.ports), "vm")
    assert not picture(host).claims


def test_what_a_failed_operation_left_is_finished_by_another_one_of_the_same_process(host):
    before = picture(host)

    def fail(number: int, call: str, args: tuple[Any, ...]) -> None:
        if call in ("hypervisor.start", "hypervisor.undefine"):
            raise error_of(call)

    with pytest.raises(PartlyApplied):
        create(Watch(before=fail).watch(host.ports), request("A100-4C", name="vm"))
    assert picture(host) != before
    assert run_reconcile(host.ports).changed
    assert picture(host) == before


def test_twenty_create_vgpu_for_ten_slots_give_ten_entries_and_ten_no_capacity(host, spawn):
    answers = at_once(spawn, host, *(("create-vgpu", f"vgpu-{n}") for n in range(CALLERS)))
    kinds = Counter(text.partition(":")[0] for _, text in answers)
    assert kinds == {"made": 10, "no-capacity": 10}, answers
    kept = read_host_spec(host.ports).vgpus
    assert sorted(kept) == sorted(name for name, text in answers if text == "made")
    seen = picture(host)
    assert {v.carrier for v in kept.values()} == set(seen.types) == set(seen.claims)
    gone = at_once(spawn, host, *(("delete-vgpu", name) for name in kept for _ in range(2)))
    assert Counter(text for _, text in gone)["gone"] == 10, gone
    assert (picture(host).types, picture(host).claims, read_host_spec(host.ports).vgpus) == ({}, {}, {})


@pytest.mark.parametrize(
    ("act", "prepare", "one", "others", "left"),
    [
        ("create", None, "made", {"exists"}, 1),
        ("create-vgpu", None, "made", {"busy", "exists"}, 1),
        ("delete", True, "gone", {"busy", "not-found"}, 0),
        ("start", False, "started", {"busy", "runs already"}, 1),
    ],
)
def test_of_several_terminals_that_do_the_same_exactly_one_wins(host, spawn, act, prepare, one, others, left):
    before = picture(host)
    if prepare is not None:
        create(host.ports, request("A100-4C", name="same"), start=prepare)
    answers = at_once(spawn, host, *[(act, "same")] * 6)
    kinds = Counter(text.partition(":")[0] for _, text in answers)
    assert kinds[one] == 1, answers
    assert set(kinds) <= {one, *others}, answers
    seen = picture(host)
    assert len(seen.types) == len(seen.claims) == left
    assert (
        len(seen.domains) == len(seen.running) == len(seen.files) - len(before.files) == left * (act != "create-vgpu")
    )


def test_of_two_callers_for_six_each_on_ten_slots_one_gets_six_and_the_other_none(host, spawn):
    answers = at_once(spawn, host, ("create-six", "a"), ("create-six", "b"))
    (winner,) = [stem for stem, text in answers if text == "made"]
    (refused,) = [text for _, text in answers if text != "made"]
    assert refused.startswith("no-capacity")
    assert "4 fit now" in refused
    seen = picture(host)
    assert len(seen.types) == len(seen.claims) == len(seen.running) == 6
    assert sorted(name for name, _ in seen.domains.values()) == sorted(names(6, winner))


@pytest.mark.parametrize("made", [True, False])
def test_of_several_terminals_that_attach_to_the_same_vm_no_vgpu_is_lost(host, spawn, made):
    if made:
        create(host.ports, request("A100-4C", name="same"), start=False)
    else:
        host.ports.hypervisor.define(FOREIGN.replace("desk", "same"))
    answers = at_once(spawn, host, *(("attach", "same") for _ in range(4)))
    kinds = Counter(text.partition(":")[0] for _, text in answers)
    assert kinds["attached"] >= 1, answers
    assert set(kinds) <= {"attached", "busy"}, answers
    seen = picture(host)
    assert len(seen.types) == len(seen.claims) == kinds["attached"] + made
    assert not run_reconcile(host.again().ports, dry_run=True).data.findings
    assert len(host.ports.hypervisor.domains()[0].xml.split("<hostdev")) - 1 == len(seen.claims)


def test_a_start_and_a_change_at_once_leave_a_vm_that_has_what_its_record_says(host, spawn):
    create(host.ports, request("A100-4C", name="same"), start=False)
    answers = at_once(spawn, host, ("start", "same"), ("set-vm", "same"), ("set-vm", "same"))
    kinds = Counter(text.partition(":")[0] for _, text in answers)
    assert set(kinds) <= {"started", "changed", "has it already", "busy", "in-use"}, answers
    assert kinds["started"] + kinds["changed"] >= 1, answers
    seen = picture(host)
    assert set(seen.types) == set(seen.claims)
    assert len(seen.types) == 1
    assert not run_reconcile(host.again().ports, dry_run=True).data.findings


def _drop_hostdev(ports: Host) -> None:
    """Remove the vGPU from the definition of the only VM, as `virsh edit` can."""
    xml = ports.hypervisor.domains()[0].xml
    ports.hypervisor.define(re.sub(r"<hostdev.*?</hostdev>", "", xml, flags=re.DOTALL))


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("meanwhile", [lambda ports: set_vm(ports, request("A100-5C", name="same")), _drop_hostdev])
def test_a_change_says_that_the_vm_was_changed_between_its_look_and_its_read_of_the_definition(host, nth, meanwhile):
    create(host.ports, request("A100-4C", name="same"), start=False)
    ports = on_call(host.ports, "hypervisor.definition", lambda: meanwhile(host.again().ports), nth=nth)
    with pytest.raises(Busy, match="same was changed or started in the meantime"):
        set_vm(ports, request("A100-10C", name="same"))
    seen = picture(host)
    assert len(seen.types) == len(seen.claims) == 1


def test_concurrent_reconciles_fix_everything_safely(host, spawn):
    create(host.ports, request("A100-4C", name="kept"))
    before = picture(host)
    for number in range(3):
        _leave_half_made(host, f"half-{number}")
    assert len(run_reconcile(host.again().ports, dry_run=True).data.findings) == 3
    answers = at_once(spawn, host, *(("reconcile", str(n)) for n in range(2)))
    assert {text.partition(" ")[0] for _, text in answers} <= {"mended", "busy:"}, answers
    run_reconcile(host.again().ports)
    assert picture(host) == before


def test_reconcile_leaves_alone_what_others_are_making_and_removing(host, spawn):
    for number in range(3):
        create(host.ports, request("A100-4C", name=f"old-{number}"))
    work = [("reconcile", "1"), ("reconcile", "2")]
    work += [("create", f"new-{n}") for n in range(4)] + [("delete", f"old-{n}") for n in range(3)]
    answers = dict(at_once(spawn, host, *work))
    assert [answers[f"new-{n}"] for n in range(4)] == ["made"] * 4, answers
    run_reconcile(host.again().ports)
    names = sorted(name for name, _ in picture(host).domains.values())
    kept = sorted(f"old-{n}" for n in range(3) if answers[f"old-{n}"] != "gone")
    assert names == sorted([*(f"new-{n}" for n in range(4)), *kept]), answers
    assert len(picture(host).types) == len(names)


def test_a_delete_while_another_vm_is_made_disturbs_neither(host, spawn):
    for number in range(10):
        create(host.ports, request("A100-4C", name=f"old-{number}"))
    answers = dict(at_once(spawn, host, ("delete", "old-3"), ("create", "new-1"), ("create", "new-2")))
    assert answers["old-3"] == "gone"
    made = [n for n in ("new-1", "new-2") if answers[n] == "made"]
    assert len(made) <= 1
    assert all(answers[n].startswith("no-capacity") for n in ("new-1", "new-2") if n not in made)
    assert len(picture(host).domains) == len(picture(host).types) == 9 + len(made)


def test_no_one_takes_a_vm_that_a_live_process_is_still_making(host):
    codes = []

    def meanwhile(number: int, call: str, _: tuple[Any, ...]) -> None:
        if call == "hypervisor.start":
            other = open_sim_host(host.directory, host.scenario).ports
            with pytest.raises(VgpuctlError) as raised:
                delete(other, "vm")
            codes.append(raised.value.code)
            assert not run_reconcile(other).data.findings

    create(Watch(before=meanwhile).watch(host.ports), request("A100-4C", name="vm"))
    assert codes == ["busy"]
    assert len(picture(host).running) == 1


def _claims_of_two_callers(host: SimulatedHost, *, locked: bool) -> int:
    """Let two callers request the last slot of a PF, the second between the first's snapshot and its claim."""

    def ask(ports: Host) -> None:
        ports = ports if locked else with_calls(ports, "claims", lock=lambda wait_seconds: nullcontext())
        wanted, uuid = request("T4-16Q"), ports.new_uuid()

        def claims_of(vgpus: tuple[AssignedVgpu, ...]) -> tuple[Claim, ...]:
            return tuple(replace(claim(v, 1), vm="vm", vm_uuid=uuid) for v in vgpus)

        observed = lambda: observe(ports, ReadScope(types=True, models=False))  # noqa: E731
        with Transaction(ports, context(wait_seconds=0)) as tx:
            tx.claim(observed, lambda seen: choose_vgpus(seen, wanted, uuid), claims_of)

    def second() -> None:
        with pytest.raises(Locked) if locked else nullcontext():
            ask(open_sim_host(host.directory, host.scenario).ports)

    ask(on_call(host.ports, "claims.add", second, nth=1))
    return len(host.ports.claims.all())


def test_without_the_lock_one_slot_is_given_twice_and_with_it_once(tmp_path):
    one_slot = "version: 1\ngpus:\n  - {model: T4, profiles: [T4-16Q]}\n"
    assert _claims_of_two_callers(open_sim_host(tmp_path / "locked", text=one_slot), locked=True) == 1
    assert _claims_of_two_callers(open_sim_host(tmp_path / "unlocked", text=one_slot), locked=False) == 2


def _leave_half_made(host: SimulatedHost, name: str) -> None:
    """Stop in the middle of a creation, as a killed process would."""

    class Stopped(Silent):
        def on_step_undo(self, text: str) -> None:
            raise KeyboardInterrupt

        def on_step_start(self, number: int, text: str) -> None:
            if text.startswith("record"):
                raise KeyboardInterrupt

    with pytest.raises(VgpuctlError):
        create_vm(host.ports, context(wait_seconds=1, progress=Stopped()), request("A100-4C", name=name), start=True)
