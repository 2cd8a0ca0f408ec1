# SPDX-License-Identifier: Apache-2.0
"""Start, stop and delete VMs that vgpuctl made."""

from __future__ import annotations

from contextlib import suppress

from vgpuctl.engine.chains import refuse_shared
from vgpuctl.engine.claim import claims_of, give_back_unused, on_other_gpus, reclaim
from vgpuctl.engine.done import done
from vgpuctl.engine.guards import (
    find_vm,
    refuse_being_set_up,
    refuse_half_exchanged,
    refuse_stuck,
    refuse_worked_on,
    require_system,
    require_writable,
)
from vgpuctl.engine.move import check_host, deleted_meanwhile, start_anywhere
from vgpuctl.engine.observe import Want, observe, observe_devices
from vgpuctl.engine.observe.vms import read_vm
from vgpuctl.engine.run import carry_out
from vgpuctl.engine.working import working_on
from vgpuctl.errors import Busy, HostCannot, Interrupted, InUse, LibvirtFailed, NoCapacity, VgpuctlError
from vgpuctl.model.outcome import Confirm, Outcome, Progress
from vgpuctl.model.records import DomainLeftovers
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Plan
from vgpuctl.model.vm import Promise, PromiseState, Vm, VmState
from vgpuctl.model.world import World
from vgpuctl.plan.devices import device_steps
from vgpuctl.plan.remove import (
    freeing_steps,
    gone_with,
    not_provably_ours,
    own_promise,
    removal_plan,
)
from vgpuctl.plan.report import vm_value
from vgpuctl.plan.reserve import held
from vgpuctl.plan.transient import refuse_transient
from vgpuctl.steps.domain import OFF, RUNS, StartDomain, StopDomain, lacking
from vgpuctl.value import replace


def settled(vm: Vm, promise: Promise) -> None:
    """Refuse a VM that is half made, half removed or half exchanged.

    Raises:
        Busy: reconcile finishes it.
    """
    refuse_half_exchanged(vm, promise)
    if promise.state is not PromiseState.READY:
        raise Busy(
            f"{vm.name} is half-way: its record says {promise.state}",
            hint="if no vgpuctl works on it any more: vgpuctl reconcile",
            vm=vm.name,
            record=str(promise.state),
        )


def start_vm(world: World, name: str, *, dry_run: bool, wait_seconds: float, progress: Progress) -> Outcome:
    """Start a VM, making its vGPUs again where they are missing, as after a reboot."""
    if not dry_run:
        require_writable(world)
    snapshot = observe(world, Want(models=False))
    vm = find_vm(snapshot, name)
    require_system(snapshot)
    promise = own_promise(vm, "start")
    settled(vm, promise)
    if vm.state not in OFF:
        if not dry_run:
            world.claims.forget_drained(vm.uuid)
        return Outcome(False, vm_value(snapshot, vm), warnings=snapshot.warnings, dry_run=dry_run)
    try:
        if promise.lends:
            started = on_other_gpus(
                lambda exclude: start_anywhere(
                    world, vm, promise, exclude, dry_run=dry_run, wait_seconds=wait_seconds, progress=progress
                )
            )
        else:
            started = _start_in_place(world, snapshot, vm, promise, dry_run, wait_seconds, progress)
    except VgpuctlError as error:
        other = None if dry_run or error.left or isinstance(error, Interrupted) else _started_meanwhile(world, vm)
        if other is None:
            raise
        started = other
    if not dry_run:
        world.claims.forget_drained(vm.uuid)
    return started


def _started_meanwhile(world: World, vm: Vm) -> Outcome | None:
    """Return what is reported of a VM that another program started; None unless it runs with all it should have."""
    with suppress(VgpuctlError):
        record = world.hypervisor.find_domain(vm.uuid)
        if record is not None and record.state in RUNS and not lacking(world, record):
            snapshot, now = look_again(world, vm)
            told = (f"VM {vm.name} was started by another program", *snapshot.warnings)
            return Outcome(False, vm_value(snapshot, now), warnings=told)
    return None


