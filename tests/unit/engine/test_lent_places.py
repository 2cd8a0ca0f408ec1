# SPDX-License-Identifier: Apache-2.0
"""A VM that lends its places while it is off meets vGPUs without a VM, refreshes, drains and set claims."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.faults import Watch
from tests.layouts import FLEX, do
from tests.lent import SMALL, carriers, lent, small, taken, vm_of
from tests.unit.engine.test_refresh import prepared, refresh, the_vm
from tests.vgpus import drop, found, make, spec_of
from tests.worlds import Host, Silent, create, mend, open_host, picture, start, stop, wish
from vgpuctl.engine.boot import read_domain_files
from vgpuctl.engine.devices import free_devices, lacks_devices, look_for, make_anywhere
from vgpuctl.engine.observe import Want, observe
from vgpuctl.engine.restore import restore_host
from vgpuctl.engine.run import carry_out
from vgpuctl.engine.scheduler import SchedulerJob, set_scheduler
from vgpuctl.errors import Busy, InUse, NoCapacity
from vgpuctl.model.gpu import Owner, Vgpu
from vgpuctl.model.scheduler import Policy, SchedulerSpec
from vgpuctl.model.seams import Processes
from vgpuctl.model.vm import DrainedVm, ProcessId, Vm, VmState
from vgpuctl.plan.remove import removal_plan
from vgpuctl.plan.report import vm_row
from vgpuctl.spec.host import HostSpec
from vgpuctl.steps.plug import WriteRecord
from vgpuctl.value import replace


def spare(host: Host) -> Vgpu:
    """Return the vGPU without a VM as it is seen."""
    return next(v for v in observe(host.world, Want()).vgpus if v.name == "spare")


def test_a_vgpu_without_a_vm_takes_a_lent_function_and_goes_again(tmp_path: Path) -> None:
    host, profile = small(tmp_path, "vendor-vf")
    create(host.world, lent(profile, "lent"), start=False)
    own = carriers(host, "lent")
    make(host.world, profile)
    assert [spare(host).carrier] == own, "this test needs both on one function"
    assert (spare(host).vm, found(host)) == (None, [])
    start(host.world, "lent")
    assert carriers(host, "lent") != own
    assert spare(host).present
    stop(host.world, "lent")
    drop(host.world)
    assert taken(host) == set()


def test_deleting_it_is_not_refused_for_a_vm_that_only_had_its_function(tmp_path: Path) -> None:
    host, profile = small(tmp_path, "vendor-vf")
    create(host.world, lent(profile, "lent"), start=False)
    make(host.world, profile)
    drop(host.world)
    assert taken(host) == set()


def test_a_vm_that_runs_on_the_function_of_a_vgpu_without_a_vm_is_its_user_and_stopping_it_leaves_it(
    tmp_path: Path,
) -> None:
    host, profile = small(tmp_path, "vendor-vf")
    create(host.world, lent(profile, "lent"), start=False)
    make(host.world, profile)
    host.world.hypervisor.start(vm_of(host, "lent").uuid)  # by virsh, without a hook
    assert spare(host).vm == "lent"
    seen = observe(host.world, Want())
    (shown,) = vm_row(seen, vm_of(host, "lent"))["vgpus"]  # type: ignore[misc]
    assert shown["name"] == "spare"
    with pytest.raises(InUse, match="lent"):
        drop(host.world)
    stop(host.world, "lent")
    assert (spare(host).vm, spare(host).present) == (None, True)
    assert found(host) == []


@pytest.mark.parametrize("kind", SMALL)
def test_what_host_yaml_keeps_is_never_lent_also_not_after_a_boot(tmp_path: Path, kind: str) -> None:
    host, profile = small(tmp_path, kind)
    create(host.world, lent(profile, "lent"), start=False)
    for name in ("spare", "other"):
        make(host.world, profile, name)
    with pytest.raises(NoCapacity):
        start(host.world, "lent")
    spec = spec_of(host)
    host.sim.reboot()
    host = host.again()
    with pytest.raises(NoCapacity):
        start(host.world, "lent")
    restore_host(host.world, spec, dry_run=False, wait_seconds=5, progress=Silent())
    assert spare(host).present


def test_the_hook_gives_nothing_away_that_host_yaml_keeps_and_is_not_made_yet(tmp_path: Path) -> None:
    host, profile = small(tmp_path, "mdev-pf")
    create(host.world, lent(profile, "lent"), start=False)
    for name in ("spare", "other"):
        make(host.world, profile, name)
    host.sim.reboot()
    host = host.again()
    vms, _ = read_domain_files(host.world)
    (vm,) = vms
    assert vm.promise is not None
    with pytest.raises(NoCapacity):
        make_anywhere(host.world, vm, vm.promise, vms, 5, Silent())


@pytest.mark.parametrize("kind", SMALL)
def test_the_claim_of_one_that_is_started_says_which_type_was_made(tmp_path: Path, kind: str) -> None:
    host, profile = small(tmp_path, kind)
    create(host.world, lent(profile, "lent"), start=False)
    start(host.world, "lent")
    (claim,) = host.world.claims.all()
    assert claim.type_id is not None
    vm = vm_of(host, "lent")
    assert vm.promise is not None
    seen = look_for(host.world, (vm.promise,), (vm,))
    assert not lacks_devices(seen, vm, vm.promise)
    other = replace(seen, claims=(replace(claim, type_id="1"),))
    assert lacks_devices(other, vm, vm.promise), "one that was changed by hand is looked at closely"


def test_one_that_is_elsewhere_than_its_record_says_lacks_nothing(tmp_path: Path) -> None:
    host, profile = small(tmp_path, "mdev-pf", gpus=2)
    create(host.world, lent(profile, "lent"), start=False)
    vm = vm_of(host, "lent")
    assert vm.promise is not None
    for name in ("kept-1", "kept-2"):
        create(host.world, wish(profile, name=name, gpu=vm.promise.vgpus[0].gpu))
    vms, _ = read_domain_files(host.world)
    make_anywhere(host.world, vm, vm.promise, vms, 5, Silent())
    assert not lacks_devices(look_for(host.world, (vm.promise,), (vm,)), vm, vm.promise)


def test_a_refresh_of_one_that_is_off_takes_no_place_and_leaves_that_of_another_alone(tmp_path: Path) -> None:
    host = prepared(tmp_path, reserve="running")
    assert taken(host) == set()
    for number in (1, 2, 3):
        create(host.world, wish("A100-4C", name=f"other-{number}"))
    before = taken(host)
    old = the_vm(host).disks[0].source
    refresh(host.world)
    assert taken(host) == before
    assert the_vm(host).disks[0].source != old
    assert mend(host.world).data["findings"] == []


def test_a_refresh_of_one_that_runs_starts_it_again(tmp_path: Path) -> None:
    host = prepared(tmp_path, "drain", reserve="running")
    refresh(host.world, "drain")
    assert the_vm(host).state is VmState.RUNNING
    assert len(host.world.claims.all()) == 1


def test_of_two_that_change_a_record_at_once_the_second_sees_the_first(tmp_path: Path) -> None:
    host = prepared(tmp_path, reserve="running")
    vm = the_vm(host)
    assert vm.promise is not None
    first = WriteRecord(vm.name, vm.uuid, replace(vm.promise, spec='{"os": "linux"}'), vm.promise)
    second = WriteRecord(vm.name, vm.uuid, replace(vm.promise, spec="{}"), vm.promise)
    first.perform(host.world)
    with pytest.raises(Busy, match="changed just now"):
        second.perform(host.world)
    second.undo(host.world)
    assert the_vm(host).promise == first.promise
    first.undo(host.world)
    assert the_vm(host).promise == vm.promise


def test_a_drained_one_is_started_again_and_its_note_goes(tmp_path: Path) -> None:
    host = open_host(tmp_path, "mixed")
    create(host.world, wish(mode="sriov", gpu=FLEX, name="lent", reserve="running"))
    do(host.world, FLEX, "sriov", vfs=6, drain=True)
    assert vm_of(host, "lent").state is VmState.RUNNING
    assert host.world.claims.drained() == ()
    assert found(host) == []


class Hooked:
    """A libvirt with vgpuctl's hook, another process: what it stops gives back its places before it counts as off."""

    def __init__(self, host: Host) -> None:
        self.real = host.world.hypervisor
        self.hook = replace(host.world, processes=Beside(host.world.processes))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def wait_stopped(self, uuid: str, seconds: float) -> bool:
        stopped = self.real.wait_stopped(uuid, seconds)
        (vm,) = (vm for vm in read_domain_files(self.hook)[0] if vm.uuid == uuid)
        assert vm.promise is not None
        with suppress(Busy):
            free_devices(self.hook, vm, vm.promise, 5, Silent())
        return stopped


