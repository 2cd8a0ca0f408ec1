# SPDX-License-Identifier: Apache-2.0
"""Join devices, VMs and claims: every taken carrier, and its owner.

A device is managed when a VM's record names it, when host.yaml keeps it without a VM, when its claim's VM exists, or
when the claiming operation is still alive. It is leaked when both the VM and the operation of its claim are gone, and
unmanaged otherwise. What vgpuctl cannot see never counts as free: without libvirt, a claimed device stays managed.

A VM that reserves its places only while it runs holds one when a claim says so, when the device exists and its UUID
proves the owner, or when the VM runs. Otherwise its record reserves nothing, and its VF belongs to the VM that uses it.
The same applies to a vGPU that waits for a place.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping

from vgpuctl.backends import backend_for
from vgpuctl.backends.mdev import owns_carrier
from vgpuctl.model.gpu import Backend, Gpu, GpuFunction, Ownership, Vgpu
from vgpuctl.model.vm import (
    GPU_SETUP_CLAIM,
    OFF_OR_UNKNOWN_STATES,
    AssignedVgpu,
    Claim,
    HostdevRef,
    HostVgpu,
    RecordState,
    Vm,
    VmRecord,
    VmState,
)
from vgpuctl.value import replace

RECORD_LOST = "record lost"
RECORD_UNREADABLE = "unreadable record"


def host_vgpu_owner(machine_id: str, name: str) -> str:
    """Return the UUID under which a vGPU without a VM is claimed, in place of a VM's UUID."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"urn:vgpuctl:1:vgpu:{machine_id}:{name}"))


def infer_backend(carrier: str, gpu: Gpu | None) -> Backend:
    """Return how a vGPU of host.yaml is carried: by its GPU's current backend, or by the form of its carrier."""
    if ":" in carrier:
        return Backend.VENDOR_VF
    return Backend.MDEV_VF if gpu is not None and gpu.backend is Backend.MDEV_VF else Backend.MDEV_PF


def resolve_ownership(
    gpus: tuple[Gpu, ...],
    vms: tuple[Vm, ...],
    claims: tuple[Claim, ...],
    live_carriers: frozenset[str],
    unreadable_claims: tuple[str, ...] = (),
    *,
    host_vgpus: tuple[HostVgpu, ...] = (),
    owners_known: bool = True,
    of_vm: str | None = None,
    functions: frozenset[str] = frozenset(),
) -> tuple[Vgpu, ...]:
    """Return every taken carrier once, sorted by GPU, function and carrier.

    `of_vm`: only what one VM has, by name or uuid, and what is on these GPUs.

    `owners_known` False: some VMs, or part of host.yaml, could not be read; then no claim counts as leaked.
    `functions`: PCI functions that exist, besides those of `gpus`.
    """
    present = _existing_devices(gpus)
    if of_vm is not None:
        vms = _vms_on(gpus, vms, present, of_vm)
    by_carrier = _always_reserved_vgpus(vms, present)
    not_held = _add_running_vgpus(by_carrier, vms, claims, present, live_carriers)
    by_carrier = {entry.carrier: _host_vgpu(entry, gpus, vms, claims, present) for entry in host_vgpus} | by_carrier
    vm_by_uuid = {vm.uuid: vm for vm in vms}
    for claim in claims:
        if claim.carrier not in by_carrier:
            vm_of_claim = vm_by_uuid.get(claim.vm_uuid)
            by_carrier[claim.carrier] = _vgpu_of_claim(
                claim, vm_of_claim, present, live_carriers, owners_known=owners_known
            )
    for vm, hostdev in ((v, h) for v in vms for h in v.hostdevs if h.carrier not in by_carrier):
        vgpu = None if (vm.uuid, hostdev.carrier) in not_held else _vgpu_of_hostdev(vm, hostdev, gpus, present)
        if vgpu is not None:
            by_carrier[hostdev.carrier] = vgpu
    for carrier, device in present.items():
        by_carrier.setdefault(carrier, device)
    for carrier in unreadable_claims:
        vgpu_at_carrier = by_carrier.get(carrier) or _vgpu_at_function(carrier, gpus)
        if vgpu_at_carrier is not None:
            by_carrier[carrier] = replace(vgpu_at_carrier, reason="its claim cannot be read")
    no_placement_gpus = {gpu.address for gpu in gpus if gpu.mixed_size is False or gpu.has_fixed_placements}
    vgpus = (_without_placement(v) if v.gpu in no_placement_gpus else v for v in by_carrier.values())
    groups = {c.vm_uuid: c.spread_group for c in claims if c.spread_group is not None}
    groups |= {v.uuid: v.record.spread_group for v in vms if v.record is not None and v.record.spread_group}
    if groups:
        vgpus = (replace(v, spread_group=groups.get(v.vm_uuid or "")) for v in vgpus)
    existing = _with_presence(_with_users(vgpus, vms), functions | _functions_of(gpus))
    return tuple(sorted(existing, key=lambda v: (v.gpu, v.function, v.carrier)))


