# SPDX-License-Identifier: Apache-2.0
"""How many more vGPUs of a type fit on a GPU, where the next ones would go, and what stands in the way.

One function decides and explains. Sources: NVIDIA's open kernel modules (kernel_vgpu_mgr.c: same size on a GPU,
maximum per GPU, one vGPU on a VF, 32 time-sliced vGPUs per GPU) and the kernel's mdev core for other makers. What a GPU
takes that is divided otherwise is said in `gpu_instances` (MIG) and `mixed_size`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from vgpuctl.capacity import gpu_instances, mixed_size
from vgpuctl.capacity.left import MAX_TIME_SLICED, Left, who
from vgpuctl.model.gpu import NVIDIA, Backend, Function, Gpu, Owner, Vgpu, VgpuType
from vgpuctl.model.sizes import mib_text
from vgpuctl.value import Value, replace

_UNKNOWN = "how many fit is not known: NVML does not answer"


class Room(Value):
    """`free`: how many more fit now, None when that is not known (at least one may be tried).

    `at_least`: then how many fit for sure, None when that is not known either. `functions`: where the next ones would
    go, in order; a PF is named once however many it takes, and on a mixed-size GPU every function that is free.
    `reasons`: what stands in the way, in words; empty when nothing does.
    """

    free: int | None
    functions: tuple[str, ...]
    reasons: tuple[str, ...] = ()
    at_least: int | None = None

    @property
    def sure(self) -> int | None:
        """How many more fit for sure; None when no number is known."""
        return self.at_least if self.free is None else self.free

    @property
    def some(self) -> bool:
        """Whether one more can be tried."""
        return bool(self.functions) and self.free != 0


def room(gpu: Gpu, taken: Sequence[Vgpu], wanted: VgpuType) -> Room:
    """Return the room for one type on one GPU, given every carrier taken on it (made, promised or claimed)."""
    whole = [v for v in taken if v.carrier == gpu.address and v.backend is Backend.PASSTHROUGH]
    if whole:
        return Room(0, (), (_given_away(whole),))
    if gpu.backend is Backend.MDEV_PF:
        return _on_pf(gpu, taken, wanted)
    if gpu.backend in (Backend.MDEV_VF, Backend.VENDOR_VF):
        return _on_vfs(gpu, taken, wanted, free_functions(gpu, taken))
    return Room(0, (), (_no_vgpus(gpu),))


def free_of_each(gpu: Gpu, taken: Sequence[Vgpu], types: Sequence[VgpuType]) -> dict[str, int | None]:
    """Return `Room.free` of types of a GPU by their profiles, as `room` says it, with one look at the functions."""
    if gpu.backend not in (Backend.MDEV_VF, Backend.VENDOR_VF):
        return {t.profile: room(gpu, taken, t).free for t in types}
    if any(v.carrier == gpu.address and v.backend is Backend.PASSTHROUGH for v in taken):
        return {t.profile: 0 for t in types}
    free = free_functions(gpu, taken)
    return {t.profile: _on_vfs(gpu, taken, t, free).free for t in types}


def most_on(gpu: Gpu, wanted: VgpuType) -> int | None:
    """Return how many of a type the GPU takes when nothing else is on it, in its mode; None when that is not known."""
    mixed = gpu.mixed_size and wanted.gi_profile_id is None
    return mixed_size.most_when_empty(wanted) if mixed else wanted.max_per_gpu


def _given_away(whole: Sequence[Vgpu]) -> str:
    setting_up = next((v for v in whole if v.command is not None), None)
    if setting_up is None:
        return f"all of the GPU is given to {who(whole)}"
    left = setting_up.owner is Owner.LEAKED
    return f"it is {setting_up.reason}; vgpuctl reconcile" if left else f"{setting_up.holder} sets it up"


def _no_vgpus(gpu: Gpu) -> str:
    if gpu.backend is None:
        return f"its VFs are off (0 of {gpu.vfs_total} enabled)"
    return f"it offers no vGPUs: its backend is {gpu.backend}"


def why_unknown(gpu: Gpu) -> str:
    """Say why a GPU does not list a type: it offers none, they cannot be read, or it has others."""
    if gpu.backend not in (Backend.MDEV_PF, Backend.MDEV_VF, Backend.VENDOR_VF):
        return _no_vgpus(gpu)
    broken = [f"{f.address}: {f.problem}" for f in gpu.functions if f.problem]
    return "; ".join(broken) if broken and not gpu.types else "its driver does not know this profile"


def _locked(gpu: Gpu, taken: Sequence[Vgpu], wanted: VgpuType) -> str | None:
    """Say which vGPUs lock the GPU for others: all on it have the same framebuffer, with an old driver the same type.

    Only NVIDIA's driver has this rule; others let their pool be divided as it comes.
    """
    if gpu.vendor_id != NVIDIA:
        return None
    others = [v for v in taken if v.profile not in (None, wanted.profile)] if gpu.one_type else []
    if others:
        kinds = ", ".join(sorted({str(v.profile) for v in others}))
        return (
            f"it runs {len(others)} of another type: {kinds}, held by {who(others)}; its driver, older than 550, "
            "takes one type at a time"
        )
    return _other_size(taken, wanted)


def _other_size(taken: Sequence[Vgpu], wanted: VgpuType) -> str | None:
    if wanted.framebuffer_mib is None:
        return None
    others = [v for v in taken if v.framebuffer_mib is not None and v.framebuffer_mib != wanted.framebuffer_mib]
    if not others:
        return None
    named = {f"{v.profile or v.type_id} ({mib_text(v.framebuffer_mib)})" for v in others if v.framebuffer_mib}
    sizes = ", ".join(sorted(named))
    return f"it runs {len(others)} of another size: {sizes}, held by {who(others)}"


def _limit(gpu: Gpu, wanted: VgpuType) -> int | None:
    if gpu.vendor_id != NVIDIA:
        return wanted.max_per_gpu
    return None if wanted.max_per_gpu is None else min(wanted.max_per_gpu, MAX_TIME_SLICED)


def _on_pf(gpu: Gpu, taken: Sequence[Vgpu], wanted: VgpuType) -> Room:
    function = gpu.functions[0]
    if function.problem:
        return Room(0, (), (f"{function.address}: {function.problem}",))
    locked = _locked(gpu, taken, wanted)
    if locked:
        return Room(0, (), (locked,))
    offered = (function.available or {}).get(wanted.type_id)
    if offered is None:
        return Room(0, (), (f"its driver does not offer {wanted.profile}",))
    absent = [v for v in taken if not v.present]
    free = offered if not absent else _divided(gpu, function, wanted, absent)
    limit = _limit(gpu, wanted)
    if limit is not None and gpu.vendor_id == NVIDIA:
        free = min(free, max(0, limit - len(taken)))
    if free == 0:
        return Room(0, (), (_full(taken, limit, f"the driver says {offered} available"),))
    return Room(free, (function.address,))


def _divided(gpu: Gpu, function: Function, wanted: VgpuType, absent: Sequence[Vgpu]) -> int:
    """Return how many of a type are left once the devices that are promised and not made yet are there.

    Types of one parent draw from one pool. Where the driver tells what each takes of it, that is counted; otherwise
    each is taken to need the largest part of the pool that its own number allows, and one of the same type just one.
    """
    available = function.available or {}
    offered = available[wanted.type_id]
    kinds = {t.profile: t for t in gpu.types}
    needs = [kinds.get(v.profile or "") for v in absent]
    units = [t.units if t is not None else None for t in needs]
    if wanted.units is not None and None not in units:
        pool = max(available.get(t.type_id, 0) * (t.units or 0) for t in gpu.types)
        return max(0, pool - sum(u or 0 for u in units)) // wanted.units
    if gpu.vendor_id == NVIDIA or all(t is not None and t.type_id == wanted.type_id for t in needs):
        return max(0, offered - len(absent))
    parts = [available.get(t.type_id, 0) if t is not None else 0 for t in needs]
    if 0 in parts:
        return 0
    whole = math.lcm(*parts)
    return max(0, offered * (whole - sum(whole // part for part in parts)) // whole)


def free_functions(gpu: Gpu, taken: Sequence[Vgpu]) -> list[Function]:
    """Return the VFs that are free and in order."""
    busy = {v.function for v in taken}
    return [f for f in gpu.functions if f.address not in busy and not f.problem and not _occupied(f)]


def _on_vfs(gpu: Gpu, taken: Sequence[Vgpu], wanted: VgpuType, usable: Sequence[Function]) -> Room:
    offering = [f for f in usable if (f.available or {}).get(wanted.type_id, 0) > 0]
    left = _left(gpu, taken, wanted, offered=bool(offering))
    broken = tuple(f"{f.address}: {f.problem}" for f in gpu.functions if f.problem)
    if left.free == 0:
        return Room(0, (), (left.why, *broken))
    if not offering:
        return Room(0, (), (_why_none(gpu, usable, taken, wanted), *broken))
    addresses = tuple(f.address for f in offering)
    awaited = [v for v in taken if v.awaited]
    if left.free is None and awaited:
        return Room(0, (), (_unknown_with_promises(awaited), *broken))
    if left.free is None:
        return Room(None, addresses, tuple(filter(None, (left.why, *broken))))
    free = min(left.free, len(offering))
    functions = addresses if gpu.mixed_size else addresses[:free]
    if left.least and left.free < len(offering):
        return Room(None, functions, (*_at_unknown_places(free, taken), *broken), at_least=free)
    return Room(free, functions, broken)


def _left(gpu: Gpu, taken: Sequence[Vgpu], wanted: VgpuType, *, offered: bool) -> Left:
    """Return what the GPU's way of dividing itself leaves. `offered`: the driver lists the type on a free VF now.

    The driver's word says that one fits beside what is made, wherever that is; it knows nothing of what is promised.
    """
    told = offered and all(v.present and v.due_placement_id is None for v in taken)
    wrong = gpu_instances.why_wrong_mode(gpu, wanted)
    if wrong is not None:
        return Left(0, wrong)
    if gpu.mig is not None and gpu.mig.enabled:
        found = gpu_instances.left(gpu, gpu.mig, taken, wanted)
    elif gpu.mig is None and wanted.gi_profile_id is not None:
        return Left(None, "how many fit is not known: NVML does not tell its GPU instances; asked by root it does")
    elif gpu.mixed_size:
        found = _within(MAX_TIME_SLICED, mixed_size.left(gpu, taken, wanted), taken)
    else:
        return _same_size(gpu, taken, wanted, offered=told)
    return Left(1, least=True) if found.free == 0 and found.least and told else found


def _within(limit: int, found: Left, taken: Sequence[Vgpu]) -> Left:
    """Return what is left when a GPU takes no more than so many vGPUs of any size."""
    if len(taken) >= limit:
        return Left(0, _full(taken, limit, "the most that a GPU takes"))
    return found if found.free is None else replace(found, free=min(found.free, limit - len(taken)))


def _same_size(gpu: Gpu, taken: Sequence[Vgpu], wanted: VgpuType, *, offered: bool) -> Left:
    locked = _locked(gpu, taken, wanted)
    if locked and offered and gpu.mixed_size is None and gpu.backend is Backend.MDEV_VF:  # sizes without NVML
        return Left(None, f"{_UNKNOWN}, and its driver offers it beside other sizes")
    if locked:
        return Left(0, locked)
    limit = _limit(gpu, wanted)
    if limit is None:
        return Left(None, _UNKNOWN if gpu.backend is Backend.VENDOR_VF else "")
    return Left(max(0, limit - len(taken)), _full(taken, limit, "the maximum for this type"))


def _unknown_with_promises(awaited: Sequence[Vgpu]) -> str:
    """Say why nothing is added: the room left may belong to vGPUs that are promised and not made yet."""
    return (
        f"how many fit is not known without NVML, and {len(awaited)} promised vGPUs are not made again yet: "
        f"start {who(awaited)} first, or vgpuctl restore-host"
    )


def _at_unknown_places(free: int, taken: Sequence[Vgpu]) -> tuple[str, ...]:
    return (f"at least {free}: where on the GPU each vGPU of {who(taken)} is, is not known",)


def _occupied(function: Function) -> bool:
    return bool(function.mdevs) or function.current_type is not None


def _why_none(gpu: Gpu, usable: Sequence[Function], taken: Sequence[Vgpu], wanted: VgpuType) -> str:
    if not usable:
        return f"no VF is free: {len(gpu.functions)} enabled, {len(taken)} in use by {who(taken)}"
    detail = f"; in use by {who(taken)}" if taken else ""
    return f"none of its {len(usable)} free VFs offers {wanted.profile} now{detail}"


def _full(taken: Sequence[Vgpu], limit: int | None, detail: str) -> str:
    total = f" of {limit}" if limit is not None else ""
    return f"{len(taken)}{total} in use ({detail}): {who(taken)}"
