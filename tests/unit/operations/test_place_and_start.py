# SPDX-License-Identifier: Apache-2.0
"""A VM that reserves its places only while it runs: it takes none while off, and starts wherever there is room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.faults import Watch
from tests.hosts import (
    Silent,
    SimulatedHost,
    context,
    create,
    delete,
    living_operation,
    open_sim_host,
    picture,
    request,
    run_reconcile,
    start,
    stop,
)
from tests.layouts import FLEX, do
from tests.reserving_vms import SMALL, carriers, reserving_request, small, taken, vm_of
from vgpuctl.backends.mdev import carrier_uuid
from vgpuctl.config.host_spec import HostSpec
from vgpuctl.config.vm_request import VmRequest
from vgpuctl.errors import Busy, InUse, NoCapacity
from vgpuctl.model.gpu import Ownership
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.vm import RecordState, VmState
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.ensure_vms import ensure_vms
from vgpuctl.operations.power import start_vm
from vgpuctl.operations.restore import restore_host
from vgpuctl.value import replace


def many(host: SimulatedHost, wanted: VmRequest, count: int, *, begin: bool, dry_run: bool = False) -> Outcome:
    """create-vm --count."""

    class Nobody(Silent):
        def __getattr__(self, name: str) -> Any:
            return lambda *words, **more: Silent()

    names = tuple(f"vdi-{n:03}" for n in range(1, count + 1))
    return ensure_vms(host.ports, context(dry_run=dry_run, progress=Nobody()), wanted, names, start=begin, parallel=1)


@pytest.mark.parametrize("kind", SMALL)
def test_more_can_be_defined_than_fit_and_each_starts_when_another_stops(tmp_path: Path, kind: str) -> None:
    host, profile = small(tmp_path, kind)
    for name in ("a", "b", "c"):
        create(host.ports, reserving_request(profile, name), start=False)
    assert taken(host) == set()
    start(host.ports, "c")
    start(host.ports, "a")
    assert len(taken(host)) == 2
    with pytest.raises(NoCapacity) as refused:
        start(host.ports, "b")
    assert refused.value.status == 4
    assert vm_of(host, "b").state is VmState.STOPPED
    stop(host.ports, "c")
    assert len(taken(host)) == 1
    start(host.ports, "b")
    assert {vm_of(host, n).state for n in ("a", "b")} == {VmState.RUNNING}
    assert taken(host) == {*carriers(host, "a"), *carriers(host, "b")}
    assert run_reconcile(host.ports).data.findings == ()


@pytest.mark.parametrize("kind", SMALL)
def test_defining_it_takes_nothing_even_when_nothing_is_free(tmp_path: Path, kind: str) -> None:
    host, profile = small(tmp_path, kind)
    for name in ("full-1", "full-2"):
        create(host.ports, request(profile, name=name))
    before = taken(host)
    made = create(host.ports, reserving_request(profile, "vm"), start=False)
    assert taken(host) == before
    assert not any("claim" in s or "create vGPU" in s for s in made.steps)
    assert [v.reason for v in made.data.vgpus] == ["reserved only while the VM runs"]
    assert made.data.reserve == "running"
    with pytest.raises(NoCapacity):
        start(host.ports, "vm")
    with pytest.raises(NoCapacity):
        create(host.ports, reserving_request(profile, "vm-2"))
    assert host.ports.hypervisor.find_domain("vm-2") is None
    assert taken(host) == before


@pytest.mark.parametrize("kind", SMALL)
def test_twenty_are_defined_with_one_command(tmp_path: Path, kind: str) -> None:
    host, profile = small(tmp_path, kind)
    planned = many(host, reserving_request(profile, "vm"), 20, begin=False, dry_run=True)
    assert len(planned.data.vms) == 20
    done = many(host, reserving_request(profile, "vm"), 20, begin=False)
    assert len(done.data.vms) == 20
    assert taken(host) == set()
    assert observe(host.ports, ReadScope()).vgpus == ()
    again = many(host, reserving_request(profile, "vm"), 20, begin=False)
    assert not again.changed
    with pytest.raises(NoCapacity, match="2 fit now"):
        many(host, reserving_request(profile, "vm", image=None), 23, begin=True)


@pytest.mark.parametrize("kind", SMALL)
def test_always_vms_keep_their_vgpus_while_off(tmp_path: Path, kind: str) -> None:
    host, profile = small(tmp_path, kind)
    create(host.ports, reserving_request(profile, "lent"), start=False)
    create(host.ports, request(profile, name="kept-1"))
    create(host.ports, request(profile, name="kept-2"))
    stop(host.ports, "kept-1")
    with pytest.raises(NoCapacity):
        start(host.ports, "lent")
    host.sim.reboot()
    host = host.again()
    with pytest.raises(NoCapacity):
        start(host.ports, "lent")
    start(host.ports, "kept-1")
    assert taken(host) == set(carriers(host, "kept-1"))


def test_a_vm_whose_function_another_one_has_is_moved_to_a_free_one(tmp_path: Path) -> None:
    host, profile = small(tmp_path, "vendor-vf")
    create(host.ports, reserving_request(profile, "lent"), start=False)
    old = carriers(host, "lent")
    create(host.ports, request(profile, name="kept"))
    assert carriers(host, "kept") == old, "this test needs both on one function"
    output = start_vm(host.ports, context(dry_run=True, wait_seconds=1), "lent")
    assert any(s.startswith("change VM lent: A100-20C: ") for s in output.steps)
    assert carriers(host, "lent") == old
    before = vm_of(host, "lent")
    start(host.ports, "lent")
    after = vm_of(host, "lent")
    assert after.state is VmState.RUNNING
    assert carriers(host, "lent") != old
    assert replace(before, state=after.state, hostdevs=(), record=None) == replace(after, hostdevs=(), record=None)
    assert taken(host) == {*old, *carriers(host, "lent")}
    stop(host.ports, "kept")
    stop(host.ports, "lent")
    delete(host.ports, "kept")
    moved = carriers(host, "lent")
    start(host.ports, "lent")
    assert carriers(host, "lent") == moved, "its own place is free: it stays there"


def test_an_mdev_is_made_on_any_gpu_with_room(tmp_path: Path) -> None:
    host, profile = small(tmp_path, "mdev-pf", gpus=2)
    create(host.ports, reserving_request(profile, "lent"), start=False)
    first = vm_of(host, "lent").record
    assert first is not None
    for name in ("kept-1", "kept-2"):
        create(host.ports, request(profile, name=name, gpu=first.vgpus[0].gpu))
    start(host.ports, "lent")
    now = vm_of(host, "lent").record
    assert now is not None
    assert now.vgpus[0].carrier == first.vgpus[0].carrier == carrier_uuid(first.vm_uuid, 0)
    assert now.vgpus[0].gpu != first.vgpus[0].gpu
    assert picture(host).mdevs[now.vgpus[0].carrier][0] == now.vgpus[0].function


@pytest.mark.parametrize("kind", SMALL)
def test_a_device_left_by_a_guest_shutdown_is_detected_and_removed(tmp_path: Path, kind: str) -> None:
    host, profile = small(tmp_path, kind)
    for name in ("a", "b"):
        create(host.ports, reserving_request(profile, name))
    create(host.ports, reserving_request(profile, "c"), start=False)
    host.sim.hypervisor.shutdown(vm_of(host, "a").uuid)
    assert len(taken(host)) == 2
    host = host.again()
    row = next(v for v in observe(host.ports, ReadScope()).vgpus if v.vm == "a")
    assert row.idle
    assert row.owner is Ownership.MANAGED
    with pytest.raises(NoCapacity) as refused:
        start(host.ports, "c")
    assert "vgpuctl reconcile-host frees the vGPUs of a, which are off" in str(refused.value.hint)
    findings = run_reconcile(host.ports).data.findings
    assert [f.kind for f in findings] == ["not-needed"]
    assert taken(host) == set(carriers(host, "b"))
    start(host.ports, "c")
    assert vm_of(host, "b").state is VmState.RUNNING


@pytest.mark.parametrize("kind", SMALL)
def test_one_that_still_has_its_place_starts_in_it(tmp_path: Path, kind: str) -> None:
    host, profile = small(tmp_path, kind)
    create(host.ports, reserving_request(profile, "a"))
    host.sim.hypervisor.shutdown(vm_of(host, "a").uuid)
    before = taken(host)
    host = host.again()
    done = start(host.ports, "a")
    assert [s for s in done.steps if "create" in s or "claim" in s] == []
    assert taken(host) == before


@pytest.mark.parametrize("kind", SMALL)
def test_deleting_one_leaves_what_others_have(tmp_path: Path, kind: str) -> None:
    host, profile = small(tmp_path, kind)
    create(host.ports, reserving_request(profile, "lent"), start=False)
    create(host.ports, request(profile, name="kept"))
    before = taken(host)
    delete(host.ports, "lent")
    assert taken(host) == before
    assert host.ports.hypervisor.find_domain("lent") is None
    assert vm_of(host, "kept").state is VmState.RUNNING
    create(host.ports, reserving_request(profile, "runs"))
    delete(host.ports, "runs")
    assert taken(host) == before


def test_a_boot_leaves_it_alone_and_two_records_on_one_function_are_no_conflict(tmp_path: Path) -> None:
    host, profile = small(tmp_path, "vendor-vf")
    create(host.ports, reserving_request(profile, "a"))
    host.sim.reboot()
    host = host.again()
    done = restore_host(host.ports, context(wait_seconds=5), HostSpec(1))
    assert done.data.restored == ()
    assert taken(host) == set()
    create(host.ports, reserving_request(profile, "b"), start=False)
    assert carriers(host, "a") == carriers(host, "b")
    assert observe(host.ports, ReadScope()).vgpus == ()
    start(host.ports, "b")
    start(host.ports, "a")
    assert not set(carriers(host, "a")) & set(carriers(host, "b"))


def test_a_cordoned_gpu_is_not_started_on_even_when_the_record_names_it(tmp_path: Path) -> None:
    host, profile = small(tmp_path, "mdev-pf", gpus=2)
    create(host.ports, reserving_request(profile, "vm"), start=False)
    record = vm_of(host, "vm").record
    assert record is not None
    text = f'version: 1\ngpus:\n  "{record.vgpus[0].gpu}": {{cordoned: true}}\n'
    host.ports.host_file.replace(text, None)
    start(host.ports, "vm")
    now = vm_of(host, "vm").record
    assert now is not None
    assert now.vgpus[0].gpu != record.vgpus[0].gpu


def test_two_starts_of_one_vm_do_not_both_work_on_it(tmp_path: Path) -> None:
    host, profile = small(tmp_path, "vendor-vf")
    create(host.ports, reserving_request(profile, "vm"))
    claim = host.ports.claims.all()[0]
    stop(host.ports, "vm")
    other = living_operation(host.ports)
    init = replace(claim, process=replace(claim.process, pid=1), operation=other.id)
    host.ports.claims.add(init)
    with pytest.raises(Busy, match="process 1 works on"):
        start(host.ports, "vm")
    assert host.ports.claims.all() == (init,)
    host.ports.claims.remove(init.carrier, init.vm_uuid)
    elsewhere = replace(init, carrier="0000:3b:00.6", function="0000:3b:00.6")
    host.ports.claims.add(elsewhere)
    with pytest.raises(Busy, match="process 1 works on"):
        start(host.ports, "vm")
    assert host.ports.claims.all() == (elsewhere,)


def test_a_delete_detects_a_start_in_progress(tmp_path: Path) -> None:
    host, profile = small(tmp_path, "vendor-vf")
    create(host.ports, reserving_request(profile, "vm"))
    claim = host.ports.claims.all()[0]
    stop(host.ports, "vm")
    other = living_operation(host.ports)
    started = replace(claim, process=replace(claim.process, pid=1), operation=other.id)

    def begin(number: int, call: str, args: tuple[Any, ...]) -> None:
        if call == "hypervisor.set_record":
            host.ports.claims.add(started)

    with pytest.raises(Busy, match="process 1 works on"):
        delete(Watch(after=begin).watch(host.ports), "vm")
    record = vm_of(host, "vm").record
    assert record is not None
    assert record.state is RecordState.REMOVING, "who starts it reads this and gives up"
    with pytest.raises(Busy, match="is unfinished"):
        start(host.ports, "vm")
    host.ports.claims.remove(started.carrier, started.vm_uuid)
    delete(host.ports, "vm")


def test_plain_vfs_are_reserved_only_while_running(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, "mixed")
    do(host.ports, FLEX, "sriov", 2)
    for name in ("a", "b", "c"):
        create(host.ports, request(name=name, mode="sriov", gpu=FLEX, reserve="running"), start=False)
    assert set(picture(host).claims) == set()
    for name in ("a", "c"):
        start(host.ports, name)
    assert set(picture(host).claims) == {*carriers(host, "a"), *carriers(host, "c")}
    with pytest.raises(NoCapacity):
        start(host.ports, "b")
    stop(host.ports, "a")
    start(host.ports, "b")
    assert run_reconcile(host.ports).data.findings == ()


def test_a_whole_gpu_is_given_to_one_of_several_at_a_time(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, "mixed")
    gpu = create(host.ports, request(name="a", mode="passthrough", reserve="running"), start=False).data.vgpus
    address = gpu[0].gpu
    create(host.ports, request(name="b", mode="passthrough", gpu=address, reserve="running"), start=False)
    assert set(picture(host).claims) == set()
    start(host.ports, "b")
    with pytest.raises((NoCapacity, InUse)):
        create(host.ports, request(name="c", mode="passthrough", gpu=address))
    stop(host.ports, "b")
    create(host.ports, request(name="c", mode="passthrough", gpu=address), start=False)
    with pytest.raises((NoCapacity, InUse)):
        start(host.ports, "b")
