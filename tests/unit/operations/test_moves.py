"""VMs that are stopped, given another place and started so that more fits; on simulated hosts.

Size: planning, moving and what comes between, on the same scattered hosts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.faults import CHANGING, Trial, acts_on_backends
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
from tests.mixed_sizes import FORMS, Q24, Q48, mixed, overlapping, placed
from tests.reserving_vms import carriers, taken, vm_of
from tests.unit.operations.test_faults import spawn
from vgpuctl.errors import Busy, InUse, LibvirtFailed, NeedsConfirmation, NoCapacity, NotFound
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.port_values import DomainInfo, DomainLeftovers
from vgpuctl.model.results.moves import CountResult
from vgpuctl.model.vm import VmState
from vgpuctl.operations.change import move_vgpu
from vgpuctl.operations.moves import defragment, make_room, query_fit
from vgpuctl.operations.plans.vm_update import MoveTarget
from vgpuctl.operations.queries import explain, list_profiles
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

__all__ = ["spawn"]
TWO = {
    "vendor-vf": ("{model: A100, vfs: {total: 4, enabled: 4}, profiles: [A100-20C, A100-40C]}", "A100-20C", "A100-40C"),
    "mdev-pf": ("{model: T4, profiles: [T4-8Q, T4-16Q]}", "T4-8Q", "T4-16Q"),
    "mdev-vf": ("{model: A16, vfs: {total: 4, enabled: 4}, profiles: [A16-8Q, A16-16Q]}", "A16-8Q", "A16-16Q"),
}


def scattered(directory: Path, kind: str, *, running: bool, more: str = "") -> SimulatedHost:
    """Return a host with two GPUs and one small vGPU on each, where both had room on one; `more` of its scenario."""
    gpu, small, _ = TWO[kind]
    kernel = 'kernel: "5.14.0"\n' if kind == "mdev-vf" else ""
    host = open_sim_host(directory, text=f"version: 1\n{kernel}{more}gpus:\n  - {gpu}\n  - {gpu}\n")
    for name in ("gone", "first", "second"):
        create(host.ports, request(small, name=name), start=running)
    delete(host.ports, "gone")
    return host.again()


def gpus_of(host: SimulatedHost, name: str) -> list[str]:
    record = vm_of(host, name).record
    assert record is not None
    return [v.gpu for v in record.vgpus]


def room(ports: Host, profile: str, number: int = 1, *, yes: bool = True, most: int | None = None) -> Outcome:
    """move-vms --profile; without `yes` plan-moves."""
    wanted = [(profile, number)]
    return make_room(ports, context(dry_run=not yes, confirm=lambda question, steps: None), wanted, max_moves=most)


@pytest.mark.parametrize("running", [True, False], ids=["running", "off"])
@pytest.mark.parametrize("kind", TWO)
def test_one_move_makes_room_and_the_vm_is_as_it_was_elsewhere(tmp_path: Path, kind: str, running: bool) -> None:
    host = scattered(tmp_path, kind, running=running)
    before = {name: gpus_of(host, name) for name in ("first", "second")}
    assert before["first"] != before["second"]
    done = room(host.ports, TWO[kind][2])
    (move,) = done.data.moves
    other = "second" if move.vm == "first" else "first"
    assert gpus_of(host, "first") == gpus_of(host, "second") == before[other]
    assert vm_of(host, move.vm).state is (VmState.RUNNING if running else VmState.STOPPED)
    assert not run_reconcile(host.ports, dry_run=True).data.findings
    assert len(taken(host)) == 2
    create(host.ports, request(TWO[kind][2], name="large"))
    assert gpus_of(host, "large") == before[move.vm]


def test_in_a_dry_run_nothing_is_moved_and_the_plan_is_shown(tmp_path: Path) -> None:
    host = scattered(tmp_path, "vendor-vf", running=True)
    before = picture(host)
    shown = room(host.ports, "A100-40C", yes=False)
    assert shown.dry_run
    assert shown.steps[0].startswith("stop, move and start VM ")
    assert shown.data.places[0].profile == "A100-40C"
    assert picture(host) == before


def test_what_is_not_confirmed_is_not_done(tmp_path: Path) -> None:
    host = scattered(tmp_path, "vendor-vf", running=True)
    before = picture(host)

    def refuse(question: str, steps: tuple[str, ...]) -> None:
        raise NeedsConfirmation(question, lines=list(steps))

    with pytest.raises(NeedsConfirmation, match="Move 1 VM") as refused:
        make_room(host.ports, context(confirm=refuse), [("A100-40C", 1)], max_moves=None)
    assert refused.value.facts["lines"][0].startswith("stop, move and start VM ")
    assert picture(host) == before


def test_nothing_is_moved_for_what_fits_as_it_is(tmp_path: Path) -> None:
    host = scattered(tmp_path, "vendor-vf", running=True)
    done = room(host.ports, "A100-20C", 2)
    assert (done.changed, done.data.moves) == (False, ())
    assert len(done.data.places) == 2


def test_where_no_moves_help_the_refusal_says_who_stays_and_why(tmp_path: Path) -> None:
    host = scattered(tmp_path, "vendor-vf", running=True)
    with pytest.raises(NoCapacity, match="no moves make room for 2 × A100-40C; 2 VMs may move"):
        room(host.ports, "A100-40C", 2)
    with pytest.raises(NoCapacity, match="with 0 moves or fewer"):
        room(host.ports, "A100-40C", most=0)
    create(host.ports, request("A100-20C", name="bound", gpu=gpus_of(host, "second")[0]), start=False)
    delete(host.ports, "second")
    delete(host.ports, "first")
    create(host.ports, request("A100-20C", name="lent", reserve="running"))
    with pytest.raises(NoCapacity) as refused:
        room(host.ports, "A100-40C", 2)
    assert "bound stays: it is restricted: gpu 0000:" in str(refused.value.facts["details"])
    assert "lent stays: it reserves its places only while it runs" in str(refused.value.facts["details"])


def test_a_guest_that_does_not_shut_down_stays_where_it_is_and_the_rest_is_not_moved(tmp_path: Path) -> None:
    lost = "faults: [{on: shutdown, match: first, kind: lost}, {on: shutdown, match: second, kind: lost}]\n"
    host = scattered(tmp_path, "vendor-vf", running=True, more=lost)
    before = picture(host)
    with pytest.raises(Busy, match="did not shut down within") as failed:
        room(host.ports, "A100-40C")
    assert "the same command again" in str(failed.value.hint)
    assert picture(host) == before


def test_a_failure_after_the_first_move_says_what_is_not_done_and_the_same_command_goes_on(tmp_path: Path) -> None:
    host, plan = two_moves(tmp_path)
    second = plan[1].vm
    record = host.ports.hypervisor.find_domain(second)
    assert record is not None

    class Gone:
        """A hypervisor on which the second VM cannot be shut down."""

        def __getattr__(self, name: str) -> object:
            return getattr(host.ports.hypervisor, name)

        def shutdown(self, uuid: str) -> None:
            if uuid == record.uuid:
                raise LibvirtFailed("cannot shut down", libvirt_code=1)
            host.ports.hypervisor.shutdown(uuid)

    with pytest.raises(LibvirtFailed) as failed:
        room(replace(host.ports, hypervisor=Gone()), "A100-40C", 2)
    assert failed.value.changed
    assert gpus_of(host, plan[0].vm) == [plan[0].to_gpu]
    rest = room(host.again().ports, "A100-40C", 2).data.moves
    assert len(rest) == 1
    assert query_fit(host.ports, [("A100-40C", 2)]).data.fits is True


class Meanwhile:
    """A hypervisor on which something happens before the first guest shutdown."""

    def __init__(self, inner: Any, happens: Callable[[], object]) -> None:
        self._inner, self._happens = inner, happens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def shutdown(self, uuid: str) -> None:
        happens, self._happens = self._happens, lambda: None
        happens()
        self._inner.shutdown(uuid)


def two_moves(directory: Path) -> tuple[SimulatedHost, list[Any]]:
    """Return a host on which two VMs have to move to make room for two large ones, and these moves."""
    gpu = "{model: A100, vfs: {total: 4, enabled: 4}, profiles: [A100-20C, A100-40C]}"
    host = open_sim_host(directory, text="version: 1\ngpus:\n" + f"  - {gpu}\n" * 4)
    names = [f"vm-{n}" for n in range(8)]
    for name in names:
        create(host.ports, request("A100-20C", name=name))
    on = {name: gpus_of(host, name)[0] for name in names}
    for address in set(on.values()):
        delete(host.ports, next(name for name in names if on[name] == address))
    host = host.again()
    return host, room(host.ports, "A100-40C", 2, yes=False).data.moves


def test_a_vm_deleted_before_its_move_is_reported_and_others_stay(tmp_path: Path) -> None:
    host, (first, second) = two_moves(tmp_path)
    ports = replace(host.ports, hypervisor=Meanwhile(host.ports.hypervisor, lambda: delete(host.ports, second.vm)))
    with pytest.raises(NotFound, match="has just been deleted") as failed:
        room(ports, "A100-40C", 2)
    assert not any("not started again" in line for line in failed.value.left)
    assert gpus_of(host, first.vm) == [first.to_gpu]
    assert host.ports.claims.drained_vms() == ()


def test_a_vm_is_not_shut_down_for_a_place_that_is_gone_when_its_turn_comes(tmp_path: Path) -> None:
    host, (_, second) = two_moves(tmp_path)
    taken = request("A100-20C", name="faster", gpu=second.to_gpu)
    stopped: list[str] = []

    class Seen(Meanwhile):
        """Logs which VM is shut down."""

        def shutdown(self, uuid: str) -> None:
            stopped.append(uuid)
            super().shutdown(uuid)

    ports = replace(host.ports, hypervisor=Seen(host.ports.hypervisor, lambda: create(host.ports, taken)))
    with pytest.raises(NoCapacity):
        room(ports, "A100-40C", 2)
    assert second.uuid not in stopped
    assert vm_of(host, second.vm).state is VmState.RUNNING


def test_a_vm_paused_after_the_plan_is_not_shut_down(tmp_path: Path) -> None:
    host = scattered(tmp_path, "vendor-vf", running=True)
    (move,) = room(host.ports, "A100-40C", yes=False).data.moves
    observations = 0

    class Paused(Meanwhile):
        """Reports the VM as paused after the plan."""

        def domains(self) -> tuple[DomainInfo, ...]:
            nonlocal observations
            observations += 1
            state = VmState.PAUSED if observations > 1 else VmState.RUNNING
            return tuple(replace(r, state=state) if r.uuid == move.uuid else r for r in host.ports.hypervisor.domains())

        def shutdown(self, uuid: str) -> None:
            raise AssertionError(uuid)

    with pytest.raises(Busy, match="it is paused now"):
        room(replace(host.ports, hypervisor=Paused(host.ports.hypervisor, lambda: None)), "A100-40C")


def test_what_is_saved_with_its_vgpu_keeps_it(tmp_path: Path) -> None:
    host = scattered(tmp_path, "vendor-vf", running=False)
    (carrier,) = carriers(host, "first")
    before = picture(host)

    class Saved(Meanwhile):
        """Has saved the memory of every VM that is off."""

        def leftovers(self, uuid: str) -> DomainLeftovers:
            return replace(host.ports.hypervisor.leftovers(uuid), managed_save=True)

    ports = replace(host.ports, hypervisor=Saved(host.ports.hypervisor, lambda: None))
    goal = MoveTarget(gpus_of(host, "second")[0])
    with pytest.raises(InUse, match="first has a managed save"):
        move_vgpu(ports, context(), "first", carrier, goal)
    with pytest.raises(InUse, match="first has a managed save"):
        set_vm(ports, request("A100-40C", name="first"))
    assert picture(host) == before


@pytest.mark.parametrize("form", FORMS)
def test_a_move_within_a_mixed_size_gpu_is_to_another_placement(tmp_path: Path, form: str) -> None:
    host = mixed(tmp_path, form)
    for name in ("a", "b", "c", "d"):
        create(host.ports, request(Q24, name=name))
    at = {name: place for name, place in placed(host).items() if place is not None}
    in_order = sorted(at, key=lambda name: at[name])
    for name in (in_order[0], in_order[2]):
        delete(host.ports, name)
    done = room(host.again().ports, Q48)
    (move,) = done.data.moves
    assert move.from_gpu == move.to_gpu
    assert placed(host)[move.vm] == move.to_placement_id != move.from_placement_id
    assert vm_of(host, move.vm).state is VmState.RUNNING
    create(host.ports, request(Q48, name="large"))
    assert overlapping(host) == []
    assert not run_reconcile(host.again().ports, dry_run=True).data.findings


def test_a_target_placement_taken_meanwhile_is_refused_and_the_vm_unchanged(tmp_path: Path) -> None:
    host = mixed(tmp_path)
    for name in ("a", "b"):
        create(host.ports, request(Q24, name=name), start=False)
    host = host.again()
    at, gpu = placed(host), gpus_of(host, "a")[0]
    (carrier,) = carriers(host, "a")
    before = picture(host)
    goal = MoveTarget(gpu, at["b"])
    with pytest.raises(NoCapacity, match="is no longer free"):
        move_vgpu(host.ports, context(), "a", carrier, goal)
    with pytest.raises(Busy, match="no longer has"):
        move_vgpu(host.ports, context(), "a", "gone", goal)
    assert picture(host) == before


def test_several_profiles_fit_together_or_the_fewest_that_do_not_are_named(tmp_path: Path) -> None:
    host = scattered(tmp_path, "vendor-vf", running=False)
    answer = query_fit(host.ports, [("A100-20C", 2)])
    assert answer.data.fits is True
    assert len({p.gpu for p in answer.data.places}) == 2
    answer = query_fit(host.ports, [("A100-20C", 2), ("A100-40C", 1)])
    assert answer.data.fits is False
    assert answer.data.too_many == (CountResult("A100-40C", 1),)
    assert all(gpu.free == 0 and gpu.reasons for gpu in answer.data.gpus)


def test_explain_names_the_rule_what_is_in_the_way_and_what_would_have_to_move(tmp_path: Path) -> None:
    host = scattered(tmp_path, "vendor-vf", running=False)
    data = explain(host.ports, "A100-40C").data
    assert [len(gpu.in_the_way) for gpu in data.gpus] == [1, 1]
    assert {gpu.rule for gpu in data.gpus} == {"all vGPUs on it have the same framebuffer size"}
    assert len(data.moves) == 1
    assert explain(host.ports, "A100-20C").data.moves == ()


def test_profiles_that_exclude_each_other_at_full_use_are_listed(tmp_path: Path) -> None:
    text = "version: 1\ngpus:\n  - {model: A100, profiles: [A100-20C, A100-40C]}\n  - {model: T4, profiles: [T4-8Q]}\n"
    host = open_sim_host(tmp_path, text=text)
    rows = {row.profile: row.excludes for row in list_profiles(host.ports).data}
    assert rows == {"A100-20C": ("A100-40C",), "A100-40C": ("A100-20C",), "T4-8Q": ()}


def test_what_departures_have_scattered_is_put_together_again(tmp_path: Path) -> None:
    host = scattered(tmp_path, "mdev-pf", running=True)
    asked: list[tuple[str, tuple[str, ...]]] = []

    def put_together() -> Outcome:
        return defragment(
            host.ports, context(confirm=lambda question, steps: asked.append((question, steps))), max_moves=None
        )

    done = put_together()
    assert asked == [("Move 1 VM?", done.steps)]
    assert len(done.data.moves) == 1
    assert gpus_of(host, "first") == gpus_of(host, "second")
    again = put_together()
    assert len(asked) == 1
    assert not again.changed


def do(ports: Host, kind: str) -> object:
    """Move the VM."""
    return room(ports, TWO[kind][2])


def whole(host: SimulatedHost, where: str) -> None:
    """Check that both VMs exist, that record, devices, definition and claims agree, and that both start."""
    assert not run_reconcile(host.ports, dry_run=True).data.findings, where
    now = picture(host)
    devices = set(now.types) | set(now.mdevs)
    assert devices <= set(now.claims), where
    for name in ("first", "second"):
        start(host.ports, name)
    now = picture(host)
    held = sorted(carrier for running in now.running.values() for carrier in running)
    assert len(held) == 2, where
    assert held == sorted(now.claims) == sorted({*now.types, *now.mdevs}), where


def trial_of(directory: Path, kind: str, *, running: bool) -> Trial:
    return Trial(directory, partial(scattered, kind=kind, running=running), partial(do, kind=kind), whole)


@pytest.mark.parametrize("kind", [kind for _, kind in acts_on_backends(["move"], TWO)])
def test_whatever_call_fails_it_is_undone_or_reconcile_makes_it_whole(tmp_path: Path, kind: str) -> None:
    trial = trial_of(tmp_path, kind, running=False)
    calls = trial.calls()
    assert len(set(calls) & CHANGING) >= 3
    assert trial.failures(calls) >= 2


@pytest.mark.parametrize(("state", "kind"), acts_on_backends(["running", "off"], ["vendor-vf", "mdev-pf"]))
def test_whatever_call_a_process_dies_in_reconcile_makes_it_whole(tmp_path: Path, kind: str, spawn, state: str) -> None:
    trial = trial_of(tmp_path, kind, running=state == "running")
    assert trial.deaths(trial.calls(), spawn) >= 1
