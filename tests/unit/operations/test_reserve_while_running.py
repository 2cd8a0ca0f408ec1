# SPDX-License-Identifier: Apache-2.0
"""VMs that reserve their places only while running, together with vGPUs without a VM, refreshes, drains and claims."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.faults import Watch
from tests.hosts import (
    Silent,
    SimulatedHost,
    context,
    create,
    open_sim_host,
    picture,
    request,
    run_reconcile,
    start,
    stop,
)
from tests.layouts import FLEX, do
from tests.meanwhile import on_call, rebooted, unchanged
from tests.reserving_vms import SMALL, carriers, fill, reserving_request, small, taken, vm_of, with_lent
from tests.unit.operations.test_refresh import prepared, refresh, the_vm
from tests.vgpus import drop, finding_kinds, make, spec_of
from vgpuctl.config.host_spec import HostSpec
from vgpuctl.errors import Busy, InUse, NoCapacity
from vgpuctl.model.gpu import Ownership, Vgpu
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec
from vgpuctl.model.vm import DrainedVm, ProcessId, Vm, VmState
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.boot import read_domain_files
from vgpuctl.operations.devices import lacks_devices, make_devices, observe_carriers, release_devices
from vgpuctl.operations.execute import execute_plan
from vgpuctl.operations.gpu_scheduler import SchedulerRequest, set_scheduler
from vgpuctl.operations.plans.remove import vm_removal_plan
from vgpuctl.operations.plans.results import vm_row
from vgpuctl.operations.restore import restore_host
from vgpuctl.operations.steps.attach import WriteRecord
from vgpuctl.ports.host import Host
from vgpuctl.value import replace


def spare(host: SimulatedHost) -> Vgpu:
    """Return the observed vGPU without a VM."""
    return next(v for v in observe(host.ports, ReadScope()).vgpus if v.name == "spare")


def test_a_vgpu_without_a_vm_uses_an_unreserved_function(tmp_path: Path) -> None:
    host, profile = with_lent(tmp_path)
    own = carriers(host, "lent")
    make(host.ports, profile)
    drop(host.ports)  # it is not refused for a VM that only had its function
    make(host.ports, profile)
    assert [spare(host).carrier] == own, "this test needs both on one function"
    assert (spare(host).vm, finding_kinds(host)) == (None, [])
    start(host.ports, "lent")
    assert carriers(host, "lent") != own
    assert spare(host).present
    stop(host.ports, "lent")
    drop(host.ports)
    assert taken(host) == set()


def test_a_vm_that_runs_on_the_function_of_a_vgpu_without_a_vm_is_its_user_and_stopping_it_leaves_it(
    tmp_path: Path,
) -> None:
    host, profile = with_lent(tmp_path)
    make(host.ports, profile)
    host.ports.hypervisor.start(vm_of(host, "lent").uuid)  # by virsh, without a hook
    assert spare(host).vm == "lent"
    seen = observe(host.ports, ReadScope())
    (shown,) = vm_row(seen, vm_of(host, "lent")).vgpus
    assert shown.name == "spare"
    with pytest.raises(InUse, match="lent"):
        drop(host.ports)
    stop(host.ports, "lent")
    assert (spare(host).vm, spare(host).present) == (None, True)
    assert finding_kinds(host) == []


@pytest.mark.parametrize("kind", SMALL)
def test_a_starting_vm_never_takes_vgpus_of_host_yaml(tmp_path: Path, kind: str) -> None:
    host, profile = with_lent(tmp_path, kind)
    for name in ("spare", "other"):
        make(host.ports, profile, name)
    with pytest.raises(NoCapacity):
        start(host.ports, "lent")
    spec = spec_of(host)
    host = rebooted(host)
    with pytest.raises(NoCapacity):
        start(host.ports, "lent")
    restore_host(host.ports, context(wait_seconds=5), spec)
    assert spare(host).present


def test_the_hook_spares_missing_vgpus_of_host_yaml(tmp_path: Path) -> None:
    host, profile = with_lent(tmp_path, "mdev-pf")
    for name in ("spare", "other"):
        make(host.ports, profile, name)
    host = rebooted(host)
    vms, _ = read_domain_files(host.ports)
    (vm,) = vms
    with pytest.raises(NoCapacity):
        make_devices(host.ports, context(wait_seconds=5), vm, vm.record, vms)


@pytest.mark.parametrize("kind", SMALL)
def test_the_claim_of_one_that_is_started_says_which_type_was_made(tmp_path: Path, kind: str) -> None:
    host, _ = with_lent(tmp_path, kind)
    start(host.ports, "lent")
    (claim,) = host.ports.claims.all()
    assert claim.type_id is not None
    vm = vm_of(host, "lent")
    seen = observe_carriers(host.ports, (vm.record,), (vm,))
    assert not lacks_devices(seen, vm, vm.record)
    other = replace(seen, claims=(replace(claim, type_id="1"),))
    assert lacks_devices(other, vm, vm.record), "one that was changed by hand is looked at closely"


def test_one_placed_elsewhere_than_recorded_lacks_nothing(tmp_path: Path) -> None:
    host, profile = with_lent(tmp_path, "mdev-pf", gpus=2)
    vm = vm_of(host, "lent")
    fill(host, profile, vm.record.vgpus[0].gpu)
    vms, _ = read_domain_files(host.ports)
    make_devices(host.ports, context(wait_seconds=5), vm, vm.record, vms)
    assert not lacks_devices(observe_carriers(host.ports, (vm.record,), (vm,)), vm, vm.record)


def test_a_refresh_of_one_that_is_off_takes_no_place_and_leaves_that_of_another_alone(tmp_path: Path) -> None:
    host = prepared(tmp_path, reserve="running")
    assert taken(host) == set()
    for number in (1, 2, 3):
        create(host.ports, request("A100-4C", name=f"other-{number}"))
    old = the_vm(host).disks[0].source
    with unchanged(host, taken):
        refresh(host.ports)
    assert the_vm(host).disks[0].source != old
    assert run_reconcile(host.ports).data.findings == ()


def test_of_two_that_change_a_record_at_once_the_second_sees_the_first(tmp_path: Path) -> None:
    host = prepared(tmp_path, reserve="running")
    vm = the_vm(host)
    first = WriteRecord(vm.name, vm.uuid, replace(vm.record, request_json='{"os": "linux"}'), vm.record)
    second = WriteRecord(vm.name, vm.uuid, replace(vm.record, request_json="{}"), vm.record)
    first.perform(host.ports)
    with pytest.raises(Busy, match="has just been changed"):
        second.perform(host.ports)
    second.undo(host.ports)
    assert the_vm(host).record == first.written
    first.undo(host.ports)
    assert the_vm(host).record == vm.record


def test_a_drained_one_is_started_again_and_its_note_goes(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, "mixed")
    create(host.ports, request(mode="sriov", gpu=FLEX, name="lent", reserve="running"))
    do(host.ports, FLEX, "sriov", vfs=6, drain=True)
    assert vm_of(host, "lent").state is VmState.RUNNING
    assert host.ports.claims.drained_vms() == ()
    assert finding_kinds(host) == []


def hooked(host: SimulatedHost) -> Host:
    """Return the host with vgpuctl's hook, another process: its VM releases its places before it counts as off."""
    hook = open_sim_host(host.directory, host.scenario).ports

    def release() -> None:
        (vm,) = read_domain_files(hook)[0]
        with suppress(Busy):
            release_devices(hook, context(wait_seconds=5), vm, vm.record)

    return on_call(host.ports, "hypervisor.wait_stopped", release, after=True)


