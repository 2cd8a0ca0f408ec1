# SPDX-License-Identifier: Apache-2.0
"""A VM that reserves its places only while it runs: it takes none while off, and starts wherever there is room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.faults import Watch
from tests.layouts import FLEX, do
from tests.lent import SMALL, carriers, lent, small, taken, vm_of
from tests.worlds import Host, Silent, create, delete, mend, open_host, picture, start, stop, wish
from vgpuctl.capacity.ownership import carrier_uuid
from vgpuctl.engine.many import ensure_many
from vgpuctl.engine.observe import Want, observe
from vgpuctl.engine.power import start_vm
from vgpuctl.engine.restore import restore_host
from vgpuctl.errors import Busy, InUse, NoCapacity
from vgpuctl.model.gpu import Owner
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.vm import PromiseState, VmState
from vgpuctl.model.wish import VmWish
from vgpuctl.spec.host import HostSpec
from vgpuctl.value import replace


def many(host: Host, wanted: VmWish, count: int, *, begin: bool, dry_run: bool = False) -> Outcome:
    """create-vm --count."""

    class Nobody(Silent):
        def __getattr__(self, name: str) -> Any:
            return lambda *words, **more: Silent()

    names = tuple(f"vdi-{n:03}" for n in range(1, count + 1))
    return ensure_many(
        host.world, wanted, names, start=begin, parallel=1, dry_run=dry_run, wait_seconds=30, progress=Nobody()
    )


@pytest.mark.parametrize("kind", SMALL)
def test_more_can_be_defined_than_fit_and_each_starts_when_another_stops(tmp_path: Path, kind: str) -> None:
    host, profile = small(tmp_path, kind)
    for name in ("a", "b", "c"):
        create(host.world, lent(profile, name), start=False)
    assert taken(host) == set()
    start(host.world, "c")
    start(host.world, "a")
    assert len(taken(host)) == 2
    with pytest.raises(NoCapacity) as refused:
        start(host.world, "b")
    assert refused.value.status == 4
    assert vm_of(host, "b").state is VmState.STOPPED
    stop(host.world, "c")
    assert len(taken(host)) == 1
    start(host.world, "b")
    assert {vm_of(host, n).state for n in ("a", "b")} == {VmState.RUNNING}
    assert taken(host) == {*carriers(host, "a"), *carriers(host, "b")}
    assert mend(host.world).data["findings"] == []


@pytest.mark.parametrize("kind", SMALL)
def test_defining_it_takes_nothing_even_when_nothing_is_free(tmp_path: Path, kind: str) -> None:
    host, profile = small(tmp_path, kind)
    for name in ("full-1", "full-2"):
        create(host.world, wish(profile, name=name))
    before = taken(host)
    made = create(host.world, lent(profile, "vm"), start=False)
    assert taken(host) == before
    assert not any("claim" in s or "make vGPU" in s for s in made.steps)
    assert [v["reason"] for v in made.data["vgpus"]] == ["reserved only while the VM runs"]  # type: ignore[attr-defined]
    assert made.data["reserve"] == "running"
    with pytest.raises(NoCapacity):
        start(host.world, "vm")
    with pytest.raises(NoCapacity):
        create(host.world, lent(profile, "vm-2"))
    assert host.world.hypervisor.find_domain("vm-2") is None
    assert taken(host) == before


@pytest.mark.parametrize("kind", SMALL)
def test_twenty_are_defined_with_one_command(tmp_path: Path, kind: str) -> None:
    host, profile = small(tmp_path, kind)
    planned = many(host, lent(profile, "vm"), 20, begin=False, dry_run=True)
    assert len(planned.data["vms"]) == 20  # type: ignore[arg-type]
    done = many(host, lent(profile, "vm"), 20, begin=False)
    assert len(done.data["vms"]) == 20  # type: ignore[arg-type]
    assert taken(host) == set()
    assert observe(host.world, Want()).vgpus == ()
    again = many(host, lent(profile, "vm"), 20, begin=False)
    assert not again.changed
    with pytest.raises(NoCapacity, match="2 fit now"):
        many(host, lent(profile, "vm", image=None), 23, begin=True)


@pytest.mark.parametrize("kind", SMALL)
def test_what_an_always_vm_keeps_is_never_lent(tmp_path: Path, kind: str) -> None:
    host, profile = small(tmp_path, kind)
    create(host.world, lent(profile, "lent"), start=False)
    create(host.world, wish(profile, name="kept-1"))
    create(host.world, wish(profile, name="kept-2"))
    stop(host.world, "kept-1")
    with pytest.raises(NoCapacity):
        start(host.world, "lent")
    host.sim.reboot()
    host = host.again()
    with pytest.raises(NoCapacity):
        start(host.world, "lent")
    start(host.world, "kept-1")
    assert taken(host) == set(carriers(host, "kept-1"))


def test_a_vm_whose_function_another_one_has_is_moved_to_a_free_one(tmp_path: Path) -> None:
    host, profile = small(tmp_path, "vendor-vf")
    create(host.world, lent(profile, "lent"), start=False)
    old = carriers(host, "lent")
    create(host.world, wish(profile, name="kept"))
    assert carriers(host, "kept") == old, "this test needs both on one function"
    said = start_vm(host.world, "lent", dry_run=True, wait_seconds=1, progress=Silent())
    assert any(s.startswith("change VM lent: A100-20C: ") for s in said.steps)
    assert carriers(host, "lent") == old
    before = vm_of(host, "lent")
    start(host.world, "lent")
    after = vm_of(host, "lent")
    assert after.state is VmState.RUNNING
    assert carriers(host, "lent") != old
    assert replace(before, state=after.state, hostdevs=(), promise=None) == replace(after, hostdevs=(), promise=None)
    assert taken(host) == {*old, *carriers(host, "lent")}
    stop(host.world, "kept")
    stop(host.world, "lent")
    delete(host.world, "kept")
    moved = carriers(host, "lent")
    start(host.world, "lent")
    assert carriers(host, "lent") == moved, "its own place is free: it stays there"


def test_an_mdev_is_made_on_any_gpu_with_room(tmp_path: Path) -> None:
    host, profile = small(tmp_path, "mdev-pf", gpus=2)
    create(host.world, lent(profile, "lent"), start=False)
    first = vm_of(host, "lent").promise
    assert first is not None
    for name in ("kept-1", "kept-2"):
        create(host.world, wish(profile, name=name, gpu=first.vgpus[0].gpu))
    start(host.world, "lent")
    now = vm_of(host, "lent").promise
    assert now is not None
    assert now.vgpus[0].carrier == first.vgpus[0].carrier == carrier_uuid(first.vm_uuid, 0)
    assert now.vgpus[0].gpu != first.vgpus[0].gpu
    assert picture(host).mdevs[now.vgpus[0].carrier][0] == now.vgpus[0].function


@pytest.mark.parametrize("kind", SMALL)
def test_a_device_left_by_a_guest_that_ended_itself_is_found_and_taken_away(tmp_path: Path, kind: str) -> None:
    host, profile = small(tmp_path, kind)
    for name in ("a", "b"):
        create(host.world, lent(profile, name))
    create(host.world, lent(profile, "c"), start=False)
    host.sim.hypervisor.shutdown(vm_of(host, "a").uuid)
    assert len(taken(host)) == 2
    host = host.again()
    row = next(v for v in observe(host.world, Want()).vgpus if v.vm == "a")
    assert row.idle
    assert row.owner is Owner.OURS
    with pytest.raises(NoCapacity) as refused:
        start(host.world, "c")
    assert "vgpuctl reconcile frees what a have" in str(refused.value.hint)
    findings = mend(host.world).data["findings"]
    assert [f["kind"] for f in findings] == ["not-needed"]  # type: ignore[attr-defined]
    assert taken(host) == set(carriers(host, "b"))
    start(host.world, "c")
    assert vm_of(host, "b").state is VmState.RUNNING


@pytest.mark.parametrize("kind", SMALL)
def test_one_that_still_has_its_place_starts_in_it(tmp_path: Path, kind: str) -> None:
    host, profile = small(tmp_path, kind)
    create(host.world, lent(profile, "a"))
    host.sim.hypervisor.shutdown(vm_of(host, "a").uuid)
    before = taken(host)
    host = host.again()
    done = start(host.world, "a")
    assert [s for s in done.steps if "make" in s or "claim" in s] == []
    assert taken(host) == before


@pytest.mark.parametrize("kind", SMALL)
def test_deleting_one_leaves_what_others_have(tmp_path: Path, kind: str) -> None:
    host, profile = small(tmp_path, kind)
    create(host.world, lent(profile, "lent"), start=False)
    create(host.world, wish(profile, name="kept"))
    before = taken(host)
    delete(host.world, "lent")
    assert taken(host) == before
    assert host.world.hypervisor.find_domain("lent") is None
    assert vm_of(host, "kept").state is VmState.RUNNING
    create(host.world, lent(profile, "runs"))
    delete(host.world, "runs")
    assert taken(host) == before


def test_a_boot_leaves_it_alone_and_two_records_on_one_function_are_no_conflict(tmp_path: Path) -> None:
    host, profile = small(tmp_path, "vendor-vf")
    create(host.world, lent(profile, "a"))
    host.sim.reboot()
    host = host.again()
    done = restore_host(host.world, HostSpec(1), dry_run=False, wait_seconds=5, progress=Silent())
    assert done.data["restored"] == []
    assert taken(host) == set()
    create(host.world, lent(profile, "b"), start=False)
    assert carriers(host, "a") == carriers(host, "b")
    assert observe(host.world, Want()).vgpus == ()
    start(host.world, "b")
    start(host.world, "a")
    assert not set(carriers(host, "a")) & set(carriers(host, "b"))


def test_a_cordoned_gpu_is_not_started_on_even_when_the_record_names_it(tmp_path: Path) -> None:
    host, profile = small(tmp_path, "mdev-pf", gpus=2)
    create(host.world, lent(profile, "vm"), start=False)
    promise = vm_of(host, "vm").promise
    assert promise is not None
    text = f'version: 1\ngpus:\n  "{promise.vgpus[0].gpu}": {{cordoned: true}}\n'
    host.world.host_file.replace(text, None)
    start(host.world, "vm")
    now = vm_of(host, "vm").promise
    assert now is not None
    assert now.vgpus[0].gpu != promise.vgpus[0].gpu


def test_two_starts_of_one_vm_do_not_both_work_on_it(tmp_path: Path) -> None:
    host, profile = small(tmp_path, "vendor-vf")
    create(host.world, lent(profile, "vm"))
    claim = host.world.claims.all()[0]
    stop(host.world, "vm")
    init = replace(claim, process=replace(claim.process, pid=1, start_ticks=_started(1)))
    host.world.claims.add(init)
    with pytest.raises(Busy, match="process 1 works on"):
        start(host.world, "vm")
    assert host.world.claims.all() == (init,)
    host.world.claims.remove(init.carrier, init.vm_uuid)
    elsewhere = replace(init, carrier="0000:3b:00.6", function="0000:3b:00.6")
    host.world.claims.add(elsewhere)
    with pytest.raises(Busy, match="process 1 works on"):
        start(host.world, "vm")
    assert host.world.claims.all() == (elsewhere,)


def _started(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def test_a_delete_finds_out_that_a_start_has_begun(tmp_path: Path) -> None:
    host, profile = small(tmp_path, "vendor-vf")
    create(host.world, lent(profile, "vm"))
    claim = host.world.claims.all()[0]
    stop(host.world, "vm")
    started = replace(claim, process=replace(claim.process, pid=1, start_ticks=_started(1)))

    def begin(number: int, call: str, args: tuple[Any, ...]) -> None:
        if call == "hypervisor.set_promise":
            host.world.claims.add(started)

    with pytest.raises(Busy, match="process 1 works on"):
        delete(Watch(after=begin).watch(host.world), "vm")
    promise = vm_of(host, "vm").promise
    assert promise is not None
    assert promise.state is PromiseState.REMOVING, "who starts it reads this and gives up"
    with pytest.raises(Busy, match="half-way"):
        start(host.world, "vm")
    host.world.claims.remove(started.carrier, started.vm_uuid)
    delete(host.world, "vm")


def test_plain_functions_are_lent_and_moved_too(tmp_path: Path) -> None:
    host = open_host(tmp_path, "mixed")
    do(host.world, FLEX, "sriov", 2)
    for name in ("a", "b", "c"):
        create(host.world, wish(name=name, mode="sriov", gpu=FLEX, reserve="running"), start=False)
    assert set(picture(host).claims) == set()
    for name in ("a", "c"):
        start(host.world, name)
    assert set(picture(host).claims) == {*carriers(host, "a"), *carriers(host, "c")}
    with pytest.raises(NoCapacity):
        start(host.world, "b")
    stop(host.world, "a")
    start(host.world, "b")
    assert mend(host.world).data["findings"] == []


def test_a_whole_gpu_is_given_to_one_of_several_at_a_time(tmp_path: Path) -> None:
    host = open_host(tmp_path, "mixed")
    gpu = create(host.world, wish(name="a", mode="passthrough", reserve="running"), start=False).data["vgpus"]
    address = gpu[0]["gpu"]  # type: ignore[index]
    create(host.world, wish(name="b", mode="passthrough", gpu=address, reserve="running"), start=False)
    assert set(picture(host).claims) == set()
    start(host.world, "b")
    with pytest.raises((NoCapacity, InUse)):
        create(host.world, wish(name="c", mode="passthrough", gpu=address))
    stop(host.world, "b")
    create(host.world, wish(name="c", mode="passthrough", gpu=address), start=False)
    with pytest.raises((NoCapacity, InUse)):
        start(host.world, "b")
