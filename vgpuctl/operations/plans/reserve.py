# SPDX-License-Identifier: Apache-2.0
"""Slots that a VM does not always reserve: which it has, where it goes, what its record names.

A VM with reserve=running reserves its slots only while it runs. A vGPU that waits for a place reserves none. The record
then names slots that others may take. When the VM starts, it gets its own slots back if they are free. Otherwise it
gets others, if there is room.
"""

from __future__ import annotations

import shlex

from vgpuctl.backends import backend_for
from vgpuctl.config.vm_request import VmRequest, request_of_record
from vgpuctl.errors import HostCannot, InUse, NoCapacity, NotFound, VgpuctlError
from vgpuctl.gpu.mixed_size import choose_placement_id, is_placement_free
from vgpuctl.gpu.profiles import matches_profile_name, omits_model
from vgpuctl.gpu.room import compute_room
from vgpuctl.model.gpu import Gpu, GpuFunction, Ownership, Vgpu
from vgpuctl.model.numbers import count_text
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Vm, VmRecord
from vgpuctl.operations.plans.choose import as_taken_vgpu, choose_vgpus, refuse_invalid_host_file
from vgpuctl.operations.plans.vm_diff import count_devices
from vgpuctl.placement.constraints import match_gpus, why_group_conflicts, why_restricted, why_unschedulable
from vgpuctl.value import replace


def with_slot(snapshot: Snapshot, vm: Vm, record: VmRecord) -> tuple[AssignedVgpu, ...]:
    """Return the vGPUs that have a slot now, each at its current slot; all of them if the VM always reserves them."""
    if record.always_reserves:
        return record.vgpus
    managed = (v for v in snapshot.vgpus if v.owner is Ownership.MANAGED and v.name is None)
    vm_vgpus = {v.carrier: v for v in managed if v.vm_uuid == vm.uuid}
    return tuple(
        assigned if record.reserves_slot(assigned) else _at_current_slot(assigned, vm_vgpus[assigned.carrier])
        for assigned in record.vgpus
        if record.reserves_slot(assigned) or assigned.carrier in vm_vgpus
    )


def _at_current_slot(assigned: AssignedVgpu, observed: Vgpu) -> AssignedVgpu:
    """Return a vGPU with the slot that it has, or will have after a pending move."""
    placement = observed.placement_id if observed.target_placement_id is None else observed.target_placement_id
    return replace(
        assigned, gpu=observed.gpu, function=observed.function, placement_id=placement, waits_for_place=False
    )


def without_slot(snapshot: Snapshot, vm: Vm, record: VmRecord) -> tuple[AssignedVgpu, ...]:
    """Return the vGPUs that have no slot now, as recorded."""
    placed_carriers = {v.carrier for v in with_slot(snapshot, vm, record)}
    return tuple(v for v in record.vgpus if v.carrier not in placed_carriers)


def request_from_record(vm: Vm, record: VmRecord, vgpus: tuple[AssignedVgpu, ...]) -> VmRequest:
    """Return the request for which these vGPUs of a VM were created, with its original GPU constraints."""
    recorded = request_of_record(record.request_fields)
    whole = [v for v in vgpus if v.profile is None]
    mode = backend_for(whole[0].backend).mode if whole else None
    profiles = [v.profile for v in vgpus if v.profile is not None]
    return replace(
        recorded,
        name=vm.name,
        profiles=tuple((name, profiles.count(name)) for name in dict.fromkeys(profiles)),
        mode=str(mode or ("vgpu" if profiles else recorded.mode)),
        gpus=count_devices(whole) or 1,
        memory_mib=vm.memory_mib,
        vcpus=vm.vcpus,
        reserve=record.reserve,
    )


def choose_slots(
    snapshot: Snapshot,
    vm: Vm,
    record: VmRecord,
    *,
    keep_definition: bool = False,
) -> tuple[AssignedVgpu, ...]:
    """Return a slot for each vGPU without one: its own slot if free, else any with room.

    `keep_definition`: the VM's definition must not change. So an mdev may go anywhere, but a function cannot change.

    Raises:
        InUse: with `keep_definition`, its function is not free; names the holder and the command that moves the VM.
        VgpuctlError: as `choose_vgpus`.
    """
    without = without_slot(snapshot, vm, record)
    own_slots = _own_slots(snapshot, vm, record, without)
    if own_slots is not None:
        return own_slots
    if keep_definition:
        _refuse_moving(snapshot, vm, without)
        without_mdevs = frozenset(g.address for g in snapshot.gpus if not backend_for(g.backend).carrier_has_uuid)
        snapshot = replace(snapshot, refusing_gpus=snapshot.refusing_gpus | without_mdevs)
    chosen = list(_choose_elsewhere(snapshot, vm, record, without))
    result = []
    for assigned in without:
        match = next((c for c in chosen if _is_of_profile(c, assigned, record)), None)
        if match is None:
            break
        chosen.remove(match)
        result.append(with_identity(match, assigned, record))
    if chosen or len(result) < len(without):
        raise NoCapacity(
            f"{vm.name} has {count_text(len(without), 'PCI function')} of whole GPUs, and the GPUs that are free have"
            " another number",
            hint=f"vgpuctl detach-vgpu {vm.name}, then attach-gpu with other GPUs",
            vm=vm.name,
        )
    return tuple(result)


