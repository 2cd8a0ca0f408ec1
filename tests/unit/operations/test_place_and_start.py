# SPDX-License-Identifier: Apache-2.0
"""A VM that reserves its places only while it runs: it takes none while off, and starts wherever there is room.

What changes it while it is off takes and frees nothing either.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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
    set_vm,
    start,
    stop,
)
from tests.layouts import FLEX, do
from tests.meanwhile import on_call, rebooted, unchanged
from tests.reserving_vms import SMALL, carriers, fill, record_of, reserving_request, small, taken, vm_of, with_lent
from tests.unit.operations.test_change import ensure
from vgpuctl.backends.mdev import carrier_uuid
from vgpuctl.config.host_spec import HostSpec
from vgpuctl.config.vm_request import VmRequest
from vgpuctl.errors import Busy, InUse, NoCapacity
from vgpuctl.model.gpu import Ownership
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.vm import Claim, RecordState, VmState
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.attach import attach, detach
from vgpuctl.operations.ensure_vms import ensure_vms
from vgpuctl.operations.power import start_vm
from vgpuctl.operations.queries import list_vms
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
    fill(host, profile)
    with unchanged(host, taken):
        made = create(host.ports, reserving_request(profile, "vm"), start=False)
    assert not any("claim" in s or "create vGPU" in s for s in made.steps)
    assert [v.reason for v in made.data.vgpus] == ["reserved only while the VM runs"]
    assert made.data.reserve == "running"
    with unchanged(host), pytest.raises(NoCapacity):
        start(host.ports, "vm")
    with unchanged(host), pytest.raises(NoCapacity):
        create(host.ports, reserving_request(profile, "vm-2"))


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
    host, profile = with_lent(tmp_path, kind)
    fill(host, profile)
    stop(host.ports, "kept-1")
    with pytest.raises(NoCapacity):
        start(host.ports, "lent")
    host = rebooted(host)
    with pytest.raises(NoCapacity):
        start(host.ports, "lent")
    start(host.ports, "kept-1")
    assert taken(host) == set(carriers(host, "kept-1"))


def test_a_vm_whose_function_another_one_has_is_moved_to_a_free_one(tmp_path: Path) -> None:
    host, profile = with_lent(tmp_path)
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
    host, profile = with_lent(tmp_path, "mdev-pf", gpus=2)
    first = record_of(host, "lent")
    fill(host, profile, first.vgpus[0].gpu)
    start(host.ports, "lent")
    now = record_of(host, "lent")
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
    with unchanged(host, taken):
        done = start(host.again().ports, "a")
    assert [s for s in done.steps if "create" in s or "claim" in s] == []


@pytest.mark.parametrize("kind", SMALL)
def test_deleting_one_leaves_what_others_have(tmp_path: Path, kind: str) -> None:
    host, profile = with_lent(tmp_path, kind)
    create(host.ports, request(profile, name="kept"))
    with unchanged(host, taken):
        delete(host.ports, "lent")
        create(host.ports, reserving_request(profile, "runs"))
        delete(host.ports, "runs")
    assert [vm.name for vm in list_vms(host.ports, context()).data if vm.state == "running"] == ["kept"]
    assert host.ports.hypervisor.find_domain("lent") is None


def test_a_boot_leaves_it_alone_and_two_records_on_one_function_are_no_conflict(tmp_path: Path) -> None:
    host, profile = small(tmp_path, "vendor-vf")
    create(host.ports, reserving_request(profile, "a"))
    host = rebooted(host)
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
    record = record_of(host, "vm")
    text = f'version: 1\ngpus:\n  "{record.vgpus[0].gpu}": {{cordoned: true}}\n'
    host.ports.host_file.replace(text, None)
    start(host.ports, "vm")
    assert record_of(host, "vm").vgpus[0].gpu != record.vgpus[0].gpu


def with_start_elsewhere(directory: Path) -> tuple[SimulatedHost, Claim]:
    """Return a host with a VM "vm" that is off, and the claim of process 1, which starts it."""
    host, profile = small(directory, "vendor-vf")
    create(host.ports, reserving_request(profile, "vm"))
    claim = host.ports.claims.all()[0]
    stop(host.ports, "vm")
    other = living_operation(host.ports)
    return host, replace(claim, process=replace(claim.process, pid=1), operation=other.id)


def test_two_starts_of_one_vm_do_not_both_work_on_it(tmp_path: Path) -> None:
    host, init = with_start_elsewhere(tmp_path)
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
    host, started = with_start_elsewhere(tmp_path)
    ports = on_call(host.ports, "hypervisor.set_record", lambda: host.ports.claims.add(started), after=True)
    with pytest.raises(Busy, match="process 1 works on"):
        delete(ports, "vm")
    assert record_of(host, "vm").state is RecordState.REMOVING, "who starts it reads this and gives up"
    with pytest.raises(Busy, match="is half deleted"):
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


@pytest.mark.parametrize("kind", SMALL)
def test_always_becomes_running_and_frees_its_place(tmp_path: Path, kind: str) -> None:
    host, profile = small(tmp_path, kind)
    create(host.ports, request(profile, name="vm"), start=False)
    assert len(picture(host).claims) == 1
    wanted = replace(request(profile, name="vm", reserve="running"), sources={"reserve": "given"})
    planned = ensure(host, wanted, dry_run=True)
    assert planned.data.after.reserve == "running"
    assert len(picture(host).claims) == 1
    done = ensure(host, wanted)
    assert done.data.reserve == "running"
    assert taken(host) == set()
    assert not ensure(host, wanted).changed
    start(host.ports, "vm")
    assert len(picture(host).claims) == 1


@pytest.mark.parametrize("kind", SMALL)
def test_running_becomes_always_and_takes_a_place_or_says_that_none_is_free(tmp_path: Path, kind: str) -> None:
    host, profile = small(tmp_path, kind)
    create(host.ports, reserving_request(profile, "vm"), start=False)
    fill(host, profile)
    wanted = replace(request(profile, name="vm"), sources={"reserve": "given"})
    with unchanged(host), pytest.raises(NoCapacity) as refused:
        ensure(host, wanted)
    assert refused.value.status == 4
    delete(host.ports, "kept-2")
    done = ensure(host, wanted)
    assert done.data.reserve == "always"
    assert [v.present for v in done.data.vgpus] == [True]
    assert taken(host) == {*carriers(host, "kept-1"), *carriers(host, "vm")}
    host = host.again()
    assert run_reconcile(host.ports).data.findings == ()
    start(host.ports, "vm")


@pytest.mark.parametrize(("scenario", "first", "second"), [("a100-40", "A100-4C", "A100-5C"), ("t4", "T4-2Q", "T4-4Q")])
def test_its_profile_changes_without_taking_a_place(tmp_path: Path, scenario: str, first: str, second: str) -> None:
    host = open_sim_host(tmp_path, scenario)
    create(host.ports, reserving_request(first, "vm"), start=False)
    create(host.ports, request(first, name="kept"))
    with unchanged(host, taken):
        set_vm(host.ports, request(second, name="vm"))
    record = record_of(host, "vm")
    assert [v.profile for v in record.vgpus] == [second]
    assert record.reserve == "running"
    delete(host.ports, "kept")
    start(host.ports, "vm")
    assert taken(host) == set(carriers(host, "vm"))


@pytest.mark.parametrize("kind", ["vendor-vf", "mdev-pf"])
def test_attach_and_detach_of_one_that_is_off_take_and_free_nothing(tmp_path: Path, kind: str) -> None:
    host, profile = small(tmp_path, kind)
    create(host.ports, reserving_request(profile, "vm"), start=False)
    old = carriers(host, "vm")
    create(host.ports, request(profile, name="kept"))
    with unchanged(host, taken):
        attach(host.ports, context(wait_seconds=5), request(profile, name="vm"))
    assert len(carriers(host, "vm")) == 2
    with unchanged(host, taken):
        detach(host.ports, context(wait_seconds=5), "vm", old)
    assert len(carriers(host, "vm")) == 1
    assert vm_of(host, "kept").state is VmState.RUNNING
    with unchanged(host, taken):
        start(host.ports, "vm")
        stop(host.ports, "vm")


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("kind", SMALL)
def test_what_a_vm_that_is_off_gets_is_not_where_it_is_already(tmp_path: Path, kind: str, full: bool) -> None:
    host, profile = small(tmp_path, kind)
    for name in ("attached", "changed"):
        create(host.ports, reserving_request(profile, name), start=False)
    if full:
        fill(host, profile)
    with unchanged(host, taken):
        attach(host.ports, context(wait_seconds=5), request(profile, name="attached"))
        set_vm(host.ports, request(profile, count=2, name="changed"))
    for name in ("attached", "changed"):
        assert len(set(carriers(host, name))) == 2
    for name in ("kept-1", "kept-2") if full else ():
        delete(host.ports, name)
    start(host.ports, "attached")
    assert taken(host) == set(carriers(host, "attached"))
