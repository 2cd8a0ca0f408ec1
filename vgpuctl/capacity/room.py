# SPDX-License-Identifier: Apache-2.0
"""How many more vGPUs of a type fit on a GPU, where the next ones would go, and what prevents more.

`compute_room` decides and explains. Sources: NVIDIA's open kernel modules (kernel_vgpu_mgr.c: same size on a GPU,
maximum per GPU, one vGPU on a VF, 32 time-sliced vGPUs per GPU) and the kernel's mdev core for other vendors. The
rules of other ways to divide a GPU are in `gpu_instances` (MIG) and `mixed_size`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from vgpuctl.capacity import gpu_instances, mixed_size
from vgpuctl.capacity.remaining import MAX_TIME_SLICED, Remaining, name_holders
from vgpuctl.model.gpu import NVIDIA_VENDOR_ID, Backend, Gpu, GpuFunction, Ownership, Vgpu, VgpuType
from vgpuctl.model.sizes import format_mib
from vgpuctl.value import Value, replace

_UNKNOWN = "how many fit is not known: NVML does not answer"


class Room(Value):
    """`free`: how many more fit now; None when that is unknown (at least one may be tried).

    `at_least`: where `free` is None, how many surely fit; None when that is unknown too. `functions`: where the next
    ones would go, in order; a PF is listed once, however many it takes, and on a mixed-size GPU every free function is
    listed. `reasons`: the blockers, as sentences; empty when there are none.
    """

    free: int | None
    functions: tuple[str, ...]
    reasons: tuple[str, ...] = ()
    at_least: int | None = None

    @property
    def guaranteed(self) -> int | None:
        """How many more are guaranteed to fit; None when no number is known."""
        return self.at_least if self.free is None else self.free

    @property
    def has_room(self) -> bool:
        """Whether one more can be tried."""
        return bool(self.functions) and self.free != 0


def compute_room(gpu: Gpu, taken: Sequence[Vgpu], vgpu_type: VgpuType) -> Room:
    """Return the room for one type on one GPU, given every carrier taken on it (created, recorded or claimed)."""
    whole_gpu_holders = [v for v in taken if v.carrier == gpu.address and v.backend is Backend.PASSTHROUGH]
    if whole_gpu_holders:
        return Room(0, (), (_whole_gpu_reason(whole_gpu_holders),))
    if gpu.backend is Backend.MDEV_PF:
        return _room_on_pf(gpu, taken, vgpu_type)
    if gpu.backend in (Backend.MDEV_VF, Backend.VENDOR_VF):
        return _room_on_vfs(gpu, taken, vgpu_type, list_free_functions(gpu, taken))
    return Room(0, (), (_no_vgpus_reason(gpu),))


def count_free_by_profile(gpu: Gpu, taken: Sequence[Vgpu], types: Sequence[VgpuType]) -> dict[str, int | None]:
    """Return `Room.free` for types of a GPU by profile; reads the functions only once."""
    if gpu.backend not in (Backend.MDEV_VF, Backend.VENDOR_VF):
        return {t.profile: compute_room(gpu, taken, t).free for t in types}
    if any(v.carrier == gpu.address and v.backend is Backend.PASSTHROUGH for v in taken):
        return {t.profile: 0 for t in types}
    free = list_free_functions(gpu, taken)
    return {t.profile: _room_on_vfs(gpu, taken, t, free).free for t in types}


def max_on_empty_gpu(gpu: Gpu, vgpu_type: VgpuType) -> int | None:
    """Return how many of a type the empty GPU takes in its current mode; None when that is unknown."""
    mixed = gpu.mixed_size and vgpu_type.gi_profile_id is None
    return mixed_size.max_when_empty(vgpu_type) if mixed else vgpu_type.max_per_gpu


def _whole_gpu_reason(whole: Sequence[Vgpu]) -> str:
    setting_up = next((v for v in whole if v.command is not None), None)
    if setting_up is None:
        return f"all of the GPU is given to {name_holders(whole)}"
    is_leaked = setting_up.owner is Ownership.LEAKED
    return f"it is {setting_up.reason}; vgpuctl reconcile" if is_leaked else f"{setting_up.holder_text} sets it up"


def _no_vgpus_reason(gpu: Gpu) -> str:
    if gpu.backend is None:
        return f"its VFs are off (0 of {gpu.vfs_total} enabled)"
    return f"it offers no vGPUs: its backend is {gpu.backend}"


def why_profile_unknown(gpu: Gpu) -> str:
    """Return why a GPU does not list a type: it offers none, its types cannot be read, or it has others."""
    if gpu.backend not in (Backend.MDEV_PF, Backend.MDEV_VF, Backend.VENDOR_VF):
        return _no_vgpus_reason(gpu)
    broken = [f"{f.address}: {f.problem}" for f in gpu.functions if f.problem]
    return "; ".join(broken) if broken and not gpu.types else "its driver does not know this profile"


def _lock_reason(gpu: Gpu, taken: Sequence[Vgpu], vgpu_type: VgpuType) -> str | None:
    """Return which vGPUs exclude this type: a GPU takes one framebuffer size, with an old driver one type.

    Only NVIDIA's driver has this rule; other drivers let their pool be divided freely.
    """
    if gpu.vendor_id != NVIDIA_VENDOR_ID:
        return None
    others = [v for v in taken if v.profile not in (None, vgpu_type.profile)] if gpu.has_single_type else []
    if others:
        other_profiles = ", ".join(sorted({str(v.profile) for v in others}))
        return (
            f"it runs {len(others)} of another type: {other_profiles}, held by {name_holders(others)}; its driver, "
            "older than 550, takes one type at a time"
        )
    return _size_lock_reason(taken, vgpu_type)


def _size_lock_reason(taken: Sequence[Vgpu], vgpu_type: VgpuType) -> str | None:
    if vgpu_type.framebuffer_mib is None:
        return None
    others = [v for v in taken if v.framebuffer_mib is not None and v.framebuffer_mib != vgpu_type.framebuffer_mib]
    if not others:
        return None
    named = {f"{v.profile or v.type_id} ({format_mib(v.framebuffer_mib)})" for v in others if v.framebuffer_mib}
    sizes = ", ".join(sorted(named))
    return f"it runs {len(others)} of another size: {sizes}, held by {name_holders(others)}"


def _max_vgpus(gpu: Gpu, vgpu_type: VgpuType) -> int | None:
    if gpu.vendor_id != NVIDIA_VENDOR_ID:
        return vgpu_type.max_per_gpu
    return None if vgpu_type.max_per_gpu is None else min(vgpu_type.max_per_gpu, MAX_TIME_SLICED)


def _room_on_pf(gpu: Gpu, taken: Sequence[Vgpu], vgpu_type: VgpuType) -> Room:
    function = gpu.functions[0]
    if function.problem:
        return Room(0, (), (f"{function.address}: {function.problem}",))
    locked = _lock_reason(gpu, taken, vgpu_type)
    if locked:
        return Room(0, (), (locked,))
    offered = (function.available_instances or {}).get(vgpu_type.type_id)
    if offered is None:
        return Room(0, (), (f"its driver does not offer {vgpu_type.profile}",))
    absent = [v for v in taken if not v.present]
    free = offered if not absent else _count_left_in_pool(gpu, function, vgpu_type, absent)
    limit = _max_vgpus(gpu, vgpu_type)
    if limit is not None and gpu.vendor_id == NVIDIA_VENDOR_ID:
        free = min(free, max(0, limit - len(taken)))
    if free == 0:
        return Room(0, (), (_full_reason(taken, limit, f"the driver says {offered} available"),))
    return Room(free, (function.address,))


def _count_left_in_pool(gpu: Gpu, function: GpuFunction, vgpu_type: VgpuType, absent: Sequence[Vgpu]) -> int:
    """Return how many of a type are left once the recorded vGPUs that have no device yet are created.

    Types of one parent share one pool. Where the driver reports how much each type takes, that is counted. Otherwise
    each is assumed to need the largest part of the pool that its own number allows, and one of the same type exactly
    one.
    """
    available = function.available_instances or {}
    offered = available[vgpu_type.type_id]
    type_by_profile = {t.profile: t for t in gpu.types}
    needs = [type_by_profile.get(v.profile or "") for v in absent]
    units = [t.pool_units if t is not None else None for t in needs]
    if vgpu_type.pool_units is not None and None not in units:
        pool = max(available.get(t.type_id, 0) * (t.pool_units or 0) for t in gpu.types)
        return max(0, pool - sum(u or 0 for u in units)) // vgpu_type.pool_units
    if gpu.vendor_id == NVIDIA_VENDOR_ID or all(t is not None and t.type_id == vgpu_type.type_id for t in needs):
        return max(0, offered - len(absent))
    parts = [available.get(t.type_id, 0) if t is not None else 0 for t in needs]
    if 0 in parts:
        return 0
    total = math.lcm(*parts)
    return max(0, offered * (total - sum(total // part for part in parts)) // total)


def list_free_functions(gpu: Gpu, taken: Sequence[Vgpu]) -> list[GpuFunction]:
    """Return the free VFs that have no problem."""
    busy = {v.function for v in taken}
    return [f for f in gpu.functions if f.address not in busy and not f.problem and not _is_occupied(f)]


def _room_on_vfs(gpu: Gpu, taken: Sequence[Vgpu], vgpu_type: VgpuType, usable: Sequence[GpuFunction]) -> Room:
    offering = [f for f in usable if (f.available_instances or {}).get(vgpu_type.type_id, 0) > 0]
    remaining = _compute_remaining(gpu, taken, vgpu_type, offered=bool(offering))
    broken = tuple(f"{f.address}: {f.problem}" for f in gpu.functions if f.problem)
    if remaining.free == 0:
        return Room(0, (), (remaining.reason, *broken))
    if not offering:
        return Room(0, (), (_no_free_vf_reason(gpu, usable, taken, vgpu_type), *broken))
    addresses = tuple(f.address for f in offering)
    awaited = [v for v in taken if v.needs_device]
    if remaining.free is None and awaited:
        return Room(0, (), (_unmade_vgpus_reason(awaited), *broken))
    if remaining.free is None:
        return Room(None, addresses, tuple(filter(None, (remaining.reason, *broken))))
    free = min(remaining.free, len(offering))
    functions = addresses if gpu.mixed_size else addresses[:free]
    if remaining.is_lower_bound and remaining.free < len(offering):
        return Room(None, functions, (*_unknown_placement_reason(free, taken), *broken), at_least=free)
    return Room(free, functions, broken)


def _compute_remaining(gpu: Gpu, taken: Sequence[Vgpu], vgpu_type: VgpuType, *, offered: bool) -> Remaining:
    """Return what the GPU's way of dividing itself leaves. `offered`: the driver lists the type on a free VF now.

    The driver's list says that one more fits next to the existing devices, wherever they are; the driver does not know
    about recorded vGPUs without a device.
    """
    driver_confirms = offered and all(v.present and v.target_placement_id is None for v in taken)
    mig_conflict = gpu_instances.why_wrong_mig_mode(gpu, vgpu_type)
    if mig_conflict is not None:
        return Remaining(0, mig_conflict)
    if gpu.mig is not None and gpu.mig.enabled:
        remaining = gpu_instances.compute_remaining(gpu, gpu.mig, taken, vgpu_type)
    elif gpu.mig is None and vgpu_type.gi_profile_id is not None:
        return Remaining(None, "how many fit is not known: NVML does not tell its GPU instances; asked by root it does")
    elif gpu.mixed_size:
        remaining = _cap_remaining(MAX_TIME_SLICED, mixed_size.compute_remaining(gpu, taken, vgpu_type), taken)
    else:
        return _remaining_equal_size(gpu, taken, vgpu_type, offered=driver_confirms)
    return (
        Remaining(1, is_lower_bound=True)
        if remaining.free == 0 and remaining.is_lower_bound and driver_confirms
        else remaining
    )


def _cap_remaining(limit: int, remaining: Remaining, taken: Sequence[Vgpu]) -> Remaining:
    """Return the remaining room of a GPU that takes at most this many vGPUs of any size."""
    if len(taken) >= limit:
        return Remaining(0, _full_reason(taken, limit, "the most that a GPU takes"))
    return remaining if remaining.free is None else replace(remaining, free=min(remaining.free, limit - len(taken)))


def _remaining_equal_size(gpu: Gpu, taken: Sequence[Vgpu], vgpu_type: VgpuType, *, offered: bool) -> Remaining:
    locked = _lock_reason(gpu, taken, vgpu_type)
    if (
        locked and offered and gpu.mixed_size is None and gpu.backend is Backend.MDEV_VF
    ):  # without NVML it is unknown whether sizes may mix
        return Remaining(None, f"{_UNKNOWN}, and its driver offers it beside other sizes")
    if locked:
        return Remaining(0, locked)
    limit = _max_vgpus(gpu, vgpu_type)
    if limit is None:
        return Remaining(None, _UNKNOWN if gpu.backend is Backend.VENDOR_VF else "")
    return Remaining(max(0, limit - len(taken)), _full_reason(taken, limit, "the maximum for this type"))


def _unmade_vgpus_reason(awaited: Sequence[Vgpu]) -> str:
    """Return why nothing is added: the remaining room may belong to recorded vGPUs that have no device yet."""
    return (
        f"how many fit is not known without NVML, and {len(awaited)} promised vGPUs are not made again yet: "
        f"start {name_holders(awaited)} first, or vgpuctl restore-host"
    )


def _unknown_placement_reason(free: int, taken: Sequence[Vgpu]) -> tuple[str, ...]:
    return (f"at least {free}: where on the GPU each vGPU of {name_holders(taken)} is, is not known",)


def _is_occupied(function: GpuFunction) -> bool:
    return bool(function.mdevs) or function.current_type is not None


def _no_free_vf_reason(gpu: Gpu, usable: Sequence[GpuFunction], taken: Sequence[Vgpu], vgpu_type: VgpuType) -> str:
    if not usable:
        return f"no VF is free: {len(gpu.functions)} enabled, {len(taken)} in use by {name_holders(taken)}"
    detail = f"; in use by {name_holders(taken)}" if taken else ""
    return f"none of its {len(usable)} free VFs offers {vgpu_type.profile} now{detail}"


def _full_reason(taken: Sequence[Vgpu], limit: int | None, detail: str) -> str:
    total = f" of {limit}" if limit is not None else ""
    return f"{len(taken)}{total} in use ({detail}): {name_holders(taken)}"
