# SPDX-License-Identifier: Apache-2.0
"""Make the missing devices of a VM without asking libvirt: before libvirt runs, and while it waits for its hook.

The same claims, checks and steps as start-vm; only the start is not ours. Nothing here calls libvirt; the hook's
World has no NVML either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.engine.claim import claims_of, narrow, reclaim
from vgpuctl.engine.guards import refuse_being_set_up
from vgpuctl.engine.observe import Want, observe_devices
from vgpuctl.engine.run import carry_out
from vgpuctl.errors import Busy
from vgpuctl.model.gpu import Backend
from vgpuctl.model.outcome import Progress
from vgpuctl.model.records import HypervisorStatus
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Plan
from vgpuctl.model.vm import Promise, PromisedVgpu, PromiseState, Vm
from vgpuctl.plan.devices import check_devices, device_steps
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World

UNASKED = HypervisorStatus(available=False, uri="", reason="libvirt is not asked here")
_WHOLE = (Backend.SRIOV_VF, Backend.PASSTHROUGH)


def missing_devices(world: World, vm: Vm, promise: Promise) -> bool:
    """Say whether a device of the VM, or a claim on one, is missing or of another type than the VM was given.

    Raises:
        Busy: a process is setting one of its GPUs up.
    """
    return lacks_devices(look_for(world, (promise,), (vm,)), vm, promise)


def look_for(world: World, promises: tuple[Promise, ...], vms: tuple[Vm, ...]) -> Snapshot:
    """Return the carriers of these promises and their GPUs, without types: mostly all is there."""
    carriers = frozenset(v.carrier for promise in promises for v in promise.vgpus)
    gpus = frozenset(v.gpu for promise in promises for v in promise.vgpus)
    want = Want(models=False, only=gpus, carriers=carriers | gpus, named=())
    return observe_devices(world, want, vms=vms, status=UNASKED)


def lacks_devices(snapshot: Snapshot, vm: Vm, promise: Promise) -> bool:
    """Say whether, in such a look, a device of the VM or a claim on one is missing, or it is of another type.

    Reads no catalogue of types, for this is the common case: a device's type is compared with what its claim says.

    Raises:
        Busy: a process is setting one of its GPUs up.
    """
    carriers = frozenset(v.carrier for v in promise.vgpus)
    refuse_being_set_up(snapshot, frozenset(v.gpu for v in promise.vgpus))
    held = {c.carrier: c.type_id for c in snapshot.claims if c.vm_uuid == vm.uuid}
    there = {v.carrier: v.type_id for v in snapshot.vgpus if v.present and v.vm_uuid == vm.uuid}
    if not carriers <= held.keys() & there.keys():
        return True
    return any(held[c] is not None and held[c] != there[c] for c in carriers)


def planned_devices(world: World, vm: Vm, promise: Promise, vms: tuple[Vm, ...], known: Snapshot | None = None) -> Plan:
    """Look at the VM's GPUs and return the steps that make what is missing; `vms` are all whose promises are known.

    `known`: a look at these GPUs a moment ago.

    Raises:
        VgpuctlError: why it cannot be made, naming who has the place.
    """
    return _plan(look_at(world, (promise,), vms, known), vm, promise)


def _plan(snapshot: Snapshot, vm: Vm, promise: Promise) -> Plan:
    if promise.state is not PromiseState.READY:
        raise Busy(
            f"{vm.name} is half-way: its record says {promise.state}",
            hint="if no vgpuctl works on it any more: vgpuctl reconcile",
            vm=vm.name,
            record=str(promise.state),
        )
    check_devices(snapshot, promise)
    return Plan(steps=device_steps(snapshot, vm, promise))


def look_at(
    world: World, promises: tuple[Promise, ...], vms: tuple[Vm, ...], known: Snapshot | None = None
) -> Snapshot:
    """Return the GPUs of these promises with their types, as the kernel has them now.

    What does not change is taken from `known`, a look a moment ago: names, types, and what NVML says of them.
    """
    vgpus = tuple(v for promise in promises for v in promise.vgpus)
    want = Want(types=True, models=False, only=frozenset(v.gpu for v in vgpus), named=())
    if known is not None and all(_knows(known, v) for v in vgpus):
        want = replace(narrow(known, vgpus), named=())
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
    held = reclaim(world, claims_of(world, vm.name, promise), wait_seconds, seen=seen)
    try:
        plan = planned_devices(world, vm, promise, vms, seen)
    except BaseException:
        for step in reversed(held):
            step.undo(world)
        raise
    carry_out(world, plan, progress, held)
    return tuple(s.describe() for s in (*held, *plan.steps))


def has_devices(promise: Promise) -> bool:
    """Say whether there is anything to make: plain VFs and whole GPUs are bound by libvirt itself."""
    return any(v.backend not in _WHOLE for v in promise.vgpus)
