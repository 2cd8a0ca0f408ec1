# SPDX-License-Identifier: Apache-2.0
"""Join devices, VMs and claims: every taken carrier, and whose it is.

The host is the record. A device is ours when a VM's promise names it, when host.yaml keeps it without a VM, when its
claim's VM exists, or when the claiming process still works on it; leaked when claim and process are orphaned; foreign
otherwise. What cannot be seen is never called free: without libvirt, a claimed device stays ours.

A VM that reserves its places only while it runs has one when a claim says so, when the device is there and its UUID
proves it, or when the VM runs. Otherwise its promise takes nothing, and its VF is whoever's has it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from vgpuctl.model.gpu import MDEV, WHOLE, Backend, Function, Gpu, Owner, Vgpu
from vgpuctl.model.vm import (
    NOT_SEEN_RUNNING,
    SETTING_UP,
    Claim,
    HostdevRef,
    NamedVgpu,
    Promise,
    PromisedVgpu,
    PromiseState,
    Vm,
    VmState,
)
from vgpuctl.value import replace

MAX_INDEXES = 32
"""A vGPU that comes later takes the lowest index that is free; 16 are the most a VM can have, and 16 come for them."""

LOST = "record lost"
UNREADABLE = "unreadable record"


def carrier_uuid(vm_uuid: str, index: int) -> str:
    """Return the UUID of a VM's mdev number `index`: a pure function, so its owner can always be proved."""
    try:
        space = uuid.UUID(vm_uuid)
    except ValueError:  # a domain's XML says what is none: no device is its own
        space = uuid.uuid5(uuid.NAMESPACE_URL, f"urn:vgpuctl:1:vm:{vm_uuid}")
    return str(uuid.uuid5(space, f"vgpuctl-{index}"))


def named_owner(machine_id: str, name: str) -> str:
    """Return the uuid under which a vGPU without a VM is claimed: it stands for the VM that is not there."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"urn:vgpuctl:1:vgpu:{machine_id}:{name}"))


def backend_of(carrier: str, gpu: Gpu | None) -> Backend:
    """Return how a vGPU of host.yaml is carried: as its GPU does now, or as its carrier's form says."""
    if ":" in carrier:
        return Backend.VENDOR_VF
    return Backend.MDEV_VF if gpu is not None and gpu.backend is Backend.MDEV_VF else Backend.MDEV_PF


def join(
    gpus: tuple[Gpu, ...],
    vms: tuple[Vm, ...],
    claims: tuple[Claim, ...],
    live: frozenset[str],
    unreadable: tuple[str, ...] = (),
    *,
    named: tuple[NamedVgpu, ...] = (),
    owners_known: bool = True,
) -> tuple[Vgpu, ...]:
    """Return every taken carrier once, sorted by GPU, function and carrier.

    `owners_known` False: not all VMs, or not all of host.yaml, could be seen; then no claim is called leaked.
    """
    present = _present(gpus)
    by_carrier = _kept(vms, present)
    lent = _add_held(by_carrier, vms, claims, present, live)
    by_carrier = {n.carrier: _named(n, gpus, vms, claims, present) for n in named} | by_carrier
    vm_by_uuid = {vm.uuid: vm for vm in vms}
    for claim in claims:
        if claim.carrier not in by_carrier:
            vm_of_claim = vm_by_uuid.get(claim.vm_uuid)
            by_carrier[claim.carrier] = _claimed(claim, vm_of_claim, present, live, owners_known=owners_known)
    for vm, hostdev in ((v, h) for v in vms for h in v.hostdevs if h.carrier not in by_carrier):
        found = None if (vm.uuid, hostdev.carrier) in lent else _referred(vm, hostdev, gpus, present)
        if found is not None:
            by_carrier[hostdev.carrier] = found
    for carrier, device in present.items():
        by_carrier.setdefault(carrier, device)
    for carrier in unreadable:
        known = by_carrier.get(carrier) or _at_function(carrier, gpus)
        if known is not None:
            by_carrier[carrier] = replace(known, reason="its claim cannot be read")
    plain = {gpu.address for gpu in gpus if gpu.mixed_size is False or gpu.fixed_places}
    vgpus = (_without_place(v) if v.gpu in plain else v for v in by_carrier.values())
    groups = {c.vm_uuid: c.spread_group for c in claims if c.spread_group is not None}
    groups |= {v.uuid: v.promise.spread_group for v in vms if v.promise is not None and v.promise.spread_group}
    if groups:
        vgpus = (replace(v, spread_group=groups.get(v.vm_uuid or "")) for v in vgpus)
    return tuple(sorted(vgpus, key=lambda v: (v.gpu, v.function, v.carrier)))


def _kept(vms: tuple[Vm, ...], present: Mapping[str, Vgpu]) -> dict[str, Vgpu]:
    """Return what the VMs have that keep their places always."""
    found: dict[str, Vgpu] = {}
    for vm in vms:
        if vm.promise is not None and not vm.promise.lends:
            found.update(_promised(vm, vm.promise, present))
    return found


