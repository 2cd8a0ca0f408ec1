# SPDX-License-Identifier: Apache-2.0
"""Plans in which VMs take each other's places: what is shown can be done, and what cannot be done is not shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.exchanges import SOFTWARE, STANDS, crowded, gpu_of, stood
from tests.hosts import WAIT_SECONDS, Silent, SimulatedHost, create, picture, request, run_reconcile, stop
from tests.mixed_sizes import overlapping, placed
from tests.reserving_vms import vm_of
from vgpuctl.engine.attach import attach
from vgpuctl.engine.change import move_vgpu
from vgpuctl.engine.moves import defragment, make_room
from vgpuctl.engine.queries import explain
from vgpuctl.errors import NoCapacity
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.vm import VmState
from vgpuctl.observe import ReadScope, observe
from vgpuctl.plan.vm_update import MoveTarget
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
    stands = {"a": (sizes.small, 0), "b": (sizes.large, 1), "c": (sizes.twin, 2)}
    both = f"{sizes.twin}, {sizes.large}"
    gpus = "".join(
        f"  - {{{sizes.gpu}, vfs: {{total: {number}, enabled: {number}}}, profiles: [{profiles}]}}\n"
        for number, profiles in zip(vfs, (f"{sizes.small}, {both}", f"{sizes.small}, {both}", both), strict=False)
    )
    on_them = dict(list(stands.items())[: len(vfs)])
    return stood(directory, gpus, on_them, software=SOFTWARE.get(kind, ""), on=on)


def room(ports: Host, profile: str, number: int, *, yes: bool) -> Outcome:
    """plan-moves --profile."""
    return make_room(ports, [(profile, number)], max_moves=None, yes=yes, wait_seconds=WAIT_SECONDS, progress=Silent())


@pytest.mark.parametrize("on", [True, False], ids=["running", "off"])
@pytest.mark.parametrize("kind", STOOD)
def test_what_lacks_a_function_is_refused_when_it_is_shown_as_when_it_is_done(
    tmp_path: Path, kind: str, on: bool
) -> None:
    """The only VF of the first GPU is the one from which its VM would go."""
    host = with_vfs(tmp_path, kind, (1, 4), on=on)
    before = picture(host)
    said = []
    for yes in (False, True):
        with pytest.raises(NoCapacity, match=r"for b at once: each needs .*, 1 in all, and 0 of 1 are free") as no:
            room(host.ports, STOOD[kind].twin, 2, yes=yes)
        said.append((str(no.value), no.value.hint, no.value.facts))
    assert said[0] == said[1]
    assert picture(host) == before
    assert explain(host.ports, STOOD[kind].twin).data["moves"] is None


@pytest.mark.parametrize("kind", STOOD)
def test_of_two_exchanges_the_one_that_finds_its_functions_is_shown_and_done(tmp_path: Path, kind: str) -> None:
    host = with_vfs(tmp_path, kind, (1, 4, 3), on=True)
    gpus = [gpu.address for gpu in observe(host.ports, ReadScope()).gpus]
    shown = room(host.ports, STOOD[kind].twin, 3, yes=False)
    assert {(m["vm"], m["to_gpu"], m["round"]) for m in shown.data["moves"]} == {("b", gpus[2], 1), ("c", gpus[1], 1)}
    assert not shown.data["fewest"]
    done = room(host.ports, STOOD[kind].twin, 3, yes=True)
    assert done.steps == shown.steps
    assert not done.warnings
    assert [gpu_of(host, name) for name in "abc"] == [gpus[0], gpus[2], gpus[1]]
    assert all(vm_of(host, name).state is VmState.RUNNING for name in "abc")
    assert not run_reconcile(host.again().ports, dry_run=True).data["findings"]


def test_what_lacks_a_function_brings_no_order(tmp_path: Path) -> None:
    """With the two at each other's places one more large one would fit; the first GPU has no other function."""
    sizes = STOOD["vendor-vf"]
    gpus = "".join(f"  - {{{sizes.gpu}, vfs: {{total: {number}, enabled: {number}}}}}\n" for number in (1, 4))
    host = stood(tmp_path, gpus, {"a": (sizes.large, 0), "b": (sizes.small, 1)}, on=True)
    for yes in (False, True):
        done = defragment(host.ports, max_moves=None, yes=yes, wait_seconds=WAIT_SECONDS, progress=Silent())
        assert (done.changed, done.data["moves"]) == (False, [])


def test_what_fits_as_it_is_needs_no_round(tmp_path: Path) -> None:
    shown = room(crowded(tmp_path, "a").ports, "DC-24Q", 1, yes=False)
    assert (shown.steps, shown.data["moves"], shown.changed) == ((), [], False)


def test_two_vgpus_of_one_vm_do_not_go_at_once(tmp_path: Path) -> None:
    """Two VMs could make that room, as the next test shows; one that has both vGPUs cannot."""
    host = crowded(tmp_path, "abc")
    stop(host.ports, "a")
    attach(host.ports, request("DC-12Q", name="a"), dry_run=False, wait_seconds=WAIT_SECONDS, progress=Silent())
    record = vm_of(host, "a").record
    assert record is not None
    _, vgpu = record.vgpus
    if vgpu.placement_id != 60:
        goal = MoveTarget(vgpu.gpu, 60)
        move_vgpu(host.ports, "a", vgpu.carrier, goal, wait_seconds=WAIT_SECONDS, progress=Silent())
    with pytest.raises(NoCapacity, match="moving the"):
        make_room(host.ports, [("DC-16Q", 1)], max_moves=2, yes=False, wait_seconds=WAIT_SECONDS, progress=Silent())


def test_a_plan_says_who_goes_at_once_and_carries_it_out(tmp_path: Path) -> None:
    host = crowded(tmp_path)
    with pytest.raises(NoCapacity, match="with 1 moves or fewer"):
        make_room(host.ports, [("DC-16Q", 1)], max_moves=1, yes=False, wait_seconds=WAIT_SECONDS, progress=Silent())
    shown = make_room(
        host.ports, [("DC-16Q", 1)], max_moves=None, yes=False, wait_seconds=WAIT_SECONDS, progress=Silent()
    )
    assert [(m["vm"], m["round"]) for m in shown.data["moves"]] in ([("a", 1), ("d", 1)], [("d", 1), ("a", 1)])
    assert [step.partition(":")[0] for step in shown.steps] == ["2 at once, as each needs the place of another"]
    make_room(host.ports, [("DC-16Q", 1)], max_moves=None, yes=True, wait_seconds=WAIT_SECONDS, progress=Silent())
    to = {m["vm"]: m["to_placement_id"] for m in shown.data["moves"]}
    assert placed(host) == {name: place for name, (_, place) in STANDS.items()} | to
    assert all(vm_of(host, name).state is VmState.RUNNING for name in STANDS)
    create(host.ports, request("DC-16Q", name="large"))
    assert overlapping(host) == []
    assert not run_reconcile(host.again().ports, dry_run=True).data["findings"]
