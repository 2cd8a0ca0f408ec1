# SPDX-License-Identifier: Apache-2.0
"""Plans in which VMs are in each other's way: what is shown can be done, and what cannot be done is not shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.blocked_hosts import SOFTWARE, STANDS, crowded, gpu_of, stood
from tests.hosts import SimulatedHost, context, create, picture, request, run_reconcile, start, stop
from tests.mixed_sizes import overlapping, placed
from tests.reserving_vms import vm_of
from vgpuctl.errors import NoCapacity
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.vm import VmState
from vgpuctl.operations.attach import attach
from vgpuctl.operations.change import move_vgpu
from vgpuctl.operations.moves import defragment, make_room
from vgpuctl.operations.plans.vm_update import MoveTarget
from vgpuctl.operations.queries import explain
from vgpuctl.ports.host import Host
from vgpuctl.value import Value


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


def with_vfs(directory: Path, kind: str, vfs: tuple[int, ...], *, on: bool) -> SimulatedHost:
    """Return a host with GPUs of so many VFs: a small vGPU on the first, a large one on the second, a twin on a third.

    The third one does not offer the small profile.
    """
    sizes = STOOD[kind]
    placed_on = {"a": (sizes.small, 0), "b": (sizes.large, 1), "c": (sizes.twin, 2)}
    both = f"{sizes.twin}, {sizes.large}"
    gpus = "".join(
        f"  - {{{sizes.gpu}, vfs: {{total: {number}, enabled: {number}}}, profiles: [{profiles}]}}\n"
        for number, profiles in zip(vfs, (f"{sizes.small}, {both}", f"{sizes.small}, {both}", both), strict=False)
    )
    on_them = dict(list(placed_on.items())[: len(vfs)])
    return stood(directory, gpus, on_them, software=SOFTWARE.get(kind, ""), on=on)


def room(ports: Host, profile: str, number: int = 1, *, yes: bool, most: int | None = None) -> Outcome:
    """move-vms --profile; without `yes` plan-moves."""
    return make_room(
        ports, context(dry_run=not yes, confirm=lambda question, steps: None), [(profile, number)], max_moves=most
    )


@pytest.mark.parametrize("on", [True, False], ids=["running", "off"])
@pytest.mark.parametrize("kind", STOOD)
def test_two_vms_change_places_although_the_one_vf_is_taken(tmp_path: Path, kind: str, on: bool) -> None:
    """The only VF of the first GPU is the one from which its VM goes."""
    host = with_vfs(tmp_path, kind, (1, 4), on=on)
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
        host = with_vfs(tmp_path / running, "vendor-vf", (1, 4), on=False)
        start(host.ports, running)
        shown = room(host.ports, STOOD["vendor-vf"].twin, 2, yes=False)
        assert [m.vm for m in shown.data.moves if m.waits] == [waits]
        assert shown.steps[0].startswith(f"give up the place of VM {waits} on ")


def test_on_a_full_host_plan_moves_says_that_nothing_makes_room(tmp_path: Path) -> None:
    sizes = STOOD["vendor-vf"]
    gpus = f"  - {{{sizes.gpu}, profiles: [{sizes.large}]}}\n" * 2
    host = stood(tmp_path, gpus, {name: (sizes.large, number // 2) for number, name in enumerate("abcd")}, on=True)
    before = picture(host)
    with pytest.raises(NoCapacity, match=r"no moves make room for .*; 4 VMs may move"):
        room(host.ports, sizes.large, 1, yes=False)
    assert picture(host) == before
    assert explain(host.ports, sizes.large).data.moves is None


def test_what_fits_as_it_is_needs_no_move(tmp_path: Path) -> None:
    shown = room(crowded(tmp_path, "a").ports, "DC-24Q", yes=False)
    assert (shown.steps, shown.data.moves, shown.changed) == ((), (), False)


def test_a_vm_does_not_wait_for_its_own_place(tmp_path: Path) -> None:
    """Two VMs could make that room, as the next test shows; one that has both vGPUs cannot."""
    host = crowded(tmp_path, "abc")
    stop(host.ports, "a")
    attach(host.ports, context(), request("DC-12Q", name="a"))
    record = vm_of(host, "a").record
    assert record is not None
    _, vgpu = record.vgpus
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
