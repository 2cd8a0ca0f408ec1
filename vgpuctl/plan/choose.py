# SPDX-License-Identifier: Apache-2.0
"""Choose the carriers of a VM's vGPUs from a snapshot, for each mode, and check what they need."""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.backends import of
from vgpuctl.backends.whole import HARMLESS_DRIVERS
from vgpuctl.capacity.closed import why_closed
from vgpuctl.capacity.gpu_instances import choice
from vgpuctl.capacity.left import who
from vgpuctl.capacity.mixed_size import cheapest, is_free
from vgpuctl.capacity.ownership import carrier_uuid
from vgpuctl.capacity.place import place, stuck_error
from vgpuctl.capacity.profiles import vfs_are_off
from vgpuctl.capacity.room import room
from vgpuctl.capacity.where import bound, selected, why_barred
from vgpuctl.errors import HostCannot, InUse, InvalidInput, NoCapacity
from vgpuctl.model.gpu import MDEV, NVIDIA, Backend, Function, Gpu, Mode, Owner, Vgpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Step
from vgpuctl.model.vm import PromisedVgpu
from vgpuctl.model.wish import VmWish
from vgpuctl.value import replace


def vm_name(wish: VmWish, uuid: str) -> str:
    """Return the VM's name: as typed, or vgpu-<8 of uuid>."""
    return wish.name or f"vgpu-{uuid[:8]}"


def disk_stem(name: str, uuid: str) -> str:
    """Return how the names of a VM's volumes begin: NAME-<8 of uuid>, which is the name of a VM without one already."""
    return name if name.endswith(f"-{uuid[:8]}") else f"{name}-{uuid[:8]}"


def choose(
    snapshot: Snapshot,
    wish: VmWish,
    uuid: str,
    exclude: frozenset[str] = frozenset(),
    beside: Sequence[str] = (),
) -> tuple[PromisedVgpu, ...]:
    """Return the vGPUs a new VM would get, checked against what the host must have.

    `beside`: the profiles of the vGPUs that a VM has and keeps.

    Raises:
        NoCapacity, NotFound, InvalidInput, Refused, InUse, HostCannot, Stuck: as the message says.
    """
    refuse_unknown_host_file(snapshot)
    if wish.mode == "vgpu":
        return _vgpus(snapshot, wish, uuid, exclude, beside)
    gpu = _one_gpu(snapshot, wish, vm_name(wish, uuid), uuid)
    if wish.mode == "sriov":
        return _plain_vf(snapshot, gpu)
    return _whole(snapshot, wish, gpu)


def refuse_unknown_host_file(snapshot: Snapshot) -> None:
    """Refuse to place anything while host.yaml, which may forbid it, cannot be understood.

    Raises:
        InvalidInput: with what is wrong in it.
    """
    if snapshot.host_file_problem is not None:
        raise InvalidInput(
            snapshot.host_file_problem,
            hint=f"it may close a GPU: {snapshot.host_file_hint}",
        )


def as_taken(vgpu: PromisedVgpu, name: str, uuid: str, spread_group: str | None = None) -> Vgpu:
    """Return a vGPU that was just chosen for a VM as those after it see it."""
    return Vgpu(
        carrier=vgpu.carrier,
        gpu=vgpu.gpu,
        function=vgpu.function,
        owner=Owner.OURS,
        present=False,
        backend=vgpu.backend,
        profile=vgpu.profile,
        framebuffer_mib=vgpu.framebuffer_mib,
        vm=name,
        vm_uuid=uuid,
        placement_id=vgpu.placement_id,
        spread_group=spread_group,
    )


def params_text(wish: VmWish) -> str:
    """Return the plugin parameters as the driver takes them, and as host.yaml keeps them."""
    return ",".join(f"{k}={v}" for k, v in wish.vgpu_params)


