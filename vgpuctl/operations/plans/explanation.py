# SPDX-License-Identifier: Apache-2.0
"""What explain reports of a profile: how many fit on each GPU, what blocks more, and what would help."""

from __future__ import annotations

from vgpuctl.capacity.profiles import find_types, require_one_profile
from vgpuctl.capacity.vm_placement import list_rooms, sum_free, sum_guaranteed
from vgpuctl.errors import VgpuctlError
from vgpuctl.model.gpu import NVIDIA_VENDOR_ID, WHOLE_DEVICE_BACKENDS, Gpu
from vgpuctl.model.results.gpus import ExplainResult, ReasonResult
from vgpuctl.model.results.moves import MoveResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.operations.plans.moves import find_blocking_carriers, plan_room_moves
from vgpuctl.operations.plans.vgpu_results import vgpu_results


def explain_profile(
    snapshot: Snapshot, gpus: tuple[Gpu, ...], profile: str, pinned: frozenset[str] = frozenset()
) -> ExplainResult:
    """Return for each GPU how many of a profile fit, by which rule, and what blocks more; and moves that help.

    `pinned`: VMs that cannot be moved, by uuid.
    """
    types = find_types(snapshot, gpus, profile)
    offering_gpus = [g for g in gpus if g.address in types]
    name = require_one_profile(types, profile)
    rooms = list_rooms(snapshot, offering_gpus, types)
    free = sum_free(rooms)
    blocking = find_blocking_carriers(snapshot, gpus, name)
    return ExplainResult(
        profile=name,
        free=free,
        free_at_least=sum_guaranteed(rooms),
        moves=_suggest_moves(snapshot, gpus, profile, pinned) if free == 0 else (),
        gpus=tuple(
            ReasonResult(
                address=gpu.address,
                model=gpu.model,
                free=sum_free([(gpu, room)]),
                free_at_least=sum_guaranteed([(gpu, room)]),
                rule=describe_sharing_rule(gpu),
                reasons=room.reasons,
                in_the_way=blocking[gpu.address] if room.free == 0 else (),
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


def describe_sharing_rule(gpu: Gpu) -> str | None:
    """Return how a GPU is divided; None when it offers no vGPUs now. The rules themselves are in `room`."""
    if gpu.backend is None or gpu.backend in WHOLE_DEVICE_BACKENDS:
        return None
    if gpu.vendor_id != NVIDIA_VENDOR_ID:
        return "its types draw from one pool"
    if gpu.mig is not None and gpu.mig.enabled:
        return "each vGPU runs in a GPU instance of its profile (MIG)"
    if gpu.mixed_size:
        return "vGPUs of several sizes, each at one of its placements, and no two of them overlap"
    if gpu.has_single_type:
        return "all vGPUs on it are of one type, for its driver is older than 550"
    return "all vGPUs on it have the same framebuffer size"