def _choose_elsewhere(
    snapshot: Snapshot, vm: Vm, record: VmRecord, vgpus: tuple[AssignedVgpu, ...]
) -> tuple[AssignedVgpu, ...]:
    """Choose slots as for a new VM. If no GPU has the model any more, a profile without the model takes another one.

    Raises:
        HostCannot: the VM may be only on GPUs that are gone, or no GPU offers its profile.
        VgpuctlError: as `choose_vgpus`.
    """
    request = request_from_record(vm, record, vgpus)
    request = _allowed_here(snapshot, vm, record, request)
    try:
        return choose_vgpus(snapshot, request, record.vm_uuid)
    except NotFound as error:
        texts = [_requested_text(v, record) for v in vgpus if v.profile is not None]
        if not any(map(omits_model, texts)):
            raise _unoffered_error(vm, record, error) from error
        kept = [v.profile for v in record.vgpus if v not in vgpus and v.profile is not None]
        open_request = replace(request, profiles=tuple((text, texts.count(text)) for text in dict.fromkeys(texts)))
        try:
            return choose_vgpus(snapshot, open_request, record.vm_uuid, kept)
        except NotFound as open_error:
            raise _unoffered_error(vm, record, open_error) from open_error


def _unoffered_error(vm: Vm, record: VmRecord, error: NotFound) -> VgpuctlError:
    """Return what to do for a VM whose profile no GPU offers any more, as after a new driver; else the error itself."""
    profile, similar = error.facts.get("profile"), error.facts.get("near")
    if profile is None:
        return error
    hint, name = error.hint, shlex.quote(vm.name)
    if isinstance(similar, list) and similar:
        number = len(record.vgpus)
        one = len({v.profile for v in record.vgpus}) == 1
        text = f"{similar[0]}:{number}" if number > 1 else similar[0]
        others = f"vgpuctl list-profiles shows what this host offers; then vgpuctl set-vm {name} --profile PROFILE"
        hint = f"vgpuctl set-vm {name} --profile {text}" if one else others
    return HostCannot(
        f"{vm.name} has {profile}, which no GPU on this host offers", hint=hint, check="profile", vm=vm.name
    )


def _allowed_here(snapshot: Snapshot, vm: Vm, record: VmRecord, request: VmRequest) -> VmRequest:
    """Return the request without the GPUs that are gone.

    Raises:
        HostCannot: no GPU is left that the VM may be on; the hint gives it another one.
    """
    not_gpu = tuple(name for name in request.not_gpu if match_gpus(snapshot.gpus, name))
    gpu_names = tuple(name for name in request.gpu if match_gpus(snapshot.gpus, name))
    if gpu_names or not request.gpu:
        return replace(request, gpu=gpu_names, not_gpu=not_gpu)
    elsewhere = replace(request, gpu=(), not_gpu=not_gpu)
    try:
        gpu = choose_vgpus(snapshot, elsewhere, record.vm_uuid)[0].gpu
    except VgpuctlError as error:
        hint = error.hint
    else:
        hint = _move_command(vm, record, gpu)
    raise HostCannot(
        f"{vm.name} may be only on {' or '.join(request.gpu)}, which is no longer on this host",
        hint=hint,
        check="gpu-missing",
        vm=vm.name,
        gpu=request.gpu[0],
    )