def _add_held(
    found: dict[str, Vgpu],
    vms: tuple[Vm, ...],
    claims: tuple[Claim, ...],
    present: Mapping[str, Vgpu],
    live: frozenset[str],
) -> set[tuple[str, str]]:
    """Add what the other VMs have now; returns what they do not have, by VM and carrier."""
    claimed = {claim.carrier: claim for claim in claims}
    lent: set[tuple[str, str]] = set()
    for vm in vms:
        for promised in vm.promise.vgpus if vm.promise is not None and vm.promise.lends else ():
            claim = claimed.get(promised.carrier)
            if promised.carrier not in found and _has(vm, promised, claim, present):
                found[promised.carrier] = _held(vm, promised, claim, present, live)
            else:
                lent.add((vm.uuid, promised.carrier))
    return lent


def _present(gpus: tuple[Gpu, ...]) -> dict[str, Vgpu]:
    """Return the devices that exist, foreign until somebody is known to own them."""
    found: dict[str, Vgpu] = {}
    for gpu in gpus:
        for function in gpu.functions:
            for mdev in function.mdevs:
                found[mdev.uuid] = _device(gpu, function, mdev.uuid, mdev.type_id, mdev.placement_id)
            if (held := function.current_type) is not None:
                found[function.address] = _device(gpu, function, function.address, held, function.placement_id)
    return found


def _device(gpu: Gpu, function: Function, carrier: str, type_id: str, place: int | None) -> Vgpu:
    known = gpu.type_of(type_id)
    return Vgpu(
        carrier=carrier,
        gpu=gpu.address,
        function=function.address,
        owner=Owner.FOREIGN,
        present=True,
        backend=gpu.backend,
        type_id=type_id,
        profile=known.profile if known else None,
        framebuffer_mib=known.framebuffer_mib if known else None,
        placement_id=place,
        gi_id=function.gi_id,
    )


def _placed(vgpu: Vgpu, device: Vgpu | None, promised: int | None) -> Vgpu:
    """Return a vGPU with its placement: where its device is, and where it is to be.

    The driver gives a vGPU the first place that is free; a moment later it is moved to its own, where the driver can.
    """
    at = promised if device is None else device.placement_id
    inside = None if device is None else device.gi_id
    if at is None and inside is None:
        return vgpu
    due = promised if at not in (None, promised) else None
    return replace(vgpu, placement_id=at, due_placement_id=due, gi_id=inside)


def _without_place(vgpu: Vgpu) -> Vgpu:
    """Return a vGPU where its place does not matter, as all are of one size, or was not the one that was asked for."""
    return vgpu if vgpu.placement_id is None else replace(vgpu, placement_id=None, due_placement_id=None)


def _has(vm: Vm, promised: PromisedVgpu, claim: Claim | None, present: Mapping[str, Vgpu]) -> bool:
    """Say whether a VM that reserves nothing while it is off has this place now."""
    if claim is not None:
        return claim.vm_uuid == vm.uuid
    if promised.backend in MDEV:
        return promised.carrier in present
    return vm.state not in NOT_SEEN_RUNNING


def _held(
    vm: Vm, promised: PromisedVgpu, claim: Claim | None, present: Mapping[str, Vgpu], live: frozenset[str]
) -> Vgpu:
    """Return the place that such a VM has: where the device or the claim is, for the record may name another GPU."""
    device = present.get(promised.carrier)
    place = device or claim or promised
    promised = promised if claim is None else replace(promised, placement_id=claim.placement_id)
    ready = vm.promise is not None and vm.promise.state is PromiseState.READY
    idle = ready and vm.state is VmState.STOPPED and promised.carrier not in live
    reason = "its VM is off and keeps no place then: vgpuctl reconcile" if idle else None
    return _of_vm(vm, promised, device, place, reason=reason, idle=idle)


def _promised(vm: Vm, promise: Promise, present: Mapping[str, Vgpu]) -> dict[str, Vgpu]:
    found = {}
    going = () if promise.exchange is None else (promise.exchange.vgpu,)
    for promised in (*promise.vgpus, *going):
        device = present.get(promised.carrier)
        awaited = device is None and promise.state is PromiseState.READY and promised.backend not in WHOLE
        found[promised.carrier] = _of_vm(vm, promised, device, device or promised, awaited=awaited)
    return found


