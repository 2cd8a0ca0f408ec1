# SPDX-License-Identifier: Apache-2.0
"""Make the missing devices of a VM without asking libvirt: before libvirt runs, and while it waits for its hook.

The same claims, checks and steps as start-vm; only the start is not ours. Nothing here calls libvirt; the hook's
World has no NVML either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.engine.claim import claim_carriers, claims_of, give_back, narrow, on_other_gpus, reclaim
from vgpuctl.engine.guards import refuse_being_set_up, refuse_half_exchanged, refuse_leaving, refuse_worked_on
from vgpuctl.engine.observe import Want, claimed_gpus, looked_for, observe_devices
from vgpuctl.engine.run import carry_out
from vgpuctl.errors import Busy
from vgpuctl.model.gpu import WHOLE
from vgpuctl.model.outcome import Progress
from vgpuctl.model.records import HypervisorStatus
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Plan
from vgpuctl.model.vm import Claim, Promise, PromisedVgpu, PromiseState, Vm
from vgpuctl.plan.devices import check_devices, device_steps
from vgpuctl.plan.remove import freeing_steps
from vgpuctl.plan.reserve import held, places, wish_for
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World

DOMAINS = "/etc/libvirt/qemu"
SAVED = "/var/lib/libvirt/qemu/save"
UNASKED = HypervisorStatus(available=False, uri="", reason="libvirt is not asked here")


def missing_devices(world: World, vm: Vm, promise: Promise) -> bool:
    """Say whether a device of the VM, or a claim on one, is missing or of another type than the VM was given.

    Raises:
        Busy: a process is setting one of its GPUs up, or takes vGPUs from the VM.
    """
    return lacks_devices(look_for(world, (promise,), (vm,)), vm, promise)


def look_for(world: World, promises: tuple[Promise, ...], vms: tuple[Vm, ...]) -> Snapshot:
    """Return the carriers of these promises and their GPUs, without types: mostly all is there."""
    carriers = frozenset(v.carrier for promise in promises for v in promise.vgpus)
    gpus = frozenset(v.gpu for promise in promises for v in promise.vgpus)
    for promise in promises:
        if promise.lends:
            gpus |= claimed_gpus(world, promise.vm_uuid, frozenset(v.carrier for v in promise.vgpus))
    want = Want(models=False, only=gpus, carriers=carriers | gpus, named=())
    return observe_devices(world, want, vms=vms, status=UNASKED)


def lacks_devices(snapshot: Snapshot, vm: Vm, promise: Promise) -> bool:
    """Say whether, in such a look, a device of the VM or a claim on one is missing, or it is of another type.

    Reads no catalogue of types, for this is the common case: a device's type is compared with what its claim says.

    Raises:
        Busy: a process is setting one of its GPUs up, or takes vGPUs from the VM; or its place is being exchanged.
    """
    refuse_leaving(snapshot, vm)
    refuse_half_exchanged(vm, promise)
    carriers = frozenset(v.carrier for v in promise.vgpus)
    refuse_being_set_up(snapshot, frozenset(v.gpu for v in held(snapshot, vm, promise)))
    claimed = {c.carrier: c.type_id for c in snapshot.claims if c.vm_uuid == vm.uuid}
    there = {v.carrier: v.type_id for v in snapshot.vgpus if v.present and v.vm_uuid == vm.uuid}
    if not carriers <= claimed.keys() & there.keys():
        return True
    return any(claimed[c] is not None and claimed[c] != there[c] for c in carriers)


def planned_devices(world: World, vm: Vm, promise: Promise, vms: tuple[Vm, ...], known: Snapshot | None = None) -> Plan:
    """Look at the VM's GPUs and return the steps that make what is missing; `vms` are all whose promises are known.

    `known`: a look at these GPUs a moment ago.

    Raises:
        VgpuctlError: why it cannot be made, naming who has the place.
    """
    return _plan(look_at(world, (promise,), vms, known), vm, promise)


def _plan(snapshot: Snapshot, vm: Vm, promise: Promise) -> Plan:
    refuse_half_way(vm, promise)
    check_devices(snapshot, promise)
    return Plan(steps=device_steps(snapshot, vm, promise))


def refuse_half_way(vm: Vm, promise: Promise) -> None:
    """Refuse a VM that is half made or half removed.

    Raises:
        Busy: reconcile finishes it.
    """
    if promise.state is not PromiseState.READY:
        raise Busy(
            f"{vm.name} is half-way: its record says {promise.state}",
            hint="if no vgpuctl works on it any more: vgpuctl reconcile",
            vm=vm.name,
            record=str(promise.state),
        )


def look_at(
    world: World, promises: tuple[Promise, ...], vms: tuple[Vm, ...], known: Snapshot | None = None
) -> Snapshot:
    """Return the GPUs of these promises with their types, as the kernel has them now.

    What does not change is taken from `known`, a look a moment ago: names, types, what NVML says of them, and the
    state of VFs of others; what those are claimed for is read again.
    """
    vgpus = tuple(v for promise in promises for v in promise.vgpus)
    want = Want(types=True, models=False, only=frozenset(v.gpu for v in vgpus), named=())
    if known is not None and all(_knows(known, v) for v in vgpus):
        want = replace(narrow(known, vgpus), named=(), functions=frozenset(v.function for v in vgpus))
    return observe_devices(world, want, vms=vms, status=UNASKED)


def _knows(known: Snapshot, vgpu: PromisedVgpu) -> bool:
    gpu = known.gpu(vgpu.gpu)
    return gpu is not None and any(t.profile == vgpu.profile for t in gpu.types)


def make_devices(
    world: World,
    vm: Vm,
    promise: Promise,
    vms: tuple[Vm, ...],
    wait_seconds: float,
    progress: Progress,
    known: Snapshot | None = None,
) -> tuple[str, ...]:
    """Claim and make what is missing of a VM's devices; returns the lines of the steps that were done.

    `known`: a look at its GPUs a moment ago.

    Raises:
        Busy: another process works on this VM, or another VM has claimed its place; the message names it.
        VgpuctlError: as `planned_devices`; what was made has been taken back.
    """
    seen = known if known is not None else look_at(world, (promise,), vms)
    _plan(seen, vm, promise)
    mine = reclaim(world, claims_of(world, vm.name, promise), wait_seconds, seen=seen)
    try:
        plan = planned_devices(world, vm, promise, vms, seen)
    except BaseException:
        give_back(world, mine)
        raise
    carry_out(world, plan, progress, mine)
    return tuple(s.describe() for s in (*mine, *plan.steps))


def make_anywhere(
    world: World, vm: Vm, promise: Promise, vms: tuple[Vm, ...], wait_seconds: float, progress: Progress
) -> None:
    """Claim and make the vGPUs of a VM that reserves them only while it runs, wherever its definition lets them be.

    `vms` are all whose promises are known: what the others keep always is not taken.

    Raises:
        InUse: a function that the VM's definition names is not free.
        NoCapacity: no GPU has room.
        VgpuctlError: why else not; what was made has been taken back.
    """
    refuse_half_way(vm, promise)
    on_other_gpus(lambda exclude: _make_anywhere(world, vm, promise, vms, exclude, wait_seconds, progress))


def _make_anywhere(
    world: World,
    vm: Vm,
    promise: Promise,
    vms: tuple[Vm, ...],
    exclude: frozenset[str],
    wait_seconds: float,
    progress: Progress,
) -> None:
    want = looked_for(wish_for(vm, promise, promise.vgpus))

    def look() -> Snapshot:
        return observe_devices(world, want, vms=vms, status=UNASKED)

    def choose(seen: Snapshot) -> tuple[PromisedVgpu, ...]:
        return places(seen, vm, promise, exclude, fixed=True)

    def claims(new: tuple[PromisedVgpu, ...]) -> tuple[Claim, ...]:
        refuse_worked_on(world, vm)
        return claims_of(world, vm.name, replace(promise, vgpus=new))

    mine = claim_carriers(world, look, choose, claims, wait_seconds)[2]
    try:
        now = look()
        there = replace(promise, vgpus=held(now, vm, promise))
        refuse_being_set_up(now, [v.gpu for v in there.vgpus])
        check_devices(now, there)
        plan = Plan(steps=device_steps(now, vm, there))
    except BaseException:
        give_back(world, mine)
        raise
    carry_out(world, plan, progress, mine)


def free_devices(world: World, vm: Vm, promise: Promise, wait_seconds: float, progress: Progress) -> None:
    """Give back what a VM has that was stopped just now and reserves its places only while it runs.

    Only what a claim says is its own goes. With a managed save it stays: the saved guest wants it back.

    Raises:
        Busy: another process works on the VM, and gives it back or needs it.
        VgpuctlError: a device could not be removed.
    """
    carriers = frozenset(v.carrier for v in promise.vgpus)
    want = Want(models=False, only=claimed_gpus(world, vm.uuid, carriers), carriers=carriers, named=())
    mine = held(observe_devices(world, want, vms=(vm,), status=UNASKED), vm, promise)
    if not mine or promise.state is not PromiseState.READY or _is_saved(world, vm.name):
        return
    claims = claims_of(world, vm.name, replace(promise, vgpus=mine))
    reclaim(world, claims, wait_seconds, lost=False, leaving=True)
    carry_out(world, Plan(freeing_steps(vm, mine), undo_on_failure=False), progress)


def _is_saved(world: World, name: str) -> bool:
    """Say whether libvirt keeps a managed save of a VM; a directory that cannot be read may hold one."""
    try:
        return f"{name}.save" in world.sysfs.listdir(SAVED)
    except FileNotFoundError:
        return False
    except OSError:
        return True


def has_devices(promise: Promise) -> bool:
    """Say whether there is anything to make: plain VFs and whole GPUs are bound by libvirt itself."""
    return any(v.backend not in WHOLE for v in promise.vgpus)