def _vgpus(
    snapshot: Snapshot, wish: VmWish, uuid: str, exclude: frozenset[str], beside: Sequence[str]
) -> tuple[PromisedVgpu, ...]:
    if not any(g.types for g in selected(snapshot, wish.where)):
        _explain_no_types(snapshot, wish)
    slots = place(snapshot, wish.profiles, wish.where, exclude, vm_name(wish, uuid), uuid, beside)
    vgpus = []
    for index, slot in enumerate(slots):
        backend = slot.gpu.backend or Backend.PASSTHROUGH
        function = slot.gpu.function_at(slot.function) or Function(slot.function, "")
        if wish.vgpu_params and slot.gpu.vendor_id != NVIDIA:
            raise InvalidInput(
                f"--vgpu-param is for NVIDIA's vGPU plugin; {slot.gpu.address} ({slot.gpu.model}) has none",
                gpu=slot.gpu.address,
            )
        of(backend).check(snapshot, slot.gpu, function, force_console=False)
        vgpus.append(
            PromisedVgpu(
                index=index,
                backend=backend,
                gpu=slot.gpu.address,
                function=slot.function,
                carrier=carrier_uuid(uuid, index) if backend in MDEV else slot.function,
                profile=slot.type.profile,
                framebuffer_mib=slot.type.framebuffer_mib,
                params=params_text(wish),
                placement_id=slot.placement_id,
            )
        )
    return tuple(vgpus)


def _explain_no_types(snapshot: Snapshot, wish: VmWish) -> None:
    """Say why no GPU offers any type, when the reason is that VFs are off or a mode is wrong."""
    gpus = selected(snapshot, wish.where)
    if any(snapshot.taken_on(g.address) for g in gpus):
        return
    off = [g for g in gpus if g.backend is None]
    if off:
        raise vfs_are_off(off[0])
    other = [g for g in gpus if g.backend in (Backend.SRIOV_VF, Backend.PASSTHROUGH)]
    if other:
        gpu = other[0]
        way = "sriov" if gpu.backend is Backend.SRIOV_VF else "passthrough"
        raise HostCannot(
            f"no GPU offers vGPUs: {gpu.address} ({gpu.model}) is in mode {gpu.mode}, driver {gpu.driver or 'none'}",
            hint=f"install the vGPU host driver, or: vgpuctl create-vm --mode {way} --gpu {gpu.address}",
            check="mode",
            gpu=gpu.address,
        )


def _one_gpu(snapshot: Snapshot, wish: VmWish, vm: str, uuid: str) -> Gpu:
    gpus = _left_in(snapshot, wish, uuid)
    stuck = {s.gpu: s for s in snapshot.stuck}
    if len(gpus) == 1 and gpus[0].address in stuck:
        raise stuck_error(stuck[gpus[0].address])
    closed = {g.address: why for g in gpus if (why := why_closed(g, wish.mode, vm)) is not None}
    if len(closed) == len(gpus):
        raise NoCapacity(
            f"no GPU is open to something new: {'; '.join(f'{a}: {why}' for a, why in closed.items())}",
            hint=f"vgpuctl uncordon {gpus[0].address}" if gpus[0].cordoned else "vgpuctl list-gpus --all",
            gpus=sorted(closed),
        )
    gpus = tuple(g for g in gpus if g.address not in closed)
    usable = [g for g in gpus if g.address not in stuck]
    if wish.mode == "sriov":
        with_vfs = [g for g in usable if g.backend is Backend.SRIOV_VF]
        from vgpuctl.capacity.by_policy import gpu_for_plain_vf

        chosen = gpu_for_plain_vf(snapshot, with_vfs, wish.where.policy, vm)
        return chosen or (with_vfs or usable or list(gpus))[0]
    free = [g for g in usable if not snapshot.taken_on(g.address)]
    return (free or usable or list(gpus))[0]


def _left_in(snapshot: Snapshot, wish: VmWish, uuid: str) -> tuple[Gpu, ...]:
    """Return the GPUs that a wish for a whole GPU or a plain VF leaves to choose from.

    Raises:
        NoCapacity: it leaves none; naming for each the word that leaves it out.
    """
    where = bound(snapshot, wish.where, uuid)
    gpus = selected(snapshot, where)
    barred = {g.address: why for g in gpus if (why := why_barred(snapshot, g, where, uuid)) is not None}
    if gpus and len(barred) == len(gpus):
        said = "; ".join(f"{bar.word} leaves out {address}: {bar.why}" for address, bar in barred.items())
        raise NoCapacity(
            f"no GPU is left to choose from: {said}",
            hint="vgpuctl list-gpus --all",
            gpus=sorted(barred),
        )
    return tuple(g for g in gpus if g.address not in barred)