@pytest.mark.parametrize("kind", SMALL)
def test_what_a_drained_one_has_stays_its_own_while_the_scheduler_is_set_also_with_the_hook(
    tmp_path: Path, kind: str
) -> None:
    host, profile = small(tmp_path, kind)
    create(host.ports, reserving_request(profile, "lent"))
    for claim in host.ports.claims.all():
        host.ports.claims.remove(claim.carrier, claim.vm_uuid)
        host.ports.claims.add(replace(claim, operation=None))
    job = SchedulerRequest(claim.gpu, SchedulerSpec(SchedulerPolicy.FIXED_SHARE, 2), drain=True)
    with unchanged(host, taken):
        set_scheduler(hooked(host), context(), job)
    assert vm_of(host, "lent").state is VmState.RUNNING
    assert {(v.vm, v.owner) for v in observe(host.ports, ReadScope()).vgpus} == {("lent", Ownership.MANAGED)}


def test_one_that_is_elsewhere_than_its_record_says_comes_back_where_it_was(tmp_path: Path) -> None:
    host, profile = with_lent(tmp_path, "mdev-pf", gpus=2)
    vm = vm_of(host, "lent")
    fill(host, profile, vm.record.vgpus[0].gpu)
    make_devices(host.ports, context(wait_seconds=5), vm, vm.record, read_domain_files(host.ports)[0])
    host.ports.hypervisor.start(vm.uuid)  # by virsh
    before = picture(host)
    (other,) = {c.gpu for c in host.ports.claims.all()} - {vm.record.vgpus[0].gpu}
    job = SchedulerRequest(other, SchedulerSpec(SchedulerPolicy.FIXED_SHARE, 2), drain=True)
    set_scheduler(host.ports, context(), job)
    assert (picture(host).mdevs, vm_of(host, "lent").state) == (before.mdevs, VmState.RUNNING)


