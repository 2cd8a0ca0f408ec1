# SPDX-License-Identifier: Apache-2.0
"""The vGPUs that a host.yaml keeps and that are missing: where each can be made, or why it cannot be."""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.capacity.mixed_size import cheapest
from vgpuctl.capacity.room import room
from vgpuctl.errors import HostCannot, InUse, NoCapacity, VgpuctlError
from vgpuctl.model.gpu import MDEV, Backend, Gpu, Owner, Vgpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Step
from vgpuctl.model.vm import NamedVgpu, Promise, PromisedVgpu, Vm
from vgpuctl.plan.choose import as_taken
from vgpuctl.plan.devices import check_devices, device_steps
from vgpuctl.plan.vgpus import holder_of, promised, refuse_promised
from vgpuctl.value import Value, replace


class Kept(Value):
    """One entry that has no device yet: who has it as claims want it, and the steps that make it, or why not.

    `later`: its GPU is set up first, and only then it is known what fits there. `there`: its mdev was made by somebody
    else and is as the entry says, so it is taken over as it is.
    """

    entry: NamedVgpu
    vm: Vm
    promise: Promise
    steps: tuple[Step, ...] = ()
    later: bool = False
    there: bool = False
    refusal: VgpuctlError | None = None

    @property
    def line(self) -> str:
        """What is done, for people."""
        what = f"vGPU {self.entry.name} ({self.entry.profile} on GPU {self.entry.gpu})"
        return f"take over the mdev {self.entry.carrier} as {what}" if self.there else f"make {what}"


def keep(snapshot: Snapshot, entries: Sequence[NamedVgpu], later: frozenset[str]) -> tuple[Kept, ...]:
    """Return each entry with its steps, as if those before it were there already; a refusal stops no other.

    `snapshot` has the types of their GPUs. `later`: the GPUs of which it is not known yet what fits.
    """
    names = frozenset(e.name for e in entries)
    owners = frozenset(holder_of(snapshot.machine_id, e.name, promised(e))[0].uuid for e in entries)
    absent = [v for v in snapshot.vgpus if not v.present and (v.name in names or v.vm_uuid in owners)]
    seen = replace(snapshot, vgpus=tuple(v for v in snapshot.vgpus if v not in absent))
    found: list[Kept] = []
    for entry in entries:
        one = _kept(seen, entry, later)
        found.append(one)
        if one.refusal is None and not one.there:
            taken = as_taken(one.promise.vgpus[0], one.vm.name, one.vm.uuid)
            others = tuple(v for v in seen.vgpus if v.carrier != entry.carrier)
            seen = replace(seen, vgpus=(*others, replace(taken, vm=None, name=entry.name)))
    return tuple(found)


def _kept(snapshot: Snapshot, entry: NamedVgpu, later: frozenset[str]) -> Kept:
    vm, promise = holder_of(snapshot.machine_id, entry.name, promised(entry))
    one = Kept(entry, vm, promise)
    try:
        device = next((v for v in snapshot.vgpus if v.carrier == entry.carrier), None)
        if device is not None:
            _refuse_taken(entry, device, vm.uuid)
        refuse_promised(snapshot.vms, entry)
        if entry.gpu in later:
            return replace(one, later=True)
        if device is not None and device.present and device.owner is Owner.FOREIGN:
            vm, promise = holder_of(snapshot.machine_id, entry.name, promised(entry, device))
            return Kept(entry, vm, promise, there=True)
        why = gpu_lacks(snapshot, promised(entry))
        if why is not None:
            raise HostCannot(
                f"vGPU {entry.name}: {why}",
                hint=f"vgpuctl show-gpu {entry.gpu}; gpus: of host.yaml says what it is set up for",
                check="gpu-ready",
                gpu=entry.gpu,
                vgpu=entry.name,
            )
        vm, promise = holder_of(snapshot.machine_id, entry.name, where_made(snapshot, entry))
        _refuse_full(snapshot, entry)
        check_devices(snapshot, promise)
        return Kept(entry, vm, promise, device_steps(snapshot, vm, promise))
    except VgpuctlError as refusal:
        return replace(one, refusal=refusal)


