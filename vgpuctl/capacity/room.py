# SPDX-License-Identifier: Apache-2.0
"""How many more vGPUs of a type fit on a GPU, where the next ones would go, and what stands in the way.

One function decides and explains. Sources: NVIDIA's open kernel modules (kernel_vgpu_mgr.c: same size on a GPU,
maximum per GPU, one vGPU on a VF, 32 time-sliced vGPUs per GPU) and the kernel's mdev core for other makers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from vgpuctl.model.gpu import NVIDIA, Backend, Function, Gpu, Vgpu, VgpuType
from vgpuctl.value import Value

MAX_TIME_SLICED = 32


class Room(Value):
    """`free`: how many more fit now, None when the driver keeps that to itself (at least one may be tried).

    `functions`: where the next ones would go, in order; a PF is named once however many it takes. `reasons`: what
    stands in the way, in words; empty when nothing does.
    """

    free: int | None
    functions: tuple[str, ...]
    reasons: tuple[str, ...] = ()

    @property
    def some(self) -> bool:
        """Whether one more can be tried."""
        return bool(self.functions) and self.free != 0


def room(gpu: Gpu, taken: Sequence[Vgpu], wanted: VgpuType) -> Room:
    """Return the room for one type on one GPU, given every carrier taken on it (made, promised or claimed)."""
    whole = [v for v in taken if v.carrier == gpu.address and v.backend is Backend.PASSTHROUGH]
    if whole:
        return Room(0, (), (f"all of the GPU is given to {_who(whole)}",))
    if gpu.backend is Backend.MDEV_PF:
        return _on_pf(gpu, taken, wanted)
    if gpu.backend in (Backend.MDEV_VF, Backend.VENDOR_VF):
        return _on_vfs(gpu, taken, wanted)
    return Room(0, (), (_no_vgpus(gpu),))


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
            f"it runs {len(others)} of another type: {kinds}, held by {_who(others)}; its driver, older than 550, "
            "takes one type at a time"
        )
    return _other_size(taken, wanted)


def _other_size(taken: Sequence[Vgpu], wanted: VgpuType) -> str | None:
    if wanted.framebuffer_mib is None:
        return None
    others = [v for v in taken if v.framebuffer_mib is not None and v.framebuffer_mib != wanted.framebuffer_mib]
    if not others:
        return None
    sizes = ", ".join(sorted({f"{v.profile or v.type_id} ({v.framebuffer_mib} MiB)" for v in others}))
    return f"it runs {len(others)} of another size: {sizes}, held by {_who(others)}"


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


def _on_vfs(gpu: Gpu, taken: Sequence[Vgpu], wanted: VgpuType) -> Room:
    locked = _locked(gpu, taken, wanted)
    if locked:
        return Room(0, (), (locked,))
    busy = {v.function for v in taken}
    usable = [f for f in gpu.functions if f.address not in busy and not f.problem and not _occupied(f)]
    offering = [f for f in usable if (f.available or {}).get(wanted.type_id, 0) > 0]
    limit = _limit(gpu, wanted)
    left = None if limit is None else max(0, limit - len(taken))
    broken = tuple(f"{f.address}: {f.problem}" for f in gpu.functions if f.problem)
    if left == 0:
        return Room(0, (), (_full(taken, limit, "the maximum for this type"), *broken))
    if not offering:
        return Room(0, (), (_why_none(gpu, usable, taken, wanted), *broken))
    addresses = tuple(f.address for f in offering)
    awaited = [v for v in taken if v.awaited]
    if left is None and awaited:
        return Room(0, (), (_unknown_with_promises(awaited), *broken))
    if left is None:
        reason = "how many fit is not known: NVML does not answer" if gpu.backend is Backend.VENDOR_VF else ""
        return Room(None, addresses, tuple(filter(None, (reason, *broken))))
    return Room(min(left, len(offering)), addresses[:left], broken)


def _unknown_with_promises(awaited: Sequence[Vgpu]) -> str:
    """Say why nothing is added: the room left may belong to vGPUs that are promised and not made yet."""
    return (
        f"how many fit is not known without NVML, and {len(awaited)} promised vGPUs are not made again yet: "
        f"start {_who(awaited)} first, or vgpuctl restore-host"
    )


def _occupied(function: Function) -> bool:
    return bool(function.mdevs) or function.current_type is not None


def _why_none(gpu: Gpu, usable: Sequence[Function], taken: Sequence[Vgpu], wanted: VgpuType) -> str:
    if not usable:
        return f"no VF is free: {len(gpu.functions)} enabled, {len(taken)} in use by {_who(taken)}"
    detail = f"; in use by {_who(taken)}" if taken else ""
    return f"none of its {len(usable)} free VFs offers {wanted.profile} now{detail}"


def _full(taken: Sequence[Vgpu], limit: int | None, detail: str) -> str:
    total = f" of {limit}" if limit is not None else ""
    return f"{len(taken)}{total} in use ({detail}): {_who(taken)}"


def _who(taken: Sequence[Vgpu]) -> str:
    """Name the holders, shortened in the middle: vdi-001 … vdi-010."""
    names = sorted({v.holder for v in taken})
    if not names:
        return "nobody"
    return ", ".join(names) if len(names) <= 4 else f"{names[0]}, {names[1]} … {names[-1]} ({len(names)})"