def _functions_of(gpus: tuple[Gpu, ...]) -> frozenset[str]:
    """Return the PCI functions that reading these GPUs has shown."""
    shown = ((g.address, *(f.address for f in g.functions), *(m.address for m in g.group_members)) for g in gpus)
    return frozenset(address for addresses in shown for address in addresses)


def _with_presence(vgpus: Iterable[Vgpu], functions: frozenset[str]) -> Iterator[Vgpu]:
    """Add whether a function that is given to a VM exists: a VF goes with a reboot, a card can be pulled out."""
    for vgpu in vgpus:
        given = vgpu.backend is not None and not backend_for(vgpu.backend).creates_devices
        yield replace(vgpu, present=vgpu.carrier in functions) if given else vgpu


def _vms_on(gpus: tuple[Gpu, ...], vms: tuple[Vm, ...], present: Mapping[str, Vgpu], name: str) -> tuple[Vm, ...]:
    """Return the VM of this name or uuid, and those that have something on these GPUs or name a device of that VM."""
    addresses = {gpu.address for gpu in gpus}
    own = next((vm for vm in vms if name in (vm.name, vm.uuid)), None)
    carriers = {f.address for gpu in gpus for f in gpu.functions}.union(present)
    carriers |= {h.carrier for h in own.hostdevs} if own is not None else set()
    return tuple(
        vm
        for vm in vms
        if vm is own
        or any(h.carrier in carriers for h in vm.hostdevs)
        or (vm.record is not None and any(v.gpu in addresses for v in vm.record.vgpus))
    )


def _with_users(vgpus: Iterable[Vgpu], vms: tuple[Vm, ...]) -> Iterator[Vgpu]:
    """Add whether the VM of each vGPU has it, and which other VMs name it."""
    vm_by_uuid = {vm.uuid: vm for vm in vms}
    users: dict[str, list[Vm]] = {}
    for vm in vms:
        for carrier in {h.carrier for h in vm.hostdevs}:
            users.setdefault(carrier, []).append(vm)
    for vgpu in vgpus:
        owner = vm_by_uuid.get(vgpu.vm_uuid or "")
        attached = None if owner is None or owner.live_carriers is None else vgpu.carrier in owner.live_carriers
        others = (vm for vm in users.get(vgpu.carrier, ()) if vm is not owner and vm.refers_to(vgpu.carrier))
        other_vms = tuple(vm.name for vm in others)
        yield replace(vgpu, attached=attached, other_vms=other_vms) if attached is not None or other_vms else vgpu


def _always_reserved_vgpus(vms: tuple[Vm, ...], present: Mapping[str, Vgpu]) -> dict[str, Vgpu]:
    """Return the vGPUs whose places are always reserved."""
    by_carrier: dict[str, Vgpu] = {}
    for vm in vms:
        if vm.record is not None:
            by_carrier.update(_vgpus_of_record(vm, vm.record, present))
    return by_carrier


def _add_running_vgpus(
    by_carrier: dict[str, Vgpu],
    vms: tuple[Vm, ...],
    claims: tuple[Claim, ...],
    present: Mapping[str, Vgpu],
    live: frozenset[str],
) -> set[tuple[str, str]]:
    """Add what VMs hold now and do not always reserve; return what they do not hold, by VM and carrier."""
    claimed = {claim.carrier: claim for claim in claims}
    not_held: set[tuple[str, str]] = set()
    for vm in vms:
        for assigned in _not_always_reserved(vm):
            claim = claimed.get(assigned.carrier)
            if assigned.carrier not in by_carrier and _holds_slot(vm, assigned, claim, present):
                by_carrier[assigned.carrier] = _vgpu_while_held(vm, assigned, claim, present, live)
            else:
                not_held.add((vm.uuid, assigned.carrier))
    return not_held


def _not_always_reserved(vm: Vm) -> tuple[AssignedVgpu, ...]:
    record = vm.record
    return () if record is None else tuple(v for v in record.vgpus if not record.reserves_slot(v))


def _existing_devices(gpus: tuple[Gpu, ...]) -> dict[str, Vgpu]:
    """Return the devices that exist, all unmanaged until an owner is known."""
    by_carrier: dict[str, Vgpu] = {}
    for gpu in gpus:
        for function in gpu.functions:
            for mdev in function.mdevs:
                by_carrier[mdev.uuid] = _vgpu_of_device(gpu, function, mdev.uuid, mdev.type_id, mdev.placement_id)
            if (current_type := function.current_type) is not None:
                by_carrier[function.address] = _vgpu_of_device(
                    gpu, function, function.address, current_type, function.placement_id
                )
    return by_carrier


