# SPDX-License-Identifier: Apache-2.0
"""Plan what a VM that exists gets or loses: which vGPUs, under which index, and its record afterwards."""

from __future__ import annotations

import json
from collections.abc import Sequence

from vgpuctl.backends import of
from vgpuctl.capacity.ownership import MAX_INDEXES, carrier_uuid
from vgpuctl.capacity.profiles import check_combination
from vgpuctl.domain.edit import hostdev_xml
from vgpuctl.errors import Busy, NotFound
from vgpuctl.model.gpu import MDEV, Backend, Gpu, VgpuType
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Step
from vgpuctl.model.vm import Promise, PromisedVgpu, PromiseState, Vm
from vgpuctl.model.wish import DesignHostdev, VmWish
from vgpuctl.plan.choose import as_taken, choose, make_steps
from vgpuctl.plan.differ import meant_profile
from vgpuctl.plan.remove import own_promise
from vgpuctl.steps.claims import ReleaseClaim
from vgpuctl.steps.plug import AttachDevice, DetachDevice, WriteRecord
from vgpuctl.value import Value, replace

ADOPTED = "ua-vgpuctl-plug-"
"""The alias of a vGPU in a VM that somebody else made: it says so also when the record is lost."""


class Swap(Value):
    """The vGPUs of a VM that stay, that go, and the profiles, as typed, of those that come."""

    stay: tuple[PromisedVgpu, ...]
    go: tuple[PromisedVgpu, ...]
    come: tuple[str, ...]


def own_or_new(vm: Vm, machine_id: str) -> Promise:
    """Return a VM's promise, or an empty one for a VM that somebody else made.

    Raises:
        Foreign: its record is a copy or cannot be understood; nothing is written over it.
    """
    if vm.promise is not None or vm.copied_promise is not None or vm.unreadable_promise:
        return own_promise(vm, "change")
    return Promise(PromiseState.READY, vm.uuid, machine_id, (), (), "{}", made_vm=False)


def added(
    snapshot: Snapshot,
    wish: VmWish,
    promise: Promise,
    exclude: frozenset[str] = frozenset(),
    go: Sequence[PromisedVgpu] = (),
) -> tuple[PromisedVgpu, ...]:
    """Return the vGPUs that a VM gets beside those that stay, with the lowest indexes that are free.

    `go`: those of its vGPUs that it loses; nothing takes their indexes, because they are still there.

    Raises:
        NoCapacity, NotFound, InvalidInput, Refused, InUse, HostCannot, Stuck: as `choose`.
    """
    vm = snapshot.vm(promise.vm_uuid)
    named = wish if vm is None else replace(wish, name=vm.name)  # it may be called by its uuid
    stay = [v.profile for v in promise.vgpus if v not in go and v.profile is not None]
    chosen = choose(snapshot, named, promise.vm_uuid, exclude, stay)
    check_combination([*stay, *(v.profile for v in chosen if v.profile is not None)])
    taken = {v.carrier for v in snapshot.vgpus}
    used = {v.index for v in promise.vgpus}
    free = [n for n in range(MAX_INDEXES) if n not in used and carrier_uuid(promise.vm_uuid, n) not in taken]
    if len(free) < len(chosen):
        raise Busy(f"all {MAX_INDEXES} places of this VM are taken", hint="vgpuctl reconcile")
    return tuple(
        replace(v, index=n, carrier=carrier_uuid(promise.vm_uuid, n) if v.backend in MDEV else v.carrier)
        for n, v in zip(free, chosen, strict=False)
    )


def beside(snapshot: Snapshot, vm: Vm, vgpus: Sequence[PromisedVgpu]) -> Snapshot:
    """Return the snapshot with these vGPUs of a VM as taken, also where they have no place now.

    Its definition refers to each of them, and to no function twice.
    """
    there = {v.carrier for v in snapshot.vgpus}
    lent = (as_taken(v, vm.name, vm.uuid) for v in vgpus if v.carrier not in there)
    return replace(snapshot, vgpus=(*snapshot.vgpus, *lent))


def promised(promise: Promise, vgpus: Sequence[PromisedVgpu], typed: Sequence[str] = ()) -> Promise:
    """Return the record with these vGPUs; `typed` are the profiles of those that were not there, in their order."""
    spec = promise.asked
    texts = spec.get("profile")
    old: dict[str, str] = {}
    if isinstance(texts, list) and len(texts) == len(promise.vgpus):
        old = {v.carrier: str(t) for v, t in zip(promise.vgpus, texts, strict=True)}
    later = iter(typed)
    named = [old.get(v.carrier) or next(later, None) or v.profile or "" for v in vgpus]
    spec["profile"] = named
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return replace(promise, vgpus=tuple(vgpus), spec=text)


def typed_profiles(wish: VmWish) -> tuple[str, ...]:
    """Return the profiles as typed, one for each vGPU."""
    return tuple(p for p, n in wish.profiles for _ in range(n))