def _of_vm(
    vm: Vm,
    promised: PromisedVgpu,
    device: Vgpu | None,
    place: Vgpu | Claim | PromisedVgpu,
    *,
    reason: str | None = None,
    idle: bool = False,
    awaited: bool = False,
) -> Vgpu:
    """Return what a VM was promised, with the device that is there and the place where it is, or is to be."""
    vgpu = Vgpu(
        carrier=promised.carrier,
        gpu=place.gpu,
        function=place.function,
        owner=Owner.OURS,
        present=device is not None or promised.backend in WHOLE,
        backend=promised.backend,
        type_id=device.type_id if device else None,
        profile=promised.profile,
        framebuffer_mib=promised.framebuffer_mib,
        vm=vm.name,
        vm_uuid=vm.uuid,
        reason=reason,
        idle=idle,
        awaited=awaited,
    )
    return _placed(vgpu, device, promised.placement_id)


def _named(
    entry: NamedVgpu,
    gpus: tuple[Gpu, ...],
    vms: tuple[Vm, ...],
    claims: tuple[Claim, ...],
    present: Mapping[str, Vgpu],
) -> Vgpu:
    """Return a vGPU that host.yaml keeps, made or not, with the VM that refers to it."""
    device = present.get(entry.carrier)
    gpu = next((g for g in gpus if g.address == entry.gpu), None)
    sizes = [t.framebuffer_mib for t in (gpu.types if gpu else ()) if t.profile == entry.profile]
    claim = next((c for c in claims if c.carrier == entry.carrier), None)
    sizes += [claim.framebuffer_mib] if claim is not None else []
    user = next((vm for vm in vms if vm.refers_to(entry.carrier)), None)
    other = device.profile if device is not None and device.profile not in (None, entry.profile) else None
    vgpu = Vgpu(
        carrier=entry.carrier,
        gpu=device.gpu if device else entry.gpu,
        function=device.function if device else entry.carrier if ":" in entry.carrier else entry.gpu,
        owner=Owner.OURS,
        present=device is not None,
        backend=backend_of(entry.carrier, gpu),
        type_id=device.type_id if device else None,
        profile=entry.profile,
        framebuffer_mib=next(iter(sizes), None),
        vm=user.name if user else None,
        vm_uuid=user.uuid if user else None,
        reason=f"it carries {other}, host.yaml says {entry.profile}" if other else None,
        awaited=device is None,
        name=entry.name,
    )
    return _placed(vgpu, device, claim.placement_id if claim is not None else None)


def _claimed(
    claim: Claim, vm: Vm | None, present: Mapping[str, Vgpu], live: frozenset[str], *, owners_known: bool
) -> Vgpu:
    device = present.get(claim.carrier)
    orphan = owners_known and vm is None and claim.carrier not in live
    sets_up = claim.vm == SETTING_UP
    reason = None
    if orphan and sets_up:
        reason = f"half set up: process {claim.process.pid} is gone, which ran {claim.command}"
    elif orphan:
        reason = f"claimed for {claim.holder} by process {claim.process.pid}, both are gone"
    elif vm is not None and vm.promise is None:
        reason = _without_promise(vm)
    vgpu = Vgpu(
        carrier=claim.carrier,
        gpu=device.gpu if device else claim.gpu,
        function=device.function if device else claim.function,
        owner=Owner.LEAKED if orphan else Owner.OURS,
        present=device is not None,
        backend=claim.backend,
        type_id=device.type_id if device else None,
        profile=claim.profile,
        framebuffer_mib=claim.framebuffer_mib,
        vm=None if sets_up else claim.vm,
        vm_uuid=claim.vm_uuid,
        reason=reason,
        command=claim.command if sets_up else None,
    )
    return _placed(vgpu, device, claim.placement_id)


def _without_promise(vm: Vm) -> str:
    """Say what became of the record of a VM whose device is provably its own."""
    return UNREADABLE if vm.unreadable_promise else LOST


def _referred(vm: Vm, hostdev: HostdevRef, gpus: tuple[Gpu, ...], present: Mapping[str, Vgpu]) -> Vgpu | None:
    """Return the carrier a VM without a promise refers to; ours again when its UUID proves it."""
    device = present.get(hostdev.carrier) or _at_function(hostdev.carrier, gpus)
    if device is None:
        return None
    ours = hostdev.kind == "mdev" and any(hostdev.carrier == carrier_uuid(vm.uuid, i) for i in range(MAX_INDEXES))
    return replace(
        device,
        owner=Owner.OURS if ours else Owner.FOREIGN,
        vm=vm.name,
        vm_uuid=vm.uuid,
        reason=_without_promise(vm) if ours else None,
    )


def _at_function(address: str, gpus: tuple[Gpu, ...]) -> Vgpu | None:
    for gpu in gpus:
        function = gpu.function_at(address)
        if function is not None:
            return Vgpu(
                carrier=address,
                gpu=gpu.address,
                function=address,
                owner=Owner.FOREIGN,
                present=function.current_type is not None or gpu.backend in WHOLE,
                backend=gpu.backend,
            )
        if gpu.address == address:
            return Vgpu(carrier=address, gpu=address, function=address, owner=Owner.FOREIGN, present=True)
    return None