def _refuse_taken(entry: NamedVgpu, device: Vgpu, owner: str) -> None:
    """Refuse a carrier that is somebody else's; a VM that only refers to it is going to be its user.

    An mdev of that very UUID, GPU and profile is the one that is meant: mdevctl, or somebody by hand, made it.
    """
    if device.vm_uuid == owner or device.name == entry.name:
        return
    foreign = device.owner is Owner.FOREIGN
    meant = ":" not in entry.carrier and (device.gpu, device.profile) == (entry.gpu, entry.profile)
    if foreign and (meant or not device.present):
        return
    what = f"{device.profile or 'a type that is not known'} on {device.gpu}"
    raise InUse(
        f"{entry.carrier} of vGPU {entry.name} is taken by {device.holder}: {what}",
        hint=f"give vGPU {entry.name} another carrier; vgpuctl show-gpu {device.gpu}",
        vgpu=entry.name,
        carrier=entry.carrier,
        gpu=device.gpu,
    )


def _refuse_full(snapshot: Snapshot, entry: NamedVgpu) -> None:
    """Refuse an entry for which there is no room beside what is there and what is promised, as for a new vGPU.

    One that host.yaml keeps already is before what waits to be made again.
    """
    gpu = snapshot.gpu(entry.gpu)
    known = next((t for t in gpu.types if t.profile == entry.profile), None) if gpu is not None else None
    if gpu is None or known is None:
        return
    old = any(n == entry for n in snapshot.named)
    others = [v for v in snapshot.taken_on(entry.gpu) if v.carrier != entry.carrier and not (old and v.awaited)]
    space = room(gpu, others, known)
    if not space.some:
        raise NoCapacity(
            f"no room for vGPU {entry.name} ({entry.profile}) on {entry.gpu}: {'; '.join(space.reasons)}",
            hint=f"vgpuctl explain {entry.profile}",
            gpu=entry.gpu,
            vgpu=entry.name,
        )


def where_made(snapshot: Snapshot, entry: NamedVgpu) -> PromisedVgpu:
    """Return an entry as it can be made now: with its size and placement, and an mdev on a VF that is free.

    Raises:
        NoCapacity: no VF has room for it.
    """
    wanted = promised(entry)
    gpu = snapshot.gpu(wanted.gpu)
    known = next((t for t in gpu.types if t.profile == wanted.profile), None) if gpu is not None else None
    if gpu is None or known is None:
        return wanted
    wanted = replace(wanted, framebuffer_mib=known.framebuffer_mib)
    others = tuple(v for v in snapshot.taken_on(gpu.address) if v.carrier != wanted.carrier)
    if not any(v.carrier == wanted.carrier and v.present for v in snapshot.vgpus):
        wanted = replace(wanted, placement_id=cheapest(gpu, others, known))
    if gpu.backend is not Backend.MDEV_VF:
        return wanted
    there = [f.address for f in gpu.functions if any(m.uuid == wanted.carrier for m in f.mdevs)]
    space = room(gpu, others, known)
    functions = there or space.functions
    if not functions:
        raise NoCapacity(
            f"no room for {wanted.profile} on {gpu.address}: {'; '.join(space.reasons)}",
            hint=f"vgpuctl explain {wanted.profile}",
            gpu=gpu.address,
        )
    return replace(wanted, backend=Backend.MDEV_VF, function=functions[0])


def gpu_lacks(snapshot: Snapshot, vgpu: PromisedVgpu) -> str | None:
    """Say what the GPU of a vGPU still lacks, or None when the vGPU can be made, or refused, now."""
    gpu = snapshot.gpu(vgpu.gpu)
    if gpu is None:
        return f"the GPU {vgpu.gpu} is not there"
    wanted = MDEV if vgpu.backend in MDEV else (vgpu.backend,)
    if gpu.backend not in wanted:
        vfs = f", {gpu.vfs_enabled} of {gpu.vfs_total} VFs" if gpu.vfs_total else ""
        return f"the GPU {gpu.address} offers no vGPUs yet (driver {gpu.driver or 'none'}{vfs})"
    if gpu.backend is vgpu.backend and vgpu.function != gpu.address:
        why = _function_lacks(gpu, vgpu.function)
        if why is not None:
            return why
    if not gpu.types and not any(v.present for v in snapshot.taken_on(gpu.address)):
        return f"the driver of {gpu.address} lists no vGPU types"
    return None


def _function_lacks(gpu: Gpu, address: str) -> str | None:
    function = gpu.function_at(address)
    if function is None:
        return f"the VF {address} is not there"
    return f"{address}: {function.problem}" if function.problem is not None else None
