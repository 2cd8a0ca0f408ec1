# SPDX-License-Identifier: Apache-2.0
"""The places of a VM that reserves them only while it runs: which it has, where it goes, and what its record names.

While such a VM is off, its record names places that others may have. At its start it gets its own again when they are
free, and others where there is room otherwise.
"""

from __future__ import annotations

from vgpuctl.capacity.closed import why_closed, why_shut
from vgpuctl.capacity.mixed_size import cheapest, is_free
from vgpuctl.capacity.ownership import carrier_uuid
from vgpuctl.capacity.room import room
from vgpuctl.capacity.where import why_not_apart
from vgpuctl.errors import InUse, NoCapacity
from vgpuctl.model.gpu import MDEV, Backend, Function, Gpu, Owner, Vgpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import Promise, PromisedVgpu, Vm
from vgpuctl.model.wish import VmWish
from vgpuctl.plan.choose import as_taken, choose, refuse_unknown_host_file
from vgpuctl.plan.differ import kept_where
from vgpuctl.value import replace


def held(snapshot: Snapshot, vm: Vm, promise: Promise) -> tuple[PromisedVgpu, ...]:
    """Return the vGPUs that have a place now, each where it is; all of them when the VM keeps its places always."""
    if not promise.lends:
        return promise.vgpus
    ours = (v for v in snapshot.vgpus if v.owner is Owner.OURS and v.name is None)
    mine = {v.carrier: v for v in ours if v.vm_uuid == vm.uuid}
    return tuple(_there(p, mine[p.carrier]) for p in promise.vgpus if p.carrier in mine)


def _there(promised: PromisedVgpu, seen: Vgpu) -> PromisedVgpu:
    """Return a vGPU with the place that it has, or is about to have."""
    placement = seen.placement_id if seen.due_placement_id is None else seen.due_placement_id
    return replace(promised, gpu=seen.gpu, function=seen.function, placement_id=placement)


def homeless(snapshot: Snapshot, vm: Vm, promise: Promise) -> tuple[PromisedVgpu, ...]:
    """Return the vGPUs that have no place now, as the record names them."""
    there = {v.carrier for v in held(snapshot, vm, promise)}
    return tuple(v for v in promise.vgpus if v.carrier not in there)


def wish_for(vm: Vm, promise: Promise, vgpus: tuple[PromisedVgpu, ...]) -> VmWish:
    """Return the wish that these vGPUs of a VM were made for, on the GPU that was typed then."""
    kept = promise.asked
    names = [v.profile for v in vgpus if v.profile is not None]
    return VmWish(
        name=vm.name,
        profiles=tuple((name, names.count(name)) for name in dict.fromkeys(names)),
        where=kept_where(kept),
        mode=str(kept.get("mode") or "vgpu"),
        memory_mib=vm.memory_mib,
        vcpus=vm.vcpus,
        image=None,
        disks=(),
        cdrom=None,
        network=vm.networks[0] if vm.networks else "",
        os=str(kept.get("os") or "linux"),
        storage_pool="",
        hotplug_slots=0,
        vgpu_params=(),
        template=str(kept.get("template") or "vm"),
        force_console=bool(kept.get("force_console", False)),
        reserve=promise.reserve,
    )


def places(
    snapshot: Snapshot, vm: Vm, promise: Promise, exclude: frozenset[str] = frozenset(), *, fixed: bool = False
) -> tuple[PromisedVgpu, ...]:
    """Return where each vGPU goes that has no place: its own again if that is free, else wherever there is room.

    `fixed`: the VM's definition stays as it is, so an mdev may go anywhere and a function nowhere else.

    Raises:
        InUse: `fixed`, and its function is not free; naming who has it, and the command that moves the VM.
        VgpuctlError: as `choose`.
    """
    away = homeless(snapshot, vm, promise)
    own = _own(snapshot, vm, promise, away, exclude)
    if own is not None:
        return own
    if fixed:
        _refuse_moving(snapshot, vm, away)
        exclude |= {g.address for g in snapshot.gpus if g.backend not in MDEV}
    chosen = list(choose(snapshot, wish_for(vm, promise, away), promise.vm_uuid, exclude))
    found = []
    for promised in away:
        place = next(c for c in chosen if c.profile == promised.profile)
        chosen.remove(place)
        carrier = carrier_uuid(promise.vm_uuid, promised.index) if place.backend in MDEV else place.carrier
        found.append(replace(place, index=promised.index, carrier=carrier, params=promised.params))
    return tuple(found)


