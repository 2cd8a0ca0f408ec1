# SPDX-License-Identifier: Apache-2.0
"""What explain reports of a profile: how many fit on each GPU, what blocks more, and what would help."""

from __future__ import annotations

from vgpuctl.errors import VgpuctlError
from vgpuctl.gpu.profiles import find_types
from vgpuctl.gpu.room import divide
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.results.gpus import ExplainResult, ReasonResult
from vgpuctl.model.results.moves import MoveResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.operations.plans.moves import find_blocking_carriers, plan_room_moves
from vgpuctl.operations.plans.vgpu_results import vgpu_results
from vgpuctl.placement.vm_placement import list_rooms, sum_free, sum_guaranteed


def explain_profile(
    snapshot: Snapshot, gpus: tuple[Gpu, ...], profile: str, pinned: frozenset[str] = frozenset()
) -> ExplainResult:
    """Return for each GPU how many of a profile fit, by which rule, and what blocks more; and moves that help.

    A profile without the model (`2B`) is for each GPU its own, as create-vm takes it. `pinned`: VMs that
    cannot be moved, by uuid.
    """
    types = find_types(snapshot, gpus, profile)
    offering_gpus = [g for g in gpus if g.address in types]
    names = sorted({vgpu_type.profile for vgpu_type in types.values()})
    rooms = list_rooms(snapshot, offering_gpus, types)
    free = sum_free(rooms)
    blocking_by_name = {name: find_blocking_carriers(snapshot, gpus, name) for name in names}
    blocking = {g.address: blocking_by_name[types[g.address].profile][g.address] for g in offering_gpus}
    return ExplainResult(
        profile=names[0] if len(names) == 1 else profile,
        free=free,
        free_at_least=sum_guaranteed(rooms),
        moves=_suggest_moves(snapshot, gpus, profile, pinned) if free == 0 else (),
        gpus=tuple(
            ReasonResult(
                address=gpu.address,
                model=gpu.model,
                free=sum_free([(gpu, room)]),
                free_at_least=sum_guaranteed([(gpu, room)]),
                rule=divide(gpu, ()).rule,
                reasons=room.reasons,
                in_the_way=blocking.get(gpu.address) if room.free == 0 else (),
                vgpus=vgpu_results(snapshot.vgpus_on(gpu.address)),
            )
            for gpu, room in list_rooms(snapshot, gpus, types)
        ),
    )


def _suggest_moves(
    snapshot: Snapshot, gpus: tuple[Gpu, ...], profile: str, pinned: frozenset[str]
) -> tuple[MoveResult, ...] | None:
    """Return the fewest moves that make room for one more; None if there are none or the answer is unknown."""
    if snapshot.host_file_problem is not None:
        return None
    try:
        plan = plan_room_moves(snapshot, gpus, [(profile, 1)], pinned)
    except VgpuctlError:
        return None
    return plan.results() or None
