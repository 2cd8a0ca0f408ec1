# SPDX-License-Identifier: Apache-2.0
"""What list-profiles tells: how many of each profile fit, and which ones leave room for none of another."""

from __future__ import annotations

from vgpuctl.capacity.kinds import fleet_of
from vgpuctl.capacity.place import free_in, rooms_for
from vgpuctl.capacity.room import most_on
from vgpuctl.model.gpu import Gpu, VgpuType
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.placement.joint import none_beside, total_left
from vgpuctl.plan.report import Value, free_values


def profile_values(snapshot: Snapshot, gpus: tuple[Gpu, ...], *, everything: bool) -> list[Value]:
    """Return a value for each profile: what can be made now on these GPUs together.

    Profiles of which nothing more can be made are left out unless `everything`.
    """
    by_name: dict[str, dict[str, VgpuType]] = {}
    for gpu in gpus:
        for known in gpu.types:
            by_name.setdefault(known.name, {})[gpu.address] = known
    rooms = {name: rooms_for(snapshot, [g for g in gpus if g.address in t], t) for name, t in by_name.items()}
    joint = {name: free_in(found) for name, found in rooms.items()}
    excluded = _excluded(snapshot, gpus, by_name, joint)
    values: list[Value] = []
    for name, types in by_name.items():
        if joint[name] == 0 and not everything:
            continue
        first = next(iter(types.values()))
        ids = sorted({t.type_id for t in types.values()})
        values.append(
            {
                "profile": first.profile,
                "name": name,
                "type_id": ids[0] if len(ids) == 1 else None,
                "framebuffer_mib": first.framebuffer_mib,
                "max_per_gpu": _joint_most([g for g, _ in rooms[name]], types),
                **free_values(rooms[name]),
                "excludes": excluded[name],
                "gpus": [
                    {"address": g.address, **free_values([(g, r)])} for g, r in rooms[name] if everything or r.free != 0
                ],
            }
        )
    return sorted(values, key=_profile_key)


def _excluded(
    snapshot: Snapshot,
    gpus: tuple[Gpu, ...],
    by_name: dict[str, dict[str, VgpuType]],
    free: dict[str, int | None],
) -> dict[str, list[str] | None]:
    """Return for each type by its name the profiles that have room now, and none once the most of that one are made.

    None where a GPU that has room for either is not known in numbers.
    """
    numbers = fleet_of(snapshot, gpus)
    profiles = {name: next(iter(types.values())).profile for name, types in by_name.items()}
    known = {name for name, n in free.items() if n is not None and n == total_left(numbers.fleet, profiles[name])}
    roomy = [profiles[name] for name, n in free.items() if n != 0]
    if len(known) < len(free):
        return dict.fromkeys(by_name)
    return {name: sorted(none_beside(numbers.fleet, profile, roomy)) for name, profile in profiles.items()}


def _joint_most(gpus: list[Gpu], types: dict[str, VgpuType]) -> int | None:
    """Return the most of a profile on one of these GPUs; those with mixed sizes may take fewer than others."""
    known = [n for n in (most_on(g, types[g.address]) for g in gpus) if n is not None]
    return max(known, default=None)


def _profile_key(value: Value) -> tuple[str, int, str]:
    profile = str(value["profile"])
    size = value["framebuffer_mib"]
    return profile.rpartition("-")[0], size if isinstance(size, int) else 0, profile
