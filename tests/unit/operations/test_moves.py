# SPDX-License-Identifier: Apache-2.0
"""VMs that are stopped, given another place and started so that more fits; on simulated hosts.

Size: planning, moving and what comes between, on the same scattered hosts.
"""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.blocked_hosts import ON_TWO, SOFTWARE, STANDS, crowded, gpu_of, on_two_gpus, stood
from tests.faults import CHANGING, Trial, acts_on_backends
from tests.hosts import (
    SimulatedHost,
    context,
    create,
    delete,
    open_sim_host,
    request,
    run_reconcile,
    set_vm,
    start,
    stop,
)
from tests.meanwhile import on_call, unchanged, with_calls
from tests.mixed_sizes import FORMS, Q24, Q48, mixed, overlapping, placed
from tests.reserving_vms import all_start, carriers, record_of, taken, vm_of
from vgpuctl.errors import Busy, InUse, LibvirtFailed, NeedsConfirmation, NoCapacity, NotFound
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.port_values import DomainInfo, DomainLeftovers
from vgpuctl.model.results.moves import CountResult
from vgpuctl.model.vm import VmState
from vgpuctl.operations.attach import attach
from vgpuctl.operations.change import move_vgpu
from vgpuctl.operations.moves import defragment, make_room, query_fit
from vgpuctl.operations.plans.vm_update import MoveTarget
from vgpuctl.operations.queries import explain, list_profiles
from vgpuctl.ports.host import Host
from vgpuctl.value import Value, replace

TWO = {kind: ON_TWO[kind] for kind in ("vendor-vf", "mdev-pf", "mdev-vf")}


def scattered(directory: Path, kind: str, *, running: bool, more: str = "") -> SimulatedHost:
    """Return a host with two GPUs and one small vGPU on each, where both had room on one; `more` of its scenario."""
    vms = dict.fromkeys(("gone", "first", "second"), TWO[kind][1])
    host = on_two_gpus(directory, kind, vms, running=running, more=more)
    delete(host.ports, "gone")
    return host.again()


def gpus_of(host: SimulatedHost, name: str) -> list[str]:
    return [v.gpu for v in record_of(host, name).vgpus]


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
    with unchanged(host):
        shown = room(host.ports, "A100-40C", yes=False)
    assert shown.dry_run
    assert shown.steps[0].startswith("stop, move and start VM ")
    assert shown.data.places[0].profile == "A100-40C"


def test_what_is_not_confirmed_is_not_done(tmp_path: Path) -> None:
    host = scattered(tmp_path, "vendor-vf", running=True)

    def refuse(question: str, steps: tuple[str, ...]) -> None:
        raise NeedsConfirmation(question, lines=list(steps))

    with unchanged(host), pytest.raises(NeedsConfirmation, match="Move 1 VM") as refused:
        make_room(host.ports, context(confirm=refuse), [("A100-40C", 1)], max_moves=None)
    assert refused.value.facts["lines"][0].startswith("stop, move and start VM ")


def test_nothing_is_moved_for_what_fits_as_it_is(tmp_path: Path) -> None:
    host = scattered(tmp_path, "vendor-vf", running=True)
    done = room(host.ports, "A100-20C", 2)
    assert (done.changed, done.steps, done.data.moves) == (False, (), ())
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
    with unchanged(host), pytest.raises(Busy, match="did not shut down within") as failed:
        room(host.ports, "A100-40C")
    assert "the same command again" in str(failed.value.hint)


def test_a_failure_after_the_first_move_says_what_is_not_done_and_the_same_command_goes_on(tmp_path: Path) -> None:
    host, plan = two_moves(tmp_path)
    second = plan[1].vm
    record = host.ports.hypervisor.find_domain(second)

    def shutdown(uuid: str) -> None:
        if uuid == record.uuid:
            raise LibvirtFailed("cannot shut down", libvirt_code=1)
        host.ports.hypervisor.shutdown(uuid)

    with pytest.raises(LibvirtFailed) as failed:
        room(with_calls(host.ports, "hypervisor", shutdown=shutdown), "A100-40C", 2)
    assert failed.value.changed
    assert gpus_of(host, plan[0].vm) == [plan[0].to_gpu]
    rest = room(host.again().ports, "A100-40C", 2).data.moves
    assert len(rest) == 1
    assert query_fit(host.ports, [("A100-40C", 2)]).data.fits is True


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
    ports = on_call(host.ports, "hypervisor.shutdown", lambda: delete(host.ports, second.vm), nth=1)
    with pytest.raises(NotFound, match="has just been deleted") as failed:
        room(ports, "A100-40C", 2)
    assert not any("not started again" in line for line in failed.value.left)
    assert gpus_of(host, first.vm) == [first.to_gpu]
    assert host.ports.claims.drained_vms() == ()