def _vgpu_of_device(gpu: Gpu, function: GpuFunction, carrier: str, type_id: str, place: int | None) -> Vgpu:
    vgpu_type = gpu.find_type(type_id)
    return Vgpu(
        carrier=carrier,
        gpu=gpu.address,
        function=function.address,
        owner=Ownership.UNMANAGED,
        present=True,
        backend=gpu.backend,
        type_id=type_id,
        profile=vgpu_type.profile if vgpu_type else None,
        framebuffer_mib=vgpu_type.framebuffer_mib if vgpu_type else None,
        placement_id=place,
        gi_id=function.gi_id,
    )


def _with_placement(vgpu: Vgpu, device: Vgpu | None, assigned_id: int | None) -> Vgpu:
    """Return a vGPU with its placement: where its device is, and where it has to be.

    The driver gives a vGPU the first free place; vgpuctl moves it to its own place a moment later, where the driver
    can.
    """
    current_id = assigned_id if device is None else device.placement_id
    gi_id = None if device is None else device.gi_id
    if current_id is None and gi_id is None:
        return vgpu
    target_id = assigned_id if current_id not in (None, assigned_id) else None
    return replace(vgpu, placement_id=current_id, target_placement_id=target_id, gi_id=gi_id)


def _without_placement(vgpu: Vgpu) -> Vgpu:
    """Return a vGPU without a placement: all are of one size there, or it did not get the requested one."""
    return vgpu if vgpu.placement_id is None else replace(vgpu, placement_id=None, target_placement_id=None)


def _holds_slot(vm: Vm, assigned: AssignedVgpu, claim: Claim | None, present: Mapping[str, Vgpu]) -> bool:
    """Return whether a VM that does not always reserve this place holds it now."""
    if claim is not None:
        return claim.vm_uuid == vm.uuid
    if backend_for(assigned.backend).carrier_has_uuid:
        return assigned.carrier in present
    return vm.state not in OFF_OR_UNKNOWN_STATES


def _vgpu_while_held(
    vm: Vm, assigned: AssignedVgpu, claim: Claim | None, present: Mapping[str, Vgpu], live: frozenset[str]
) -> Vgpu:
    """Return such a place: where the device or the claim is, because the record may name another GPU."""
    device = present.get(assigned.carrier)
    place = device or claim or assigned
    assigned = assigned if claim is None else replace(assigned, placement_id=claim.placement_id)
    ready = vm.record is not None and vm.record.state is RecordState.READY
    is_off = vm.state is VmState.STOPPED and not assigned.waits_for_place
    idle = ready and is_off and assigned.carrier not in live
    reason = "its VM is off and reserves no place then: vgpuctl reconcile-host" if idle else None
    return _vgpu_of_vm(vm, assigned, device, place, reason=reason, idle=idle)


def _vgpus_of_record(vm: Vm, record: VmRecord, present: Mapping[str, Vgpu]) -> dict[str, Vgpu]:
    """Return the vGPUs of a VM whose places are always reserved, each with its device if that exists."""
    by_carrier = {}
    for assigned in (v for v in record.vgpus if record.reserves_slot(v)):
        device = present.get(assigned.carrier)
        awaited = device is None and record.state is RecordState.READY and backend_for(assigned.backend).creates_devices
        by_carrier[assigned.carrier] = _vgpu_of_vm(vm, assigned, device, device or assigned, awaited=awaited)
    return by_carrier


def _vgpu_of_vm(
    vm: Vm,
    assigned: AssignedVgpu,
    device: Vgpu | None,
    place: Vgpu | Claim | AssignedVgpu,
    *,
    reason: str | None = None,
    idle: bool = False,
    awaited: bool = False,
) -> Vgpu:
    """Return a VM's assigned vGPU, with its device if it exists, and the place where it is or has to be."""
    vgpu = Vgpu(
        carrier=assigned.carrier,
        gpu=place.gpu,
        function=place.function,
        owner=Ownership.MANAGED,
        present=device is not None,
        backend=assigned.backend,
        type_id=device.type_id if device else None,
        profile=assigned.profile,
        framebuffer_mib=assigned.framebuffer_mib,
        vm=vm.name,
        vm_uuid=vm.uuid,
        reason=reason,
        idle=idle,
        needs_device=awaited,
    )
    return _with_placement(vgpu, device, assigned.placement_id)