def _own(
    snapshot: Snapshot, vm: Vm, promise: Promise, away: tuple[PromisedVgpu, ...], exclude: frozenset[str]
) -> tuple[PromisedVgpu, ...] | None:
    """Return the places that the record names, when all of them are free and open; mdevs may take another VF."""
    if away:
        refuse_unknown_host_file(snapshot)
    mode = wish_for(vm, promise, away).mode
    found: list[PromisedVgpu] = []
    for promised in away:
        gpu = snapshot.gpu(promised.gpu)
        if gpu is None or gpu.address in exclude or why_shut(snapshot, gpu, mode, vm.name) is not None:
            return None
        if why_not_apart(snapshot, gpu, promise.spread_group, vm.uuid) is not None:
            return None
        function = _function(snapshot, gpu, promised)
        if function is None:
            return None
        placement = _placement(snapshot, gpu, promised)
        found.append(replace(promised, function=function, placement_id=placement))
        snapshot = replace(snapshot, vgpus=(*snapshot.vgpus, as_taken(found[-1], vm.name, vm.uuid)))
    return tuple(found)


def _function(snapshot: Snapshot, gpu: Gpu, promised: PromisedVgpu) -> str | None:
    """Return the function of its own GPU that a vGPU can have now; None when it must go elsewhere."""
    if promised.profile is None:
        taken = {c for v in snapshot.vgpus for c in (v.carrier, v.function)}
        gone = promised.backend is Backend.SRIOV_VF and gpu.function_at(promised.function) is None
        shut = gone or promised.function in taken or gpu.backend is not promised.backend
        return None if shut else promised.function
    known = next((t for t in gpu.types if t.profile == promised.profile), None)
    if known is None or gpu.backend is not promised.backend:
        return None
    space = room(gpu, snapshot.taken_on(gpu.address), known)
    if not space.some:
        return None
    usable = [f.address for f in gpu.functions if _offers(f, known.type_id)]
    free = set(usable) - {v.function for v in snapshot.taken_on(gpu.address)}
    if promised.function in space.functions or promised.function in free:
        return promised.function
    return space.functions[0] if promised.backend in MDEV else None


def _placement(snapshot: Snapshot, gpu: Gpu, promised: PromisedVgpu) -> int | None:
    """Return where a vGPU goes on its own GPU: where its record says, on a mixed-size GPU if that is free."""
    known = next((t for t in gpu.types if t.profile == promised.profile), None)
    if not gpu.mixed_size or known is None:
        return promised.placement_id
    taken = snapshot.taken_on(gpu.address)
    if promised.placement_id is not None and is_free(gpu, taken, known, promised.placement_id):
        return promised.placement_id
    return cheapest(gpu, taken, known)


def _offers(function: Function, type_id: str) -> bool:
    idle = not function.mdevs and function.current_type is None and not function.problem
    return idle and (function.available or {}).get(type_id, 0) > 0


def _refuse_moving(snapshot: Snapshot, vm: Vm, away: tuple[PromisedVgpu, ...]) -> None:
    """Refuse what only a change of the definition could give: another function than the one it names."""
    for promised in away:
        if promised.backend in MDEV:
            continue
        other = next((v for v in snapshot.vgpus if promised.carrier in (v.carrier, v.function)), None)
        who = f"{other.holder} has it" if other else _why_not(snapshot, vm, promised)
        raise InUse(
            f"{vm.name} reserves {promised.carrier} only while it runs, and {who}",
            hint=f"vgpuctl start-vm {vm.name} gives it a free one",
            carrier=promised.carrier,
            vm=other.vm if other else None,
        )


def _why_not(snapshot: Snapshot, vm: Vm, promised: PromisedVgpu) -> str:
    """Say why a function that nobody has cannot be had."""
    gpu = snapshot.gpu(promised.gpu)
    if gpu is None:
        return f"the GPU {promised.gpu} is not there"
    known = next((t for t in gpu.types if t.profile == promised.profile), None)
    reasons = room(gpu, snapshot.taken_on(gpu.address), known).reasons if known is not None else ()
    closed = why_closed(gpu, "vgpu" if promised.profile else str(gpu.mode), vm.name)
    return "; ".join(filter(None, (closed, *reasons))) or "it cannot be had now"


def someday(snapshot: Snapshot, wish: VmWish, uuid: str) -> tuple[PromisedVgpu, ...]:
    """Return places for the record of a VM that stays off: free ones, or what this host has when nothing is on it.

    Raises:
        VgpuctlError: as `choose`; NoCapacity when even the empty host has no room for it.
    """
    try:
        return choose(snapshot, wish, uuid)
    except (NoCapacity, InUse):
        return choose(emptied(snapshot), wish, uuid)


def emptied(snapshot: Snapshot) -> Snapshot:
    """Return the host as it would be with nothing on it and every GPU open."""
    gpus = tuple(
        replace(gpu, cordoned=False, functions=tuple(_emptied(gpu, f) for f in gpu.functions)) for gpu in snapshot.gpus
    )
    return replace(snapshot, gpus=gpus, vms=(), claims=(), vgpus=(), stuck=())


def _emptied(gpu: Gpu, function: Function) -> Function:
    most = {t.type_id: (t.max_per_gpu or 1) if gpu.backend is Backend.MDEV_PF else 1 for t in gpu.types}
    read = function.available is not None
    free = most if read else None
    return replace(function, available=free, mdevs=(), current_type=None, placement_id=None, gi_id=None)