def test_a_vm_is_not_shut_down_for_a_place_that_is_gone_when_its_turn_comes(tmp_path: Path) -> None:
    host, (_, second) = two_moves(tmp_path)
    taken = request("A100-20C", name="faster", gpu=second.to_gpu)
    stopped: list[str] = []

    def shutdown(uuid: str) -> None:
        stopped.append(uuid)
        host.ports.hypervisor.shutdown(uuid)

    ports = with_calls(host.ports, "hypervisor", shutdown=shutdown)
    with pytest.raises(NoCapacity):
        room(on_call(ports, "hypervisor.shutdown", lambda: create(host.ports, taken), nth=1), "A100-40C", 2)
    assert second.uuid not in stopped
    assert vm_of(host, second.vm).state is VmState.RUNNING


def test_a_vm_paused_after_the_plan_is_not_shut_down(tmp_path: Path) -> None:
    host = scattered(tmp_path, "vendor-vf", running=True)
    (move,) = room(host.ports, "A100-40C", yes=False).data.moves
    states = itertools.chain([VmState.RUNNING], itertools.repeat(VmState.PAUSED))

    def domains() -> tuple[DomainInfo, ...]:
        state = next(states)
        return tuple(replace(r, state=state) if r.uuid == move.uuid else r for r in host.ports.hypervisor.domains())

    def shutdown(uuid: str) -> None:
        raise AssertionError(uuid)

    with pytest.raises(Busy, match="it is paused now"):
        room(with_calls(host.ports, "hypervisor", domains=domains, shutdown=shutdown), "A100-40C")


def test_what_is_saved_with_its_vgpu_keeps_it(tmp_path: Path) -> None:
    host = scattered(tmp_path, "vendor-vf", running=False)
    (carrier,) = carriers(host, "first")

    def leftovers(uuid: str) -> DomainLeftovers:
        return replace(host.ports.hypervisor.leftovers(uuid), managed_save=True)

    ports = with_calls(host.ports, "hypervisor", leftovers=leftovers)
    goal = MoveTarget(gpus_of(host, "second")[0])
    with unchanged(host), pytest.raises(InUse, match="first has a managed save"):
        move_vgpu(ports, context(), "first", carrier, goal)
    with unchanged(host), pytest.raises(InUse, match="first has a managed save"):
        set_vm(ports, request("A100-40C", name="first"))


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
    goal = MoveTarget(gpu, at["b"])
    with unchanged(host), pytest.raises(NoCapacity, match="is no longer free"):
        move_vgpu(host.ports, context(), "a", carrier, goal)
    with unchanged(host), pytest.raises(Busy, match="no longer has"):
        move_vgpu(host.ports, context(), "a", "gone", goal)


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


def trial_of(directory: Path, kind: str, *, running: bool) -> Trial:
    return Trial(
        directory,
        partial(scattered, kind=kind, running=running),
        partial(do, kind=kind),
        partial(all_start, names=("first", "second")),
    )


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


class Sizes(Value):
    """A GPU in a scenario, of which four small vGPUs or fewer large ones fit on one; `twin` is as large as small."""

    gpu: str
    small: str
    twin: str
    large: str


STOOD = {
    "vendor-vf": Sizes("model: L40S", "L40S-12Q", "L40S-12A", "L40S-24Q"),
    "mdev-vf": Sizes("model: A16", "A16-4Q", "A16-4A", "A16-8Q"),
    "mig": Sizes("model: RTX PRO 6000, mig: [1g.24gb+gfx]", "DC-1-6Q", "DC-1-6A", "DC-1-24Q"),
}


def with_vfs(directory: Path, kind: str, *, on: bool) -> SimulatedHost:
    """Return a host with GPUs of one and of four VFs: a small vGPU on the first, a large one on the second."""
    sizes = STOOD[kind]
    profiles = f"{sizes.small}, {sizes.twin}, {sizes.large}"
    gpus = "".join(f"  - {{{sizes.gpu}, vfs: {{total: {n}, enabled: {n}}}, profiles: [{profiles}]}}\n" for n in (1, 4))
    placed_on = {"a": (sizes.small, 0), "b": (sizes.large, 1)}
    return stood(directory, gpus, placed_on, software=SOFTWARE.get(kind, ""), on=on)


