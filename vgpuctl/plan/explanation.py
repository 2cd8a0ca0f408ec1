# SPDX-License-Identifier: Apache-2.0
"""What explain reports of a profile: how many fit on each GPU, what blocks more, and what would help."""

from __future__ import annotations

from vgpuctl.capacity.profiles import find_types, require_one_profile
from vgpuctl.capacity.sharing_rule import describe_sharing_rule
from vgpuctl.capacity.vm_placement import list_rooms
from vgpuctl.errors import VgpuctlError
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.plan.moves import find_blocking_carriers, plan_room_moves
from vgpuctl.plan.report import Value, free_values, vgpu_values


def explain_profile(
    snapshot: Snapshot, gpus: tuple[Gpu, ...], profile: str, pinned: frozenset[str] = frozenset()
) -> Value:
    """Return for each GPU how many of a profile fit, by which rule, and what blocks more; and moves that help.

    `pinned`: VMs that cannot be moved, by uuid.
    """
    types = find_types(snapshot, gpus, profile)
    offering_gpus = [g for g in gpus if g.address in types]
    name = require_one_profile(types, profile)
    total = free_values(list_rooms(snapshot, offering_gpus, types))
    blocking = find_blocking_carriers(snapshot, gpus, name)
    return {
        "profile": name,
        **total,
        "moves": _suggest_moves(snapshot, gpus, profile, pinned) if total["free"] == 0 else [],
        "gpus": [
            {
                "address": gpu.address,
                "model": gpu.model,
                **free_values([(gpu, room)]),
                "rule": describe_sharing_rule(gpu),
                "reasons": list(room.reasons),
                "in_the_way": _as_list(blocking[gpu.address]) if room.free == 0 else [],
                "vgpus": vgpu_values(snapshot.vgpus_on(gpu.address)),
            }
            for gpu, room in list_rooms(snapshot, gpus, types)
        ],
    }


def _as_list(carriers: tuple[str, ...] | None) -> list[str] | None:
    return None if carriers is None else list(carriers)


def _suggest_moves(
    snapshot: Snapshot, gpus: tuple[Gpu, ...], profile: str, pinned: frozenset[str]
) -> list[Value] | None:
    """Return the fewest moves that make room for one more; None if there are none or the answer is unknown."""
    if snapshot.host_file_problem is not None:
        return None
    try:
        plan = plan_room_moves(snapshot, gpus, [(profile, 1)], pinned)
    except VgpuctlError:
        return None
    return plan.values() or None