def _plain_vf(snapshot: Snapshot, gpu: Gpu) -> tuple[PromisedVgpu, ...]:
    if gpu.backend is None or (gpu.vfs_total and not gpu.vfs_enabled):
        raise vfs_are_off(gpu)
    if gpu.backend is not Backend.SRIOV_VF:
        raise HostCannot(
            f"{gpu.address} has no plain VFs: its backend is {gpu.backend}",
            hint="use --profile with its vGPU profiles" if gpu.types else "vgpuctl list-gpus --all",
            check="mode",
            gpu=gpu.address,
            backend=gpu.backend,
        )
    _refuse_taken(snapshot, gpu, (gpu.address,))
    taken = {v.function for v in snapshot.taken_on(gpu.address)}
    free = [f for f in gpu.functions if f.address not in taken and _spare(gpu, f)]
    if not free:
        names = ", ".join(sorted(v.vm or v.carrier for v in snapshot.taken_on(gpu.address)))
        host = sorted(f.address for f in gpu.functions if f.address not in taken and not _spare(gpu, f))
        kept = f"; the host's own drivers have {', '.join(host)}" if host else ""
        raise NoCapacity(
            f"no VF of {gpu.address} is free: {len(taken)} of {len(gpu.functions)} in use by {names or 'nobody'}{kept}",
            hint=f"vgpuctl show-gpu {gpu.address}",
            gpu=gpu.address,
        )
    free.sort(key=lambda f: f.driver not in HARMLESS_DRIVERS)
    of(Backend.SRIOV_VF).check(snapshot, gpu, free[0], force_console=False)
    return (_carrier(0, Backend.SRIOV_VF, gpu, free[0].address),)


def _spare(gpu: Gpu, function: Function) -> bool:
    """Say whether the host can do without a VF: a GPU's always, another device's when no host driver has it."""
    return gpu.display_class or function.driver in HARMLESS_DRIVERS


def _refuse_taken(snapshot: Snapshot, gpu: Gpu, functions: tuple[str, ...]) -> None:
    """Refuse functions that any VM has, under whichever GPU they were given away."""
    for vgpu in snapshot.vgpus:
        if vgpu.carrier in functions or vgpu.function in functions:
            who = vgpu.holder
            raise InUse(
                f"{vgpu.function} is in use by {who}",
                hint=f"vgpuctl show-gpu {gpu.address}",
                gpu=gpu.address,
                function=vgpu.function,
                vm=vgpu.vm,
            )


def _whole(snapshot: Snapshot, wish: VmWish, gpu: Gpu) -> tuple[PromisedVgpu, ...]:
    taken = snapshot.taken_on(gpu.address)
    if taken:
        names = ", ".join(sorted({v.holder for v in taken}))
        raise InUse(
            f"{gpu.address} is in use by {names}; all of it can be given away only when nothing is on it",
            hint=f"vgpuctl show-gpu {gpu.address}",
            gpu=gpu.address,
            vgpus=[v.carrier for v in taken],
        )
    if not gpu.vendor_id:
        raise InvalidInput(f"{gpu.address} is no PCI device, it cannot be passed through", gpu=gpu.address)
    own = gpu.function_at(gpu.address) or Function(gpu.address, gpu.path, iommu_group=gpu.iommu_group)
    of(Backend.PASSTHROUGH).check(snapshot, gpu, own, force_console=wish.force_console)
    others = [m.address for m in gpu.group_members if m.same_slot]
    _refuse_taken(snapshot, gpu, (gpu.address, *others))
    return tuple(
        _carrier(index, Backend.PASSTHROUGH, gpu, address) for index, address in enumerate([gpu.address, *others])
    )


def _carrier(index: int, backend: Backend, gpu: Gpu, address: str) -> PromisedVgpu:
    return PromisedVgpu(index=index, backend=backend, gpu=gpu.address, function=address, carrier=address, profile=None)