def hostdev(vgpu: PromisedVgpu, promise: Promise) -> DesignHostdev:
    """Return how the domain refers to a vGPU that comes later."""
    device = of(vgpu.backend).hostdev(vgpu)
    return device if promise.made_vm else replace(device, alias=f"{ADOPTED}{vgpu.index}")


def attach_steps(
    snapshot: Snapshot, vm: Vm, promise: Promise, typed: Sequence[str], new: Sequence[PromisedVgpu], *, live: bool
) -> tuple[Step, ...]:
    """Return the steps after the claims: record, make, attach; of a VM that lends its places while off, no device."""
    after = promised(promise, (*promise.vgpus, *new), typed)
    steps: list[Step] = [WriteRecord(vm.name, vm.uuid, after, vm.promise)]
    for vgpu in new if live or not promise.lends else ():
        steps += make_steps(snapshot, vgpu)
    steps += [AttachDevice(vm.name, vm.uuid, v.carrier, hostdev_xml(hostdev(v, promise)), live) for v in new]
    return tuple(steps)


def detach_steps(
    vm: Vm, promise: Promise, go: Sequence[PromisedVgpu], leave: frozenset[str], wait_seconds: float
) -> tuple[Step, ...]:
    """Return for each vGPU: detach, remove, record without it, release. reconcile uses them for what a crash left.

    `leave`: carriers whose device stays, because it is not provably ours.
    """
    steps: list[Step] = []
    now = promise
    for vgpu in reversed(go):
        if any(h.carrier == vgpu.carrier for h in vm.hostdevs):
            steps.append(DetachDevice(vm.name, vm.uuid, vgpu.carrier, wait_seconds))
        if vgpu.carrier not in leave:
            steps += of(vgpu.backend).remove(vgpu)
        after = promised(now, [v for v in now.vgpus if v.carrier != vgpu.carrier])
        keep = after if after.vgpus or after.made_vm else None
        steps += [WriteRecord(vm.name, vm.uuid, keep, now), ReleaseClaim(vgpu.carrier, vm.uuid)]
        now = after
    return tuple(steps)


def named(vm: Vm, promise: Promise, carriers: Sequence[str]) -> tuple[PromisedVgpu, ...]:
    """Return the VM's vGPUs with these carriers; none given are all.

    Raises:
        NotFound: it has no such vGPU.
    """
    wanted = {c.lower() for c in carriers}
    have = {v.carrier for v in promise.vgpus}
    unknown = sorted(wanted - have)
    if unknown:
        raise NotFound(
            f"{vm.name} has no vGPU {', '.join(unknown)}",
            hint=f"it has {', '.join(sorted(have)) or 'none'}; vgpuctl show-vm {vm.name}",
            vm=vm.name,
            carriers=sorted(have),
        )
    return tuple(v for v in promise.vgpus if not wanted or v.carrier in wanted)


def unreferenced(vm: Vm) -> tuple[PromisedVgpu, ...]:
    """Return the vGPUs that only the record names, not the VM's devices: half attached, or half detached."""
    there = {h.carrier for h in vm.hostdevs}
    return tuple(v for v in vm.promise.vgpus if v.carrier not in there) if vm.promise else ()


def swap(vm: Vm, promise: Promise, typed: Sequence[str], types: Sequence[VgpuType] = ()) -> Swap:
    """Return which vGPUs stay, go and come when a VM is to have these profiles. `types`: those of its GPUs."""
    waiting = list(promise.vgpus)
    stay: list[PromisedVgpu] = []
    come: list[str] = []
    for text in typed:
        match = next((v for v in waiting if v.profile == meant_profile(vm, text, types)), None)
        if match is None:
            come.append(text)
        else:
            waiting.remove(match)
            stay.append(match)
    return Swap(tuple(stay), tuple(waiting), tuple(come))


def without(snapshot: Snapshot, go: Sequence[PromisedVgpu]) -> Snapshot:
    """Return the snapshot as it would be without these vGPUs of a stopped VM.

    What a driver would offer then is its secret; where the numbers allow it, one more is tried, and the driver's
    refusal takes everything back. The functions themselves count as taken: nothing is made where something goes.
    """
    carriers = {v.carrier for v in go}
    left = tuple(v for v in snapshot.vgpus if v.carrier not in carriers)
    gpus = tuple(_roomier(snapshot, g) if any(v.gpu == g.address for v in go) else g for g in snapshot.gpus)
    return replace(snapshot, vgpus=left, gpus=gpus)


def _roomier(snapshot: Snapshot, gpu: Gpu) -> Gpu:
    absent = sum(not v.present for v in snapshot.taken_on(gpu.address))
    more = 1 + absent if gpu.backend is Backend.MDEV_PF else 1
    functions = tuple(
        replace(f, available={t.type_id: max((f.available or {}).get(t.type_id, 0), more) for t in gpu.types})
        for f in gpu.functions
    )
    return replace(gpu, functions=functions)