class Beside:
    """The same processes, seen by one that lives beside this one."""

    def __init__(self, real: Processes) -> None:
        self.real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def this(self) -> ProcessId:
        mine = self.real.this()
        return ProcessId(mine.pid, mine.start_ticks + 1)


@pytest.mark.parametrize("kind", SMALL)
def test_what_a_drained_one_has_stays_its_own_while_the_scheduler_is_set_also_with_the_hook(
    tmp_path: Path, kind: str
) -> None:
    host, profile = small(tmp_path, kind)
    create(host.world, lent(profile, "lent"))
    for claim in host.world.claims.all():
        host.world.claims.remove(claim.carrier, claim.vm_uuid)
        host.world.claims.add(replace(claim, process=ProcessId(999999, 1)))
    before = taken(host)
    world = replace(host.world, hypervisor=Hooked(host))
    job = SchedulerJob(claim.gpu, SchedulerSpec(Policy.FIXED_SHARE, 2), drain=True, wait_seconds=5)
    set_scheduler(world, job, dry_run=False, progress=Silent())
    assert taken(host) == before
    assert vm_of(host, "lent").state is VmState.RUNNING
    assert {(v.vm, v.owner) for v in observe(host.world, Want()).vgpus} == {("lent", Owner.OURS)}


def test_one_that_is_elsewhere_than_its_record_says_comes_back_where_it_was(tmp_path: Path) -> None:
    host, profile = small(tmp_path, "mdev-pf", gpus=2)
    create(host.world, lent(profile, "lent"), start=False)
    vm = vm_of(host, "lent")
    assert vm.promise is not None
    for name in ("kept-1", "kept-2"):
        create(host.world, wish(profile, name=name, gpu=vm.promise.vgpus[0].gpu))
    make_anywhere(host.world, vm, vm.promise, read_domain_files(host.world)[0], 5, Silent())
    host.world.hypervisor.start(vm.uuid)  # by virsh
    before = picture(host)
    (other,) = {c.gpu for c in host.world.claims.all()} - {vm.promise.vgpus[0].gpu}
    job = SchedulerJob(other, SchedulerSpec(Policy.FIXED_SHARE, 2), drain=True, wait_seconds=5)
    set_scheduler(host.world, job, dry_run=False, progress=Silent())
    assert (picture(host).mdevs, vm_of(host, "lent").state) == (before.mdevs, VmState.RUNNING)