def _move_command(vm: Vm, record: VmRecord, gpu: str) -> str:
    """Return the command that gives a VM that is off another GPU."""
    name = shlex.quote(vm.name)
    profiles = [v.profile for v in record.vgpus if v.profile is not None]
    if len(profiles) < len(record.vgpus):
        gone = " ".join(f"--vgpu {v.carrier}" for v in record.vgpus)
        mode = record.request_fields.get("mode")
        add = f"attach-vgpu {name} --mode sriov" if mode == "sriov" else f"attach-gpu {name}"
        return f"vgpuctl detach-vgpu {name} {gone}; vgpuctl {add} --gpu {gpu}"
    counts = ((profile, profiles.count(profile)) for profile in dict.fromkeys(profiles))
    words = " ".join(f"--profile {shlex.quote(f'{p}:{n}' if n > 1 else p)}" for p, n in counts)
    return f"vgpuctl set-vm {name} {words} --gpu {gpu}"


def _requested_text(vgpu: AssignedVgpu, record: VmRecord) -> str:
    """Return the profile of a vGPU as it was requested, such as `8Q` for any model."""
    texts = record.request_fields.get("profile")
    if not isinstance(texts, list) or len(texts) != len(record.vgpus):
        return vgpu.profile or ""
    by_carrier = {v.carrier: str(text) for v, text in zip(record.vgpus, texts, strict=True)}
    return by_carrier.get(vgpu.carrier) or vgpu.profile or ""


def _is_of_profile(chosen: AssignedVgpu, assigned: AssignedVgpu, record: VmRecord) -> bool:
    """Return whether a chosen slot has the profile that a vGPU has, or that was requested for it."""
    if chosen.profile == assigned.profile or chosen.profile is None or assigned.profile is None:
        return chosen.profile == assigned.profile
    text = _requested_text(assigned, record)
    return omits_model(text) and any(matches_profile_name(chosen.profile, part) for part in text.split("|"))


def with_identity(chosen: AssignedVgpu, assigned: AssignedVgpu, record: VmRecord) -> AssignedVgpu:
    """Return a chosen slot as the slot of an assigned vGPU: with its index and parameters, and the UUID of its mdev.

    An adopted vGPU that becomes an mdev with a UUID of vgpuctl's own is adopted no more.
    """
    has_uuid = backend_for(chosen.backend).carrier_has_uuid
    if has_uuid and backend_for(assigned.backend).carrier_has_uuid:
        carrier = assigned.carrier
    else:
        carrier = backend_for(chosen.backend).carrier(chosen.function, record.vm_uuid, assigned.index)
    adopted = assigned.adopted and (carrier == assigned.carrier or not has_uuid)
    return replace(chosen, index=assigned.index, carrier=carrier, params=assigned.params, adopted=adopted)


def _own_slots(
    snapshot: Snapshot, vm: Vm, record: VmRecord, vgpus: tuple[AssignedVgpu, ...]
) -> tuple[AssignedVgpu, ...] | None:
    """Return the recorded slots if all are free and allowed, else None; mdevs may use another VF."""
    if vgpus:
        refuse_invalid_host_file(snapshot)
    mode = request_from_record(vm, record, vgpus).mode
    slots: list[AssignedVgpu] = []
    for assigned in vgpus:
        gpu = snapshot.gpu(assigned.gpu)
        if (
            gpu is None
            or gpu.address in snapshot.refusing_gpus
            or why_unschedulable(snapshot, gpu, mode, vm.name) is not None
        ):
            return None
        if why_group_conflicts(snapshot, gpu, record.spread_group, vm.uuid) is not None:
            return None
        function = _choose_function(snapshot, gpu, assigned)
        if function is None:
            return None
        placement = _choose_placement(snapshot, gpu, assigned)
        slots.append(replace(assigned, function=function, placement_id=placement, waits_for_place=False))
        snapshot = replace(snapshot, vgpus=(*snapshot.vgpus, as_taken_vgpu(slots[-1], vm.name, vm.uuid)))
    return tuple(slots)


def _choose_function(snapshot: Snapshot, gpu: Gpu, assigned: AssignedVgpu) -> str | None:
    """Return the function of its own GPU that a vGPU can use now; None if it must go elsewhere."""
    if assigned.profile is None:
        taken = {c for v in snapshot.vgpus for c in (v.carrier, v.function)}
        is_missing = not backend_for(assigned.backend).has_carrier(gpu, assigned.function)
        unusable = is_missing or assigned.function in taken or gpu.backend is not assigned.backend
        return None if unusable else assigned.function
    vgpu_type = next((t for t in gpu.types if t.profile == assigned.profile), None)
    if vgpu_type is None or gpu.backend is not assigned.backend:
        return None
    room = compute_room(gpu, snapshot.vgpus_on(gpu.address), vgpu_type)
    if not room.has_room:
        return None
    usable = [f.address for f in gpu.functions if _offers_type(f, vgpu_type.type_id)]
    unused = set(usable) - {v.function for v in snapshot.vgpus_on(gpu.address)}
    if assigned.function in room.functions or assigned.function in unused:
        return assigned.function
    return room.functions[0] if backend_for(assigned.backend).carrier_has_uuid else None


