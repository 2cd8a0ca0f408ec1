# SPDX-License-Identifier: Apache-2.0
"""Make the missing devices of a VM without asking libvirt: before libvirt runs, and while it waits for its hook.

The same claims, checks and steps as start-vm; only the start is not ours. Nothing here calls libvirt; the hook's
World has no NVML either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.engine.claim import claims_of, reclaim
from vgpuctl.engine.guards import refuse_being_set_up
from vgpuctl.engine.observe import Want, observe_devices
from vgpuctl.engine.run import carry_out
from vgpuctl.errors import Busy
from vgpuctl.model.gpu import Backend
from vgpuctl.model.outcome import Progress
from vgpuctl.model.records import HypervisorStatus
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Plan
from vgpuctl.model.vm import Promise, PromiseState, Vm
from vgpuctl.plan.devices import check_devices, device_steps

if TYPE_CHECKING:
    from vgpuctl.model.world import World

UNASKED = HypervisorStatus(available=False, uri="", reason="libvirt is not asked here")
_WHOLE = (Backend.SRIOV_VF, Backend.PASSTHROUGH)


def missing_devices(world: World, vm: Vm, promise: Promise) -> bool:
    """Say whether a device of the VM, or a claim on one, is missing. Reads no types: this is the common case.

    Raises:
        Busy: a process is setting one of its GPUs up.
    """
    carriers, gpus = frozenset(v.carrier for v in promise.vgpus), frozenset(v.gpu for v in promise.vgpus)
    snapshot = observe_devices(
        world, Want(models=False, only=gpus, carriers=carriers | gpus, named=()), vms=(vm,), status=UNASKED
    )
    refuse_being_set_up(snapshot, gpus)
    held = {c.carrier for c in snapshot.claims if c.vm_uuid == vm.uuid}
    there = {v.carrier for v in snapshot.vgpus if v.present and v.vm_uuid == vm.uuid}
    return not carriers <= held & there


def planned_devices(world: World, vm: Vm, promise: Promise, vms: tuple[Vm, ...]) -> Plan:
    """Look at the VM's GPUs and return the steps that make what is missing; `vms` are all whose promises are known.

    Raises:
        VgpuctlError: why it cannot be made, naming who has the place.
    """
    if promise.state is not PromiseState.READY:
        raise Busy(
            f"{vm.name} is half-way: its record says {promise.state}",
            hint="if no vgpuctl works on it any more: vgpuctl reconcile",
            vm=vm.name,
            record=str(promise.state),
        )
    snapshot = look_at(world, promise, vms)
    check_devices(snapshot, promise)
    return Plan(steps=device_steps(snapshot, vm, promise))


def look_at(world: World, promise: Promise, vms: tuple[Vm, ...]) -> Snapshot:
    """Return the GPUs of one promise with their types, as the kernel has them now."""
    want = Want(types=True, models=False, only=frozenset(v.gpu for v in promise.vgpus), named=())
    return observe_devices(world, want, vms=vms, status=UNASKED)


def make_devices(
    world: World, vm: Vm, promise: Promise, vms: tuple[Vm, ...], wait_seconds: float, progress: Progress
) -> tuple[str, ...]:
    """Claim and make what is missing of a VM's devices; returns the lines of the steps that were done.

    Raises:
        Busy: another process works on this VM, or another VM has claimed its place; the message names it.
        VgpuctlError: as `planned_devices`; what was made has been taken back.
    """
    planned_devices(world, vm, promise, vms)
    held = reclaim(world, claims_of(world, vm.name, promise), wait_seconds)
    try:
        plan = planned_devices(world, vm, promise, vms)
    except BaseException:
        for step in reversed(held):
            step.undo(world)
        raise
    carry_out(world, plan, progress, held)
    return tuple(s.describe() for s in (*held, *plan.steps))


def has_devices(promise: Promise) -> bool:
    """Say whether there is anything to make: plain VFs and whole GPUs are bound by libvirt itself."""
    return any(v.backend not in _WHOLE for v in promise.vgpus)