def test_a_gpu_gives_up_the_functions_that_are_only_lent(tmp_path: Path) -> None:
    host = open_host(tmp_path, "mixed")
    for name in ("one", "two"):
        create(host.world, wish(mode="sriov", gpu=FLEX, name=name, reserve="running"))
    with pytest.raises(InUse):
        do(host.world, FLEX, "sriov", vfs=1, drain=True)
    for name in ("one", "two"):
        stop(host.world, name)
    do(host.world, FLEX, "sriov", vfs=1)
    host.world.claims.note_drained(DrainedVm(vm_of(host, "two").uuid, FLEX, ProcessId(999999, 1)))
    assert found(host) == ["drained"]
    mend(host.world)
    assert vm_of(host, "two").state is VmState.RUNNING
    assert host.world.claims.drained() == ()


def test_a_restore_makes_nothing_for_it_and_is_not_kept_from_what_it_only_had(tmp_path: Path) -> None:
    host, profile = small(tmp_path, "vendor-vf")
    create(host.world, lent(profile, "lent"), start=False)
    make(host.world, profile)
    assert [spare(host).carrier] == carriers(host, "lent"), "this test needs both on one function"
    spec: HostSpec = spec_of(host)
    host.sim.reboot()
    host = host.again()
    restore_host(host.world, spec, dry_run=False, wait_seconds=5, progress=Silent())
    assert (spare(host).present, taken(host)) == (True, {spare(host).carrier})