def test_vfs_of_stopped_vms_without_reservation_can_go(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, "mixed")
    for name in ("one", "two"):
        create(host.ports, request(mode="sriov", gpu=FLEX, name=name, reserve="running"))
    with pytest.raises(InUse):
        do(host.ports, FLEX, "sriov", vfs=1, drain=True)
    for name in ("one", "two"):
        stop(host.ports, name)
    do(host.ports, FLEX, "sriov", vfs=1)
    host.ports.claims.add_drained_vm(DrainedVm(vm_of(host, "two").uuid, FLEX, ProcessId(999999, 1)))
    assert finding_kinds(host) == ["drained"]
    run_reconcile(host.ports)
    assert vm_of(host, "two").state is VmState.RUNNING
    assert host.ports.claims.drained_vms() == ()


def test_a_restore_ignores_the_former_vgpu_of_an_unreserved_vm(tmp_path: Path) -> None:
    host, profile = with_lent(tmp_path)
    make(host.ports, profile)
    assert [spare(host).carrier] == carriers(host, "lent"), "this test needs both on one function"
    spec: HostSpec = spec_of(host)
    host = rebooted(host)
    restore_host(host.ports, context(wait_seconds=5), spec)
    assert (spare(host).present, taken(host)) == (True, {spare(host).carrier})


def test_a_vm_removed_during_creation_is_not_reported_created(tmp_path: Path) -> None:
    host, profile = small(tmp_path, "vendor-vf")

    def removing() -> None:
        vm = vm_of(host, "lent")
        plan = vm_removal_plan(vm, vm.record, host.ports.hypervisor.leftovers(vm.uuid), keep_disks=False)
        plan.steps[0].perform(host.ports)

    ports = on_call(host.ports, "storage.create_volume", removing, after=True)
    with pytest.raises(Busy, match="has just been changed"):
        create(ports, reserving_request(profile, "lent"), start=False)
    assert host.ports.hypervisor.find_domain("lent") is None
    assert (picture(host).files, taken(host)) == ({}, set())


def test_a_vm_that_was_made_just_now_is_not_removed_for_what_it_was_before(tmp_path: Path) -> None:
    host, profile = small(tmp_path, "vendor-vf")
    half: list[Vm] = []
    ports = on_call(host.ports, "storage.create_volume", lambda: half.append(vm_of(host, "lent")), after=True)
    create(ports, reserving_request(profile, "lent"), start=False)
    (vm,) = half
    plan = vm_removal_plan(vm, vm.record, host.ports.hypervisor.leftovers(vm.uuid), keep_disks=False)
    with unchanged(host), pytest.raises(Busy, match="has just been changed"):
        execute_plan(host.ports, plan, Silent())


def test_on_a_gpu_reserved_for_it_it_gets_its_old_place(tmp_path: Path) -> None:
    host, profile = small(tmp_path, "vendor-vf")
    host.sim.host_file.write_text("version: 1\ngpus:\n  all: {reserved_for: vdi-*}\n")
    create(host.ports, reserving_request(profile, "vdi-1"), start=False)
    vm = vm_of(host, "vdi-1")
    make_devices(host.ports, context(wait_seconds=5), vm, vm.record, read_domain_files(host.ports)[0])
    assert taken(host) == set(carriers(host, "vdi-1"))


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("by", ["stop-vm", "reconcile"])
def test_a_place_is_given_back_after_its_device_is_gone(tmp_path: Path, kind: str, by: str) -> None:
    """The next owner of the claim would find the former device."""
    host, profile = small(tmp_path, kind)
    uuid = create(host.ports, reserving_request(profile, "vm")).data.uuid
    (carrier,) = carriers(host, "vm")
    seen: list[bool] = []

    def observed(number: int, call: str, args: tuple[Any, ...]) -> None:
        if (call, args[:1]) == ("claims.remove", (carrier,)):
            now = picture(host)
            seen.append(carrier in now.types or carrier in now.mdevs)

    if by == "stop-vm":
        stop(Watch(before=observed).watch(host.ports), "vm")
    else:
        host.ports.hypervisor.destroy(str(uuid))
        run_reconcile(Watch(before=observed).watch(host.again().ports))
    assert seen == [False]
    assert taken(host) == set()
