# SPDX-License-Identifier: Apache-2.0
"""The missing devices of a VM: what makes them again where the VM's promise says they are, or why that cannot be.

start-vm, the restore after a boot and libvirt's hook all ask here.
"""

from __future__ import annotations

from vgpuctl.backends import of
from vgpuctl.capacity.left import type_on
from vgpuctl.capacity.mixed_size import is_free
from vgpuctl.errors import InUse
from vgpuctl.model.gpu import Owner, Vgpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Step
from vgpuctl.model.vm import Promise, PromisedVgpu, Vm
from vgpuctl.plan.choose import make_steps
from vgpuctl.steps.domain import OFF
from vgpuctl.value import replace


def force_console(promise: Promise) -> bool:
    """Say whether the VM was made with --force-console; a spec that cannot be read says no."""
    return bool(promise.asked.get("force_console", False))


def check_devices(snapshot: Snapshot, promise: Promise) -> None:
    """Check what creation checked, again: since then the host may have rebooted, or taken the device.

    Raises:
        HostCannot, Refused, InUse: as the backend's check says.
    """
    for promised in promise.vgpus:
        gpu = snapshot.gpu(promised.gpu)
        function = gpu.function_at(promised.function) if gpu else None
        if gpu is None or function is None:
            continue
        of(promised.backend).check(snapshot, gpu, function, force_console=force_console(promise))


def device_steps(snapshot: Snapshot, vm: Vm, promise: Promise) -> tuple[Step, ...]:
    """Return the steps that make each missing device; the snapshot holds the types of the promise's GPUs.

    Raises:
        InUse: somebody took the function or changed the device; the message names who.
        NoCapacity: the driver has no room for it now.
        HostCannot: the GPU is gone, or its VFs are off.
    """
    steps: list[Step] = []
    for promised in promise.vgpus:
        if any(v.carrier == promised.carrier and v.present for v in snapshot.vgpus):
            taker = next(v for v in snapshot.vgpus if v.carrier == promised.carrier)
            _refuse_changed(snapshot, vm, promised, taker)
            steps += _moved(snapshot, vm, promised, taker)
            continue
        others = [v for v in snapshot.vgpus if v.function == promised.function and v.vm_uuid != vm.uuid]
        single = [v for v in others if (v.owner is not Owner.OURS or v.present) and promised.function != promised.gpu]
        if single:
            raise InUse(
                f"{promised.function} is taken by {single[0].vm or single[0].carrier}, {vm.name} needs it",
                hint=f"vgpuctl show-gpu {promised.gpu}",
                function=promised.function,
                vm=single[0].vm,
            )
        steps += make_steps(snapshot, promised)
    return tuple(steps)


def _moved(snapshot: Snapshot, vm: Vm, promised: PromisedVgpu, device: Vgpu) -> tuple[Step, ...]:
    """Return the step that moves a device to the placement where it was to go, while no VM runs with it.

    Where something is in the way it stays. Libvirt's hook and the restore after a boot do not know whether the VM runs.
    """
    gpu, due = snapshot.gpu(device.gpu), device.due_placement_id
    known = type_on(gpu, device) if gpu is not None else None
    if gpu is None or known is None or due is None or vm.state not in OFF:
        return ()
    others = [v for v in snapshot.taken_on(gpu.address) if v.carrier != device.carrier]
    own = replace(promised, placement_id=due)
    return of(promised.backend).move(own) if is_free(gpu, others, known, due) else ()


def _refuse_changed(snapshot: Snapshot, vm: Vm, promised: PromisedVgpu, device: Vgpu) -> None:
    """Refuse a device of another type than promised.

    A type without room for one more is named by NVML alone: where that is not asked, the id in the claim decides.
    """
    gpu = snapshot.gpu(promised.gpu)
    if promised.profile is None or device.type_id is None or gpu is None:
        return
    seen = gpu.type_of(device.type_id)
    made = next((c.type_id for c in snapshot.claims if (c.carrier, c.vm_uuid) == (device.carrier, vm.uuid)), None)
    if seen is None and made in (None, device.type_id):
        return
    if seen is None or seen.profile != promised.profile:
        what = seen.profile if seen is not None else f"the type {device.type_id}"
        raise InUse(
            f"{promised.carrier} carries {what}, not {promised.profile} as {vm.name} needs",
            hint=f"somebody changed it by hand; vgpuctl show-gpu {promised.gpu}",
            carrier=promised.carrier,
        )