def _host_vgpu(
    entry: HostVgpu,
    gpus: tuple[Gpu, ...],
    vms: tuple[Vm, ...],
    claims: tuple[Claim, ...],
    present: Mapping[str, Vgpu],
) -> Vgpu:
    """Return a vGPU that host.yaml keeps, whether it exists or not, with the VM that refers to it."""
    device = present.get(entry.carrier)
    gpu = next((g for g in gpus if g.address == entry.gpu), None)
    sizes = [t.framebuffer_mib for t in (gpu.types if gpu else ()) if t.profile == entry.profile]
    claim = next((c for c in claims if c.carrier == entry.carrier), None)
    sizes += [claim.framebuffer_mib] if claim is not None else []
    user = next((vm for vm in vms if vm.refers_to(entry.carrier)), None)
    wrong_profile = device.profile if device is not None and device.profile not in (None, entry.profile) else None
    vgpu = Vgpu(
        carrier=entry.carrier,
        gpu=device.gpu if device else entry.gpu,
        function=device.function if device else entry.carrier if ":" in entry.carrier else entry.gpu,
        owner=Ownership.MANAGED,
        present=device is not None,
        backend=infer_backend(entry.carrier, gpu),
        type_id=device.type_id if device else None,
        profile=entry.profile,
        framebuffer_mib=next(iter(sizes), None),
        vm=user.name if user else None,
        vm_uuid=user.uuid if user else None,
        reason=f"it has {wrong_profile}, host.yaml says {entry.profile}" if wrong_profile else None,
        needs_device=device is None,
        name=entry.name,
    )
    return _with_placement(vgpu, device, claim.placement_id if claim is not None else None)


def _vgpu_of_claim(
    claim: Claim, vm: Vm | None, present: Mapping[str, Vgpu], live: frozenset[str], *, owners_known: bool
) -> Vgpu:
    device = present.get(claim.carrier)
    orphan = owners_known and vm is None and claim.carrier not in live
    is_gpu_setup = claim.vm == GPU_SETUP_CLAIM
    reason = None
    if orphan and is_gpu_setup:
        reason = f"half set up: process {claim.process.pid} ({claim.command}) is gone"
    elif orphan:
        reason = f"claimed for {claim.holder_text} by process {claim.process.pid}; neither exists any more"
    elif vm is not None and vm.record is None:
        reason = _record_problem(vm)
    vgpu = Vgpu(
        carrier=claim.carrier,
        gpu=device.gpu if device else claim.gpu,
        function=device.function if device else claim.function,
        owner=Ownership.LEAKED if orphan else Ownership.MANAGED,
        present=device is not None,
        backend=claim.backend,
        type_id=device.type_id if device else None,
        profile=claim.profile,
        framebuffer_mib=claim.framebuffer_mib,
        vm=None if is_gpu_setup else claim.vm,
        vm_uuid=claim.vm_uuid,
        reason=reason,
        command=claim.command if is_gpu_setup else None,
    )
    return _with_placement(vgpu, device, claim.placement_id)


def _record_problem(vm: Vm) -> str:
    """Return what happened to the record of a VM whose device is provably its own."""
    return RECORD_UNREADABLE if vm.has_unreadable_record else RECORD_LOST


def _vgpu_of_hostdev(vm: Vm, hostdev: HostdevRef, gpus: tuple[Gpu, ...], present: Mapping[str, Vgpu]) -> Vgpu | None:
    """Return the carrier that a VM without a record refers to; managed if its UUID proves that it is the VM's."""
    device = present.get(hostdev.carrier) or _vgpu_at_function(hostdev.carrier, gpus)
    if device is None:
        return None
    managed = hostdev.kind == "mdev" and owns_carrier(vm.uuid, hostdev.carrier)
    return replace(
        device,
        owner=Ownership.MANAGED if managed else Ownership.UNMANAGED,
        vm=vm.name,
        vm_uuid=vm.uuid,
        reason=_record_problem(vm) if managed else None,
    )


def _vgpu_at_function(address: str, gpus: tuple[Gpu, ...]) -> Vgpu | None:
    """Return what a VM has that names a function; that is all of it where vGPUs would be mdevs on it."""
    for gpu in gpus:
        function = gpu.find_function(address)
        given = Backend.PASSTHROUGH if address == gpu.address else None
        if function is not None and given is None and backend_for(gpu.backend).carrier_has_uuid:
            given = Backend.SRIOV_VF
        if function is not None or given is not None:
            return Vgpu(
                carrier=address,
                gpu=gpu.address,
                function=address,
                owner=Ownership.UNMANAGED,
                present=function is not None and function.current_type is not None,
                backend=given or gpu.backend,
            )
    return None