@pytest.mark.parametrize("on", [True, False], ids=["running", "off"])
@pytest.mark.parametrize("kind", STOOD)
def test_two_vms_change_places_although_the_one_vf_is_taken(tmp_path: Path, kind: str, on: bool) -> None:
    """The only VF of the first GPU is the one from which its VM goes."""
    host = with_vfs(tmp_path, kind, on=on)
    before = [gpu_of(host, name) for name in "ab"]
    shown = room(host.ports, STOOD[kind].twin, 2, yes=False)
    assert [(m.waits, m.round) for m in shown.data.moves] == [(False, 2), (True, 3)]
    assert len(shown.steps) == 3
    done = room(host.ports, STOOD[kind].twin, 2, yes=True)
    assert done.steps == shown.steps
    assert not done.warnings
    assert [gpu_of(host, name) for name in "ab"] == before[::-1]
    assert all(vm_of(host, name).state is (VmState.RUNNING if on else VmState.STOPPED) for name in "ab")
    assert not run_reconcile(host.again().ports, dry_run=True).data.findings


def test_defragmentation_changes_places_too(tmp_path: Path) -> None:
    """With the two at each other's places one more large one fits; the first GPU has no other function."""
    sizes = STOOD["vendor-vf"]
    gpus = "".join(f"  - {{{sizes.gpu}, vfs: {{total: {number}, enabled: {number}}}}}\n" for number in (1, 4))
    host = stood(tmp_path, gpus, {"a": (sizes.large, 0), "b": (sizes.small, 1)}, on=True)
    before = [gpu_of(host, name) for name in "ab"]
    for dry_run in (True, False):
        done = defragment(host.ports, context(dry_run=dry_run, confirm=lambda question, steps: None), max_moves=None)
        assert [m.waits for m in done.data.moves] == [False, True]
    assert [gpu_of(host, name) for name in "ab"] == before[::-1]
    create(host.ports, request(sizes.large, name="c"))


def test_where_vms_are_in_each_others_way_one_that_is_off_waits(tmp_path: Path) -> None:
    for running, waits in (("a", "b"), ("b", "a")):
        host = with_vfs(tmp_path / running, "vendor-vf", on=False)
        start(host.ports, running)
        shown = room(host.ports, STOOD["vendor-vf"].twin, 2, yes=False)
        assert [m.vm for m in shown.data.moves if m.waits] == [waits]
        assert shown.steps[0].startswith(f"give up the place of VM {waits} on ")


def test_on_a_full_host_plan_moves_says_that_nothing_makes_room(tmp_path: Path) -> None:
    sizes = STOOD["vendor-vf"]
    gpus = f"  - {{{sizes.gpu}, profiles: [{sizes.large}]}}\n" * 2
    host = stood(tmp_path, gpus, {name: (sizes.large, number // 2) for number, name in enumerate("abcd")}, on=True)
    with unchanged(host), pytest.raises(NoCapacity, match=r"no moves make room for .*; 4 VMs may move"):
        room(host.ports, sizes.large, 1, yes=False)
    assert explain(host.ports, sizes.large).data.moves is None


def test_a_vm_does_not_wait_for_its_own_place(tmp_path: Path) -> None:
    """Two VMs could make that room, as the next test shows; one that has both vGPUs cannot."""
    host = crowded(tmp_path, "abc")
    stop(host.ports, "a")
    attach(host.ports, context(), request("DC-12Q", name="a"))
    _, vgpu = record_of(host, "a").vgpus
    if vgpu.placement_id != 60:
        goal = MoveTarget(vgpu.gpu, 60)
        move_vgpu(host.ports, context(), "a", vgpu.carrier, goal)
    with pytest.raises(NoCapacity, match="no moves make room"):
        room(host.ports, "DC-16Q", yes=False, most=2)


def test_a_plan_says_who_waits_and_carries_it_out(tmp_path: Path) -> None:
    host = crowded(tmp_path)
    with pytest.raises(NoCapacity, match="with 1 moves or fewer"):
        room(host.ports, "DC-16Q", yes=False, most=1)
    shown = room(host.ports, "DC-16Q", yes=False)
    moves = [(m.vm, m.round, m.waits) for m in shown.data.moves]
    assert moves in ([("a", 2, False), ("d", 3, True)], [("d", 2, False), ("a", 3, True)])
    assert [step.partition(" VM ")[0] for step in shown.steps] == ["stop", "stop, move and start", "move and start"]
    assert " and give up its place on " in shown.steps[0]
    room(host.ports, "DC-16Q", yes=True)
    to = {m.vm: m.to_placement_id for m in shown.data.moves}
    assert placed(host) == {name: place for name, (_, place) in STANDS.items()} | to
    assert all(vm_of(host, name).state is VmState.RUNNING for name in STANDS)
    create(host.ports, request("DC-16Q", name="large"))
    assert overlapping(host) == []
    assert not run_reconcile(host.again().ports, dry_run=True).data.findings