def _start_in_place(
    world: World,
    snapshot: Snapshot,
    vm: Vm,
    promise: Promise,
    dry_run: bool,
    wait_seconds: float,
    progress: Progress,
) -> Outcome:
    """Start a VM where its record says that its vGPUs are, making those that are missing."""
    refuse_stuck(snapshot, [v.gpu for v in promise.vgpus])
    seen = _with_types(world, snapshot, vm, promise)
    try:
        plan = _start_plan(world, seen, vm, promise)
    except VgpuctlError:
        _refuse_changing(world, vm, promise)
        raise
    if dry_run:
        return Outcome(True, vm_value(snapshot, vm), tuple(s.describe() for s in plan.steps), dry_run=True)
    mine = reclaim(world, claims_of(world, vm.name, promise), wait_seconds, seen=seen)
    try:
        snapshot, vm = look_again(world, vm)
        promise = own_promise(vm, "start")
        settled(vm, promise)
        if vm.state not in OFF:
            raise InUse(f"{vm.name} was started just now by another program", hint=f"vgpuctl show-vm {vm.name}")
        plan = _start_plan(world, _with_types(world, snapshot, vm, promise), vm, promise)
    except BaseException:
        give_back_unused(world, mine)
        raise
    told = carry_out(world, plan, progress, mine)
    return done(world, vm_value(snapshot, vm), mine, plan, told)


def _refuse_changing(world: World, vm: Vm, promise: Promise) -> None:
    """Refuse a VM that another command changes or just changed: what seems to be in its way may be its own vGPU.

    Raises:
        Busy: naming the process, where it is still there.
    """
    refuse_worked_on(world, vm)
    record = world.hypervisor.find_domain(vm.uuid)
    if record is not None and read_vm(world, record).promise != promise:
        raise Busy(f"{vm.name} was changed just now", hint="run the command again", vm=vm.name)


def leftovers_of(world: World, vm: Vm) -> DomainLeftovers:
    """Return what undefine would remove beside a VM's definition.

    Raises:
        NotFound: another vgpuctl deleted the VM just now.
    """
    try:
        return world.hypervisor.leftovers(vm.uuid)
    except LibvirtFailed:
        if world.hypervisor.find_domain(vm.uuid) is not None:
            raise
        raise deleted_meanwhile(vm) from None


def look_again(world: World, vm: Vm) -> tuple[Snapshot, Vm]:
    """Look at a VM whose claims are held now: another vgpuctl may have changed it meanwhile.

    Raises:
        NotFound: it was deleted.
    """
    snapshot = observe(world, Want(models=False))
    now = snapshot.vm(vm.uuid)
    if now is None:
        raise deleted_meanwhile(vm)
    return snapshot, now


def _with_types(world: World, snapshot: Snapshot, vm: Vm, promise: Promise) -> Snapshot:
    """Return the snapshot with all of the VM's GPUs and, when one of its devices must be made, their types."""
    seen = all(snapshot.gpu(v.gpu) is not None for v in promise.vgpus)
    if seen and all(v.present for v in snapshot.vgpus if v.vm_uuid == vm.uuid):
        return snapshot
    want = Want(types=True, models=False, only=frozenset(v.gpu for v in promise.vgpus))
    return observe_devices(world, want, vms=snapshot.vms, status=snapshot.hypervisor)


def _start_plan(world: World, snapshot: Snapshot, vm: Vm, promise: Promise) -> Plan:
    """Return the steps: each missing device, then the start. A function somebody else took is refused."""
    refuse_being_set_up(snapshot, [v.gpu for v in promise.vgpus])
    check_host(world, snapshot, promise)
    steps = [*device_steps(snapshot, vm, promise), StartDomain(vm.name, vm.uuid)]
    return Plan(steps=tuple(steps), off=(vm.uuid,))


def lacks_place(world: World, snapshot: Snapshot, vm: Vm) -> str | None:
    """Return why a VM that is off could not start where its record says it is; None where it can, or goes elsewhere.

    A GPU that is half set up has no VFs, or no GPU instance for it.
    """
    if vm.promise is None or vm.promise.lends:
        return None
    for vgpu in vm.promise.vgpus:
        gpu = snapshot.gpu(vgpu.gpu)
        if gpu is not None and gpu.function_at(vgpu.function) is None:
            return f"{vgpu.gpu} has no {vgpu.function}"
    try:
        _start_plan(world, _with_types(world, snapshot, vm, vm.promise), vm, vm.promise)
    except (HostCannot, NoCapacity) as error:
        return error.message
    return None


def stop_vm(world: World, name: str, *, force: bool, dry_run: bool, wait_seconds: float, progress: Progress) -> Outcome:
    """Stop a VM; it keeps its vGPU unless it reserves it only while it runs. Without `force` the guest is asked.

    Who asks for it wants it off: it is not started again for a command that was killed before.
    """
    stopped = shut_down(world, name, force=force, dry_run=dry_run, wait_seconds=wait_seconds, progress=progress)
    if not dry_run:
        world.claims.forget_drained(str(stopped.data["uuid"]))
    return stopped


