# SPDX-License-Identifier: Apache-2.0
"""What list-profiles reports: how many of each profile fit, and which ones leave no room for another."""

from __future__ import annotations

from vgpuctl.gpu.room import divide
from vgpuctl.model.gpu import Gpu, VgpuType
from vgpuctl.model.results.gpus import ProfileResult, RoomResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.placement.fleet_state import build_fleet_state
from vgpuctl.placement.joint import none_beside, total_left
from vgpuctl.placement.vm_placement import list_rooms, sum_free, sum_guaranteed


def profile_results(snapshot: Snapshot, gpus: tuple[Gpu, ...], *, everything: bool) -> tuple[ProfileResult, ...]:
    """Return a result for each profile: how many can be created now on these GPUs together.

    Profiles without room for one more are omitted unless `everything`.
    """
    by_name: dict[str, dict[str, VgpuType]] = {}
    for gpu in gpus:
        for vgpu_type in gpu.types:
            by_name.setdefault(vgpu_type.name, {})[gpu.address] = vgpu_type
    rooms = {name: list_rooms(snapshot, [g for g in gpus if g.address in t], t) for name, t in by_name.items()}
    free = {name: sum_free(room_list) for name, room_list in rooms.items()}
    excluded = _excluded_profiles(snapshot, gpus, by_name, free)
    results: list[ProfileResult] = []
    for name, types in by_name.items():
        if free[name] == 0 and not everything:
            continue
        first = next(iter(types.values()))
        ids = sorted({t.type_id for t in types.values()})
        shown_rooms = [(g, r) for g, r in rooms[name] if everything or r.free != 0]
        results.append(
            ProfileResult(
                profile=first.profile,
                name=name,
                type_id=ids[0] if len(ids) == 1 else None,
                framebuffer_mib=next((t.framebuffer_mib for t in types.values() if t.framebuffer_mib), None),
                max_per_gpu=_max_per_gpu([g for g, _ in rooms[name]], types),
                free=free[name],
                free_at_least=sum_guaranteed(rooms[name]),
                excludes=excluded[name],
                gpus=tuple(RoomResult(g.address, sum_free([(g, r)]), sum_guaranteed([(g, r)])) for g, r in shown_rooms),
            )
        )
    return tuple(sorted(results, key=_profile_key))


def _excluded_profiles(
    snapshot: Snapshot,
    gpus: tuple[Gpu, ...],
    by_name: dict[str, dict[str, VgpuType]],
    free: dict[str, int | None],
) -> dict[str, tuple[str, ...] | None]:
    """Return, by type name, the profiles that have room now and lose all of it once that type is used up.

    None if the state of a GPU with room for either is not known in numbers.
    """
    fleet_state = build_fleet_state(snapshot, gpus)
    profiles = {name: next(iter(types.values())).profile for name, types in by_name.items()}
    known_names = {
        name for name, n in free.items() if n is not None and n == total_left(fleet_state.fleet, profiles[name])
    }
    profiles_with_room = [profiles[name] for name, n in free.items() if n != 0]
    if len(known_names) < len(free):
        return dict.fromkeys(by_name)
    return {
        name: tuple(sorted(none_beside(fleet_state.fleet, profile, profiles_with_room)))
        for name, profile in profiles.items()
    }


def _max_per_gpu(gpus: list[Gpu], types: dict[str, VgpuType]) -> int | None:
    """Return the maximum of a profile on one of these GPUs; GPUs with mixed sizes may take fewer than others."""
    maxima = [
        maximum for maximum in (divide(g, ()).max_when_empty(types[g.address]) for g in gpus) if maximum is not None
    ]
    return max(maxima, default=None)


def _profile_key(result: ProfileResult) -> tuple[str, int, str]:
    return result.profile.rpartition("-")[0], result.framebuffer_mib or 0, result.profile