def make_steps(snapshot: Snapshot, vgpu: PromisedVgpu) -> tuple[Step, ...]:
    """Return the steps that make a promised vGPU, where it was promised on a mixed-size GPU.

    Raises:
        InUse: another vGPU is where it was promised to be.
        NoCapacity: the driver does not offer the profile there now.
        HostCannot: the GPU is gone, or its VFs are off.
    """
    type_id = type_id_now(snapshot, vgpu)
    gpu = snapshot.gpu(vgpu.gpu)
    if gpu is not None and gpu.mixed_size is not None:
        vgpu = replace(vgpu, placement_id=_placement_now(snapshot, gpu, vgpu))
    return of(vgpu.backend).make(vgpu, type_id, _instances(snapshot, gpu, vgpu))


def _instances(snapshot: Snapshot, gpu: Gpu | None, vgpu: PromisedVgpu) -> tuple[int, ...]:
    """Return the GPU instances that a vGPU is to be made in, the best first; none where the driver chooses."""
    known = next((t for t in gpu.types if t.profile == vgpu.profile), None) if gpu is not None else None
    if gpu is None or gpu.mig is None or known is None:
        return ()
    return choice(gpu, gpu.mig, [v for v in snapshot.taken_on(gpu.address) if v.carrier != vgpu.carrier], known)


def _placement_now(snapshot: Snapshot, gpu: Gpu, vgpu: PromisedVgpu) -> int | None:
    """Return where a vGPU is made; None, the driver's choice, in another mode.

    One whose record has no place that the driver knows, as of a time without mixed sizes, goes beside what others are
    promised: where the driver puts it, theirs may be.
    """
    known = next((t for t in gpu.types if t.profile == vgpu.profile), None)
    if not gpu.mixed_size or known is None:
        return None
    ids = known.placement_ids
    if vgpu.placement_id is None or (ids is not None and vgpu.placement_id not in ids):
        return cheapest(gpu, [v for v in snapshot.taken_on(gpu.address) if v.carrier != vgpu.carrier], known)
    others = [v for v in snapshot.taken_on(gpu.address) if v.carrier != vgpu.carrier and v.present]
    there = [v for v in others if not is_free(gpu, (v,), known, vgpu.placement_id)]
    if there and known.placement_ids is not None:
        raise InUse(
            f"placement {vgpu.placement_id} of {gpu.address}, where {vgpu.profile} on {vgpu.carrier} was to be, is"
            f" taken by {who(there)}",
            hint=f"vgpuctl show-gpu {gpu.address}; vgpuctl detach and attach give a VM another place",
            gpu=gpu.address,
            placement_id=vgpu.placement_id,
            carriers=[v.carrier for v in there],
        )
    return vgpu.placement_id


def type_id_now(snapshot: Snapshot, vgpu: PromisedVgpu) -> str | None:
    """Return the id of a promised vGPU's type as the driver numbers it now; the profile is the record.

    Raises:
        NoCapacity: the driver does not offer the profile there now.
        HostCannot: the GPU is gone, or its VFs are off.
    """
    if vgpu.profile is None:
        return None
    gpu = snapshot.gpu(vgpu.gpu)
    if gpu is None:
        raise HostCannot(
            f"the GPU {vgpu.gpu} is not on this host any more",
            hint="vgpuctl list-gpus --all; lspci -Dnn",
            check="gpu-missing",
            gpu=vgpu.gpu,
        )
    if gpu.backend is None:
        raise vfs_are_off(gpu)
    known = next((t for t in gpu.types if t.profile == vgpu.profile), None)
    if known is None:
        raise NoCapacity(
            f"{vgpu.gpu} does not offer {vgpu.profile} now", hint=f"vgpuctl explain {vgpu.profile}", gpu=vgpu.gpu
        )
    others = tuple(v for v in snapshot.taken_on(vgpu.gpu) if v.carrier != vgpu.carrier and not v.awaited)
    unknown = gpu.mixed_size is None and gpu.backend is Backend.MDEV_VF  # as for libvirt's hook: sizes may differ
    if gpu.mixed_size or gpu.mode is Mode.MIG_VGPU or unknown:
        others = tuple(v for v in others if v.present)  # each has a place of its own, wherever the driver puts it
    space = room(gpu, others, known)
    if vgpu.function not in space.functions and not space.some:
        raise NoCapacity(
            f"no room for {vgpu.profile} on {vgpu.gpu}: {'; '.join(space.reasons)}",
            hint=f"vgpuctl explain {vgpu.profile}",
            gpu=vgpu.gpu,
        )
    return known.type_id