def shut_down(
    world: World, name: str, *, force: bool, dry_run: bool, wait_seconds: float, progress: Progress
) -> Outcome:
    """Stop a VM as `stop_vm` does, and keep the note that it is to be started again."""
    if not dry_run:
        require_writable(world)
    snapshot = observe(world, Want(models=False))
    vm = find_vm(snapshot, name)
    require_system(snapshot)
    promise = own_promise(vm, "stop")
    settled(vm, promise)
    if vm.state in OFF:
        return Outcome(False, vm_value(snapshot, vm), warnings=snapshot.warnings, dry_run=dry_run)
    refuse_transient((vm,))
    stop = StopDomain(vm.name, vm.uuid, force, wait_seconds)
    mine = held(snapshot, vm, promise) if promise.lends else ()
    plan = Plan((stop, *freeing_steps(vm, mine)), undo_on_failure=not mine, off=(vm.uuid,) if mine else ())
    if dry_run:
        return Outcome(True, vm_value(snapshot, vm), tuple(s.describe() for s in plan.steps), dry_run=True)
    if mine:
        reclaim(world, claims_of(world, vm.name, replace(promise, vgpus=mine)), wait_seconds, leaving=True)
    carry_out(world, plan, progress)
    return done(world, vm_value(snapshot, vm), (), plan)


def _require_pools(world: World, promise: Promise) -> None:
    """Refuse to begin a removal whose disks could not be deleted.

    Raises:
        HostCannot: naming the pool and the disk.
    """
    for disk in promise.disks:
        if world.storage.pool(disk.pool) is None and world.storage.image(disk.path) is not None:
            raise HostCannot(
                f"the storage pool {disk.pool} is gone, so {disk.path} cannot be deleted",
                hint="define the pool again (virsh pool-define-as), or delete-vm with --keep-disks",
                check="pool",
                pool=disk.pool,
                path=disk.path,
            )


def _with_held(snapshot: Snapshot, vm: Vm) -> Promise:
    """Return the record of a VM that is deleted, with those vGPUs alone that it has now: others may have the rest."""
    promise = own_promise(vm, "delete")
    return replace(promise, vgpus=held(snapshot, vm, promise))


def delete_vm(
    world: World,
    name: str,
    *,
    keep_disks: bool,
    dry_run: bool,
    confirm: Confirm,
    wait_seconds: float,
    progress: Progress,
) -> Outcome:
    """Remove a VM with its vGPUs and the disks vgpuctl made; never a base image or a foreign VM."""
    if not dry_run:
        require_writable(world)
    snapshot = observe(world, Want(models=False))
    vm = find_vm(snapshot, name)
    require_system(snapshot)
    promise = _with_held(snapshot, vm)
    refuse_stuck(snapshot, [v.gpu for v in promise.vgpus])
    gone = replace(promise, disks=gone_with(promise, keep_disks=keep_disks))
    refuse_shared(world, snapshot, vm, gone)
    _require_pools(world, gone)
    leave = not_provably_ours(snapshot, vm, promise)
    plan = removal_plan(vm, promise, leftovers_of(world, vm), keep_disks=keep_disks, leave=leave)
    steps = tuple(s.describe() for s in plan.steps)
    if dry_run:
        return Outcome(True, vm_value(snapshot, vm), steps, snapshot.warnings, plan.notes, dry_run=True)
    confirm(f"Delete VM {vm.name}?{' It is running.' if vm.state is VmState.RUNNING else ''}", steps)
    mine = reclaim(world, claims_of(world, vm.name, promise), wait_seconds, leaving=True)
    was_off = vm.state in OFF
    try:
        now, vm = look_again(world, vm)
        if was_off and vm.state not in OFF:
            raise InUse(
                f"{vm.name} was off when this was asked, and has been started since",
                hint=f"somebody may work on it; if it is to go all the same: vgpuctl delete-vm {vm.name}",
                vm=vm.name,
            )
        promise = _with_held(now, vm)
        refuse_shared(world, now, vm, replace(promise, disks=gone_with(promise, keep_disks=keep_disks)))
        plan = removal_plan(vm, promise, leftovers_of(world, vm), keep_disks=keep_disks, leave=leave)
    except BaseException:
        give_back_unused(world, mine)
        raise
    with working_on(world, () if promise.vgpus else (vm.uuid,)):
        carry_out(world, plan, progress)
    world.claims.forget_drained(vm.uuid)
    kept = promise.own_disks() if keep_disks else ()
    disks = [{"path": d.path, "size_bytes": d.capacity_bytes, "base": d.base} for d in kept]
    data: dict[str, object] = {"name": vm.name, "uuid": vm.uuid, "state": "absent", "vgpus": [], "disks": disks}
    return Outcome(True, data, steps, snapshot.warnings, plan.notes)