def _choose_placement(snapshot: Snapshot, gpu: Gpu, assigned: AssignedVgpu) -> int | None:
    """Return the vGPU's placement on its own GPU: the recorded one, on a mixed-size GPU only if that is free."""
    vgpu_type = next((t for t in gpu.types if t.profile == assigned.profile), None)
    if not gpu.mixed_size or vgpu_type is None:
        return assigned.placement_id
    taken = snapshot.vgpus_on(gpu.address)
    if assigned.placement_id is not None and is_placement_free(gpu, taken, vgpu_type, assigned.placement_id):
        return assigned.placement_id
    return choose_placement_id(gpu, taken, vgpu_type)


def _offers_type(function: GpuFunction, type_id: str) -> bool:
    is_idle = not function.mdevs and function.current_type is None and not function.problem
    return is_idle and (function.available_instances or {}).get(type_id, 0) > 0


def _refuse_moving(snapshot: Snapshot, vm: Vm, vgpus: tuple[AssignedVgpu, ...]) -> None:
    """Refuse what needs a change of the definition: another function than the one it names."""
    for assigned in vgpus:
        if backend_for(assigned.backend).carrier_has_uuid:
            continue
        holder = next((v for v in snapshot.vgpus if assigned.carrier in (v.carrier, v.function)), None)
        reason = f"{holder.holder_text} uses it" if holder else _unavailable_reason(snapshot, vm, assigned)
        raise InUse(
            f"{vm.name} {_why_unreserved(assigned)}, and {reason}",
            hint=f"vgpuctl start-vm {vm.name} assigns a free one",
            carrier=assigned.carrier,
            vm=holder.vm if holder else None,
        )


def _why_unreserved(assigned: AssignedVgpu) -> str:
    """Say, after the VM's name, why the function of a vGPU is not reserved for it."""
    if assigned.waits_for_place:
        return f"gave up {assigned.carrier} for a move"
    return f"reserves {assigned.carrier} only while it runs"


def _unavailable_reason(snapshot: Snapshot, vm: Vm, assigned: AssignedVgpu) -> str:
    """Say why a function that nobody holds is unavailable."""
    gpu = snapshot.gpu(assigned.gpu)
    if gpu is None:
        return f"the GPU {assigned.gpu} does not exist"
    vgpu_type = next((t for t in gpu.types if t.profile == assigned.profile), None)
    reasons = compute_room(gpu, snapshot.vgpus_on(gpu.address), vgpu_type).reasons if vgpu_type is not None else ()
    restriction = why_restricted(gpu, "vgpu" if assigned.profile else str(gpu.mode), vm.name)
    return "; ".join(filter(None, (restriction, *reasons))) or "it is not available now"


def tentative_placement(snapshot: Snapshot, request: VmRequest, uuid: str) -> tuple[AssignedVgpu, ...]:
    """Return slots for the record of a VM that stays off: free ones, or those that an empty host would have.

    Raises:
        VgpuctlError: as `choose_vgpus`; NoCapacity if even the empty host has no room.
    """
    try:
        return choose_vgpus(snapshot, request, uuid)
    except (NoCapacity, InUse, HostCannot):
        return choose_vgpus(hypothetical_empty(snapshot), request, uuid)


def hypothetical_empty(snapshot: Snapshot) -> Snapshot:
    """Return the host as if nothing were on it, no GPU were cordoned, and each were set up as host.yaml says."""
    gpus = tuple(
        replace(
            gpu,
            cordoned=False,
            desired_mig=None,
            desired_mixed_size=None,
            desired_scheduler=None,
            functions=tuple(_empty_function(gpu, f) for f in gpu.functions),
        )
        for gpu in snapshot.gpus
    )
    return replace(snapshot, gpus=gpus, vms=(), claims=(), vgpus=(), stuck_writes=())


def _empty_function(gpu: Gpu, function: GpuFunction) -> GpuFunction:
    on_vfs = backend_for(gpu.backend).on_vfs
    max_instances = {t.type_id: 1 if on_vfs else t.max_per_gpu or 1 for t in gpu.types}
    is_known = function.available_instances is not None
    available = max_instances if is_known else None
    return replace(function, available_instances=available, mdevs=(), current_type=None, placement_id=None, gi_id=None)