class Struck:
    """A storage where something happens after a volume was made."""

    def __init__(self, real: Any, act: Any) -> None:
        self.real, self.act = real, act

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def make_volume(self, *words: Any, **more: Any) -> Any:
        made = self.real.make_volume(*words, **more)
        self.act()
        return made


def test_a_vm_that_is_removed_while_it_is_made_is_not_told_as_made(tmp_path: Path) -> None:
    host, profile = small(tmp_path, "vendor-vf")

    def removing() -> None:
        vm = vm_of(host, "lent")
        assert vm.promise is not None
        plan = removal_plan(vm, vm.promise, host.world.hypervisor.leftovers(vm.uuid), keep_disks=False)
        plan.steps[0].perform(host.world)

    world = replace(host.world, storage=Struck(host.world.storage, removing))
    with pytest.raises(Busy, match="changed just now"):
        create(world, lent(profile, "lent"), start=False)
    assert host.world.hypervisor.find_domain("lent") is None
    assert (picture(host).files, taken(host)) == ({}, set())


def test_a_vm_that_was_made_just_now_is_not_removed_for_what_it_was_before(tmp_path: Path) -> None:
    host, profile = small(tmp_path, "vendor-vf")
    half: list[Vm] = []
    world = replace(host.world, storage=Struck(host.world.storage, lambda: half.append(vm_of(host, "lent"))))
    create(world, lent(profile, "lent"), start=False)
    (vm,) = half
    assert vm.promise is not None
    before = picture(host)
    plan = removal_plan(vm, vm.promise, host.world.hypervisor.leftovers(vm.uuid), keep_disks=False)
    with pytest.raises(Busy, match="changed just now"):
        carry_out(host.world, plan, Silent())
    assert picture(host) == before


def test_a_gpu_that_is_reserved_for_it_gives_it_its_own_place_again(tmp_path: Path) -> None:
    host, profile = small(tmp_path, "vendor-vf")
    host.sim.host_file.write_text("version: 1\ngpus:\n  all: {reserved_for: vdi-*}\n")
    create(host.world, lent(profile, "vdi-1"), start=False)
    vm = vm_of(host, "vdi-1")
    assert vm.promise is not None
    make_anywhere(host.world, vm, vm.promise, read_domain_files(host.world)[0], 5, Silent())
    assert taken(host) == set(carriers(host, "vdi-1"))


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("by", ["stop-vm", "reconcile"])
def test_a_place_is_given_back_after_its_device_is_gone(tmp_path: Path, kind: str, by: str) -> None:
    """Whoever claims it next would meet the former device."""
    host, profile = small(tmp_path, kind)
    uuid = create(host.world, lent(profile, "vm")).data["uuid"]
    (carrier,) = carriers(host, "vm")
    seen: list[bool] = []

    def look(number: int, call: str, args: tuple[Any, ...]) -> None:
        if (call, args[:1]) == ("claims.remove", (carrier,)):
            now = picture(host)
            seen.append(carrier in now.types or carrier in now.mdevs)

    if by == "stop-vm":
        stop(Watch(before=look).watch(host.world), "vm")
    else:
        host.world.hypervisor.destroy(str(uuid))
        mend(Watch(before=look).watch(host.again().world))
    assert seen == [False]
    assert taken(host) == set()
