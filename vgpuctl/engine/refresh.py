# SPDX-License-Identifier: Apache-2.0
"""Rebuild a VM from another base image: its system disk becomes a new clone, everything else of it stays.

Name, uuid, MAC address, vGPUs, NVRAM, TPM, the other disks and the seed for cloud-init are kept. Until the new disk is
switched in, a failure takes all back; afterwards the VM is refreshed, and only the former disk is still to be deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.engine.attach import own_all
from vgpuctl.engine.chains import find_chains, meant_images
from vgpuctl.engine.done import done
from vgpuctl.engine.guards import find_vm, refuse_stuck, require_system, require_writable
from vgpuctl.engine.observe import Want, observe
from vgpuctl.engine.power import leftovers_of, settled
from vgpuctl.engine.run import carry_out
from vgpuctl.engine.while_off import while_off
from vgpuctl.engine.working import working_on
from vgpuctl.errors import InUse, NotFound, VgpuctlError
from vgpuctl.model.outcome import Confirm, Outcome, Progress
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Plan, Step
from vgpuctl.model.vm import MadeDisk, Promise, Vm
from vgpuctl.plan import refresh as plan
from vgpuctl.plan.chains import refuse_shared_disks
from vgpuctl.plan.facts import check_files, check_pool
from vgpuctl.plan.remove import own_promise
from vgpuctl.plan.report import vm_value
from vgpuctl.plan.reserve import held
from vgpuctl.plan.transient import refuse_transient
from vgpuctl.steps.domain import OFF, StartDomain, StopDomain
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World


class Job(Value):
    """One VM to refresh, looked at and checked; nothing is written yet."""

    snapshot: Snapshot
    vm: Vm
    promise: Promise
    old: MadeDisk
    new: MadeDisk
    make: Plan
    drop: Plan


def refresh_vm(
    world: World,
    name: str,
    image: str,
    *,
    drain: bool,
    dry_run: bool,
    confirm: Confirm,
    wait_seconds: float,
    progress: Progress,
) -> Outcome:
    """Give a VM a new clone of `image` as its system disk; what was written to the former one is lost.

    `drain`: a running VM is shut down first, within `wait_seconds`, and started again whatever comes of it.

    Raises:
        InUse: it runs, has snapshots, or another VM's disk is a clone of its own.
        PartlyApplied: it is refreshed, and the former disk could not be deleted or the VM not be started again.
        VgpuctlError: why not; the VM is as it was.
    """
    if not dry_run:
        require_writable(world)
    job = _job(world, name, image)
    vm = job.vm
    runs = vm.state not in OFF
    if runs and not drain:
        raise InUse(
            f"{vm.name} is {vm.state}; its disk can be exchanged only while it is off",
            hint=f"stop it first: vgpuctl stop-vm {vm.name}; or say --drain",
            vm=vm.name,
            state=str(vm.state),
        )
    stop = StopDomain(vm.name, vm.uuid, force=False, deadline_seconds=wait_seconds)
    around: tuple[list[Step], list[Step]] = ([stop], [StartDomain(vm.name, vm.uuid)]) if runs else ([], [])
    steps = tuple(s.describe() for s in (*around[0], *job.make.steps, *job.drop.steps, *around[1]))
    notes = (f"what was written to {job.old.path} is lost",)
    if dry_run:
        return Outcome(True, vm_value(job.snapshot, vm), steps, job.snapshot.warnings, notes, dry_run=True)
    confirm(f"Rebuild VM {vm.name} from {image}? What was written to {job.old.path} is lost.", steps)
    while_off(
        world, vm, lambda: _exchange(world, vm.uuid, image, wait_seconds, progress), "refreshed", wait_seconds, progress
    )
    made = done(world, vm_value(job.snapshot, vm), (), Plan(()))
    return replace(made, steps=steps, notes=notes)


def _job(world: World, name: str, image: str) -> Job:
    """Look at VM, image and pool, and refuse what stands against it."""
    snapshot = observe(world, Want(models=False))
    vm = find_vm(snapshot, name)
    require_system(snapshot)
    promise = own_promise(vm, "refresh")
    settled(vm, promise)
    refuse_transient((vm,))
    refuse_stuck(snapshot, [v.gpu for v in promise.vgpus])
    old = plan.system_disk(vm, promise)
    found = world.storage.image(image)
    chains = find_chains(world, snapshot, image, old.path)
    check_files(chains, {image: found}, meant_images(world, {image: found}), bases=[image])
    if found is None:
        raise NotFound(f"there is no file {image}", path=image)
    plan.refuse_unbootable(vm, found)
    plan.refuse_kept_states(vm, leftovers_of(world, vm))
    refuse_shared_disks(chains, vm, replace(promise, disks=(old,)), can_keep=False)
    pool = world.storage.pool(old.pool)
    check_pool(old.pool, pool)
    if pool is None:
        raise NotFound(
            f"the storage pool {old.pool} of {old.path} is gone",
            hint="define it again: virsh pool-define-as",
            pool=old.pool,
        )
    names = plan.disk_names(vm, promise, old)
    free = next(n for n in names if not pool.active or world.storage.volume(pool.name, n) is None)
    new = plan.new_disk(old, found, free)
    drop = plan.dropping(vm, plan.switched(promise, old, new))
    return Job(snapshot, vm, promise, old, new, plan.making(vm, promise, old, new, found, pool), drop)


def _exchange(world: World, name: str, image: str, wait_seconds: float, progress: Progress) -> None:
    """Look again, make the VM's claims this process's own, and carry both plans out."""
    job = _job(world, name, image)
    if job.vm.state not in OFF:
        raise InUse(f"{job.vm.name} was started just now", hint="run the command again", vm=job.vm.name)
    own = replace(job.promise, vgpus=held(job.snapshot, job.vm, job.promise))
    mine = own_all(world, job.vm, own, (), wait_seconds)
    with working_on(world, () if own.vgpus else (job.vm.uuid,)):
        carry_out(world, job.make, progress, mine)
        try:
            carry_out(world, job.drop, progress)
        except VgpuctlError as error:
            error.changed = True
            raise
