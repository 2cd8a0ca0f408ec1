# SPDX-License-Identifier: Apache-2.0
"""Many processes at once, all released at a barrier: never more VMs than slots, and every failure has its reason.

Size: every command against every other one, by the same two functions that run them at once.
"""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.faults import Watch, error_of
from tests.hosts import (
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
from tests.processes import clean
from tests.unit.operations.test_attach import FOREIGN
from tests.values import claim
from tests.vgpus import drop, make
from vgpuctl.errors import Locked, PartlyApplied, VgpuctlError
from vgpuctl.host.processes import HostClock
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


@pytest.fixture(scope="module")
def processes():
    return clean()


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
        answers.put((argument, _ACTS[act](host.ports, argument)))
    except VgpuctlError as error:
        answers.put((argument, f"{error.code}: {error} {error.left}"))
    except Exception as error:  # noqa: BLE001 - the parent needs the error, or it waits forever
        answers.put((argument, f"bug: {error!r}"))


def _create(ports: Host, name: str) -> str:
    create(ports, request("A100-4C", name=name))
    return "made"


def _delete(ports: Host, name: str) -> str:
    delete(ports, name)
    return "gone"


def _start(ports: Host, name: str) -> str:
    return "started" if start(ports, name).changed else "runs already"


def _reconcile(ports: Host, _: str) -> str:
    return f"mended {len(run_reconcile(ports).data.findings)}"


def _attach(ports: Host, name: str) -> str:
    attach(ports, context(), request("A100-4C", name=name))
    return "attached"


def _reprofile(ports: Host, name: str) -> str:
    changed = set_vm(ports, request("A100-5C", name=name)).changed
    return "changed" if changed else "has it already"


def _vgpu(ports: Host, name: str) -> str:
    make(ports, "A100-4C", name)
    return "made"


def _drop(ports: Host, name: str) -> str:
    drop(ports, name)
    return "gone"


_ACTS = {
    "create-vgpu": _vgpu,
    "delete-vgpu": _drop,
    "create": _create,
    "delete": _delete,
    "start": _start,
    "reconcile": _reconcile,
    "attach": _attach,
    "set-vm": _reprofile,
}


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
def test_twenty_callers_for_ten_slots_give_ten_vms_and_ten_no_capacity(tmp_path, processes, nvml):
    host = open_sim_host(tmp_path, text=TEN_SLOTS % nvml)
    answers = at_once(processes, host, *(("create", f"vm-{n}") for n in range(CALLERS)))
    kinds = Counter(text.partition(":")[0] for _, text in answers)
    assert kinds == {"made": 10, "no-capacity": 10}, answers
    seen = picture(host)
    assert len(seen.types) == len(seen.domains) == len(seen.running) == len(seen.claims) == 10
    assert len([p for p in seen.files if p.endswith(".qcow2")]) == 10
    assert sorted(name for name, _ in seen.domains.values()) == sorted(n for n, text in answers if text == "made")


def test_sixteen_operations_of_one_process_beside_eight_processes_share_ten_slots(tmp_path, processes):
    host = open_sim_host(tmp_path, text=TEN_SLOTS % "present")
    threads = "+".join(f"thread-{n}" for n in range(16))
    answers = at_once(processes, host, ("create", threads), *(("create", f"process-{n}") for n in range(8)))
    kinds = Counter(text.partition(":")[0] for _, text in answers)
    assert kinds == {"made": 10, "no-capacity": 14}, answers
    seen = picture(host)
    assert len(seen.types) == len(seen.domains) == len(seen.running) == len(seen.claims) == 10
    assert run_reconcile(host.ports).data.findings == ()


def test_operations_of_one_process_do_not_work_on_the_same_vm_at_once(tmp_path, processes):
    host = open_sim_host(tmp_path, text=TEN_SLOTS % "present")
    create(host.ports, request("A100-4C", name="same"), start=False)
    answers = at_once(processes, host, ("start", "+".join(["same"] * 6)), ("delete", "+".join(["same"] * 3)))
    kinds = Counter(text.partition(":")[0] for _, text in answers)
    assert kinds["started"] <= 1, answers
    assert kinds["gone"] <= 1, answers
    assert set(kinds) <= {"started", "runs already", "gone", "busy", "in-use", "not-found"}, answers
    assert kinds["started"] + kinds["gone"] >= 1, answers
    assert run_reconcile(host.ports).data.findings == ()


def test_what_a_failed_operation_left_is_finished_by_another_one_of_the_same_process(tmp_path):
    host = open_sim_host(tmp_path, text=TEN_SLOTS % "present")
    before = picture(host)

    def fail(number: int, call: str, args: tuple[Any, ...]) -> None:
        if call in ("hypervisor.start", "hypervisor.undefine"):
            raise error_of(call)

    with pytest.raises(PartlyApplied):
        create(Watch(before=fail).watch(host.ports), request("A100-4C", name="vm"))
    assert picture(host) != before
    assert run_reconcile(host.ports).changed
    assert picture(host) == before


def test_twenty_create_vgpu_for_ten_slots_give_ten_entries_and_ten_no_capacity(tmp_path, processes):
    host = open_sim_host(tmp_path, text=TEN_SLOTS % "present")
    answers = at_once(processes, host, *(("create-vgpu", f"vgpu-{n}") for n in range(CALLERS)))
    kinds = Counter(text.partition(":")[0] for _, text in answers)
    assert kinds == {"made": 10, "no-capacity": 10}, answers
    kept = read_host_spec(host.ports).vgpus
    assert sorted(kept) == sorted(name for name, text in answers if text == "made")
    seen = picture(host)
    assert {v.carrier for v in kept.values()} == set(seen.types) == set(seen.claims)
    gone = at_once(processes, host, *(("delete-vgpu", name) for name in kept for _ in range(2)))
    assert Counter(text for _, text in gone)["gone"] == 10, gone
    assert (picture(host).types, picture(host).claims, read_host_spec(host.ports).vgpus) == ({}, {}, {})


def test_of_several_create_vgpu_of_one_name_exactly_one_wins(tmp_path, processes):
    host = open_sim_host(tmp_path, text=TEN_SLOTS % "present")
    answers = at_once(processes, host, *[("create-vgpu", "spare")] * 6)
    kinds = Counter(text.partition(":")[0] for _, text in answers)
    assert kinds["made"] == 1
    assert set(kinds) <= {"made", "busy", "exists"}, answers
    assert len(picture(host).types) == len(picture(host).claims) == 1


def test_of_several_terminals_that_make_the_same_name_exactly_one_wins(tmp_path, processes):
    host = open_sim_host(tmp_path, text=TEN_SLOTS % "present")
    answers = at_once(processes, host, *(("create", "same") for _ in range(4)))
    kinds = Counter(text.partition(":")[0] for _, text in answers)
    assert kinds == {"made": 1, "exists": 3}, answers
    seen = picture(host)
    assert len(seen.domains) == len(seen.types) == len(seen.claims) == len(seen.files) == 1


def test_of_several_terminals_that_delete_the_same_vm_one_wins_and_nothing_is_left(tmp_path, processes):
    host = open_sim_host(tmp_path, text=TEN_SLOTS % "present")
    before = picture(host)
    create(host.ports, request("A100-4C", name="same"))
    answers = at_once(processes, host, *(("delete", "same") for _ in range(4)))
    kinds = Counter(text.partition(":")[0] for _, text in answers)
    assert kinds["gone"] == 1, answers
    assert set(kinds) <= {"gone", "busy", "not-found"}, answers
    assert picture(host) == before


def test_of_several_terminals_that_start_the_same_vm_none_stops_it_again(tmp_path, processes):
    host = open_sim_host(tmp_path, text=TEN_SLOTS % "present")
    create(host.ports, request("A100-4C", name="same"), start=False)
    answers = at_once(processes, host, *(("start", "same") for _ in range(4)))
    kinds = Counter(text.partition(":")[0] for _, text in answers)
    assert kinds["started"] == 1, answers
    assert set(kinds) <= {"started", "busy", "runs already"}, answers
    assert len(picture(host).running) == 1


@pytest.mark.parametrize("made", [True, False])
def test_of_several_terminals_that_attach_to_the_same_vm_no_vgpu_is_lost(tmp_path, processes, made):
    host = open_sim_host(tmp_path, text=TEN_SLOTS % "present")
    if made:
        create(host.ports, request("A100-4C", name="same"), start=False)
    else:
        host.ports.hypervisor.define(FOREIGN.replace("desk", "same"))
    answers = at_once(processes, host, *(("attach", "same") for _ in range(4)))
    kinds = Counter(text.partition(":")[0] for _, text in answers)
    assert kinds["attached"] >= 1, answers
    assert set(kinds) <= {"attached", "busy"}, answers
    seen = picture(host)
    assert len(seen.types) == len(seen.claims) == kinds["attached"] + made
    assert not run_reconcile(host.again().ports, dry_run=True).data.findings
    assert len(host.ports.hypervisor.domains()[0].xml.split("<hostdev")) - 1 == len(seen.claims)


def test_a_start_and_a_change_at_once_leave_a_vm_that_has_what_its_record_says(tmp_path, processes):
    host = open_sim_host(tmp_path, text=TEN_SLOTS % "present")
    create(host.ports, request("A100-4C", name="same"), start=False)
    answers = at_once(processes, host, ("start", "same"), ("set-vm", "same"), ("set-vm", "same"))
    kinds = Counter(text.partition(":")[0] for _, text in answers)
    assert set(kinds) <= {"started", "changed", "has it already", "busy", "in-use"}, answers
    assert kinds["started"] + kinds["changed"] >= 1, answers
    seen = picture(host)
    assert set(seen.types) == set(seen.claims)
    assert len(seen.types) == 1
    assert not run_reconcile(host.again().ports, dry_run=True).data.findings


def test_concurrent_reconciles_fix_everything_safely(tmp_path, processes):
    host = open_sim_host(tmp_path, text=TEN_SLOTS % "present")
    create(host.ports, request("A100-4C", name="kept"))
    before = picture(host)
    for number in range(3):
        _leave_half_made(host, f"half-{number}")
    assert len(run_reconcile(host.again().ports, dry_run=True).data.findings) == 3
    answers = at_once(processes, host, *(("reconcile", str(n)) for n in range(2)))
    assert {text.partition(" ")[0] for _, text in answers} <= {"mended", "busy:"}, answers
    run_reconcile(host.again().ports)
    assert picture(host) == before


def test_reconcile_leaves_alone_what_others_are_making_and_removing(tmp_path, processes):
    host = open_sim_host(tmp_path, text=TEN_SLOTS % "present")
    for number in range(3):
        create(host.ports, request("A100-4C", name=f"old-{number}"))
    work = [("reconcile", "1"), ("reconcile", "2")]
    work += [("create", f"new-{n}") for n in range(4)] + [("delete", f"old-{n}") for n in range(3)]
    answers = dict(at_once(processes, host, *work))
    assert [answers[f"new-{n}"] for n in range(4)] == ["made"] * 4, answers
    run_reconcile(host.again().ports)
    names = sorted(name for name, _ in picture(host).domains.values())
    kept = sorted(f"old-{n}" for n in range(3) if answers[f"old-{n}"] != "gone")
    assert names == sorted([*(f"new-{n}" for n in range(4)), *kept]), answers
    assert len(picture(host).types) == len(names)


def test_a_delete_while_another_vm_is_made_disturbs_neither(tmp_path, processes):
    host = open_sim_host(tmp_path, text=TEN_SLOTS % "present")
    for number in range(10):
        create(host.ports, request("A100-4C", name=f"old-{number}"))
    answers = dict(at_once(processes, host, ("delete", "old-3"), ("create", "new-1"), ("create", "new-2")))
    assert answers["old-3"] == "gone"
    made = [n for n in ("new-1", "new-2") if answers[n] == "made"]
    assert len(made) <= 1
    assert all(answers[n].startswith("no-capacity") for n in ("new-1", "new-2") if n not in made)
    assert len(picture(host).domains) == len(picture(host).types) == 9 + len(made)


def test_no_one_takes_a_vm_that_a_live_process_is_still_making(tmp_path):
    host = open_sim_host(tmp_path, text=TEN_SLOTS % "present")
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


class _Unlocked:
    """Claims whose lock does nothing."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def lock(self, wait_seconds: float) -> AbstractContextManager[None]:
        return nullcontext()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Between:
    """Lets a second caller run between the snapshot and the claim of the first."""

    def __init__(self, inner: Any, second: Any) -> None:
        self._inner, self._second = inner, second

    def add(self, claim: Any) -> None:
        second, self._second = self._second, None
        if second is not None:
            second()
        self._inner.add(claim)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _claims_of_two_callers(host: SimulatedHost, *, locked: bool) -> int:
    """Let two callers request the last slot of a PF, the second between the first's snapshot and its claim."""

    def ask(ports: Host, claims: Any) -> None:
        ports = replace(ports, claims=claims)
        wanted, uuid = request("T4-16Q"), ports.new_uuid()

        def claims_of(vgpus: tuple[AssignedVgpu, ...]) -> tuple[Claim, ...]:
            return tuple(replace(claim(v, 1), vm="vm", vm_uuid=uuid) for v in vgpus)

        observed = lambda: observe(ports, ReadScope(types=True, models=False))  # noqa: E731
        with Transaction(ports, context(wait_seconds=0)) as tx:
            tx.claim(observed, lambda seen: choose_vgpus(seen, wanted, uuid), claims_of)

    def second() -> None:
        other = open_sim_host(host.directory, host.scenario).ports
        with pytest.raises(Locked) if locked else nullcontext():
            ask(other, other.claims if locked else _Unlocked(other.claims))

    between = _Between(host.ports.claims, second)
    ask(host.ports, between if locked else _Unlocked(between))
    return len(host.ports.claims.all())


def test_without_the_lock_one_slot_is_given_twice_and_with_it_once(tmp_path):
    one_slot = "version: 1\ngpus:\n  - {model: T4, profiles: [T4-16Q]}\n"
    assert _claims_of_two_callers(open_sim_host(tmp_path / "locked", text=one_slot), locked=True) == 1
    assert _claims_of_two_callers(open_sim_host(tmp_path / "unlocked", text=one_slot), locked=False) == 2


def _leave_half_made(host: SimulatedHost, name: str) -> None:
    """Stop in the middle of a creation, as a killed process would."""

    class Stopped:
        def on_plan(self, steps: tuple[str, ...]) -> None: ...
        def on_step_finish(self, number: int, text: str) -> None: ...
        def on_step_undo(self, text: str) -> None:
            raise KeyboardInterrupt

        def on_step_start(self, number: int, text: str) -> None:
            if text.startswith("record"):
                raise KeyboardInterrupt

    with pytest.raises(VgpuctlError):
        create_vm(host.ports, context(wait_seconds=1, progress=Stopped()), request("A100-4C", name=name), start=True)
