# SPDX-License-Identifier: Apache-2.0
"""What explain tells of a profile: how many fit on each GPU, what stands in the way, and what would help."""

from __future__ import annotations

from vgpuctl.capacity.place import rooms_for
from vgpuctl.capacity.profiles import find, the_one
from vgpuctl.capacity.rule import rule_of
from vgpuctl.errors import VgpuctlError
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.plan.moves import in_the_way_of, room_by_moves
from vgpuctl.plan.report import Value, free_values, vgpu_values


def explain_value(
    snapshot: Snapshot, gpus: tuple[Gpu, ...], profile: str, pinned: frozenset[str] = frozenset()
) -> Value:
    """Return for every GPU how many of a profile fit, by which rule, and what stands in the way; and what would help.

    `pinned`: VMs that cannot be moved, by uuid.
    """
    types = find(snapshot, gpus, profile)
    owners = [g for g in gpus if g.address in types]
    name = the_one(types, profile)
    total = free_values(rooms_for(snapshot, owners, types))
    blocking = in_the_way_of(snapshot, gpus, name)
    return {
        "profile": name,
        **total,
        "moves": _moves(snapshot, gpus, profile, pinned) if total["free"] == 0 else [],
        "gpus": [
            {
                "address": gpu.address,
                "model": gpu.model,
                **free_values([(gpu, space)]),
                "rule": rule_of(gpu),
                "reasons": list(space.reasons),
                "in_the_way": _as_list(blocking[gpu.address]) if space.free == 0 else [],
                "vgpus": vgpu_values(snapshot.taken_on(gpu.address)),
            }
            for gpu, space in rooms_for(snapshot, gpus, types)
        ],
    }


def _as_list(carriers: tuple[str, ...] | None) -> list[str] | None:
    return None if carriers is None else list(carriers)


def _moves(snapshot: Snapshot, gpus: tuple[Gpu, ...], profile: str, pinned: frozenset[str]) -> list[Value] | None:
    """Return the fewest moves after which one more fits; None when none can be made, or that is not known."""
    if snapshot.host_file_problem is not None:
        return None
    try:
        plan = room_by_moves(snapshot, gpus, [(profile, 1)], pinned)
    except VgpuctlError:
        return None
    return plan.values() or None
