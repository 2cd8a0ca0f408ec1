# SPDX-License-Identifier: Apache-2.0
"""Let a placement policy choose the GPU of each vGPU, one after the other; `room` still decides whether it fits."""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.config.arguments import DEFAULT_PLACEMENT_POLICY
from vgpuctl.gpu.gpu_kind import Placement
from vgpuctl.gpu.mixed_size import placement_id_of
from vgpuctl.gpu.room import compute_room
from vgpuctl.gpu.whole_functions import PLAIN_VF
from vgpuctl.model.gpu import Gpu, VgpuType
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.placement.fleet_by_profile import fleet_by_profile
from vgpuctl.placement.fleet_state import build_fleet_state
from vgpuctl.placement.policy import POLICIES, PlacementPolicy
from vgpuctl.placement.slot_search import OpenGpu, ProfileRequest, Slot, add_slot, make_planned_vgpus


def place_in_turn(
    snapshot: Snapshot,
    open_gpus: Sequence[OpenGpu],
    requests: Sequence[ProfileRequest],
    policy: str | None,
    vm: str | None = None,
) -> tuple[Slot, ...] | None:
    """Return a slot for each request in turn, where the policy puts it; None when its numbers show no room.

    There may be room even then: in another order, or where no numbers are known.
    """
    if not open_gpus or any(not request.types for request in requests):
        return None
    profiles = frozenset(t.profile for request in requests for t in request.types.values())
    state = build_fleet_state(snapshot, [entry.gpu for entry in open_gpus], vm, profiles)
    by_profile = fleet_by_profile(state, {request.text: request.types for request in requests})
    by_address = {entry.gpu.address: entry for entry in open_gpus}
    chooser = make_policy(snapshot, policy)
    slots: dict[str, tuple[Slot, ...]] = {}
    order: list[Slot] = []
    for request in requests:
        choice = chooser.choose(by_profile.fleet, by_profile.name_by_text[request.text])
        if choice is None:
            return None
        gpu = state.gpus[choice.gpu]
        vgpu_type = request.types.get(gpu.address)
        if vgpu_type is None:
            return None
        current = slots.get(gpu.address, ())
        open_gpu = OpenGpu(gpu, (*by_address[gpu.address].taken, *make_planned_vgpus(current)))
        slot = _make_slot(open_gpu, vgpu_type, choice.placement)
        if slot is None:
            return None
        slots[gpu.address] = (*current, slot)
        order.append(slot)
        by_profile.fleet.add_vgpu(choice.gpu, choice.placement)
    return tuple(order)


def _make_slot(open_gpu: OpenGpu, vgpu_type: VgpuType, placement: Placement) -> Slot | None:
    """Return the slot at a placement, where vgpuctl can choose that; None when the GPU has no room after all."""
    gpu = open_gpu.gpu
    if not gpu.accepts_placements:
        added = add_slot(open_gpu, (), vgpu_type)
        return None if added is None else added[0]
    room = compute_room(gpu, open_gpu.taken, vgpu_type)
    return Slot(gpu, room.functions[0], vgpu_type, placement_id_of(placement.place)) if room.has_room else None


def choose_gpu_for_vf(snapshot: Snapshot, gpus: Sequence[Gpu], policy: str | None, vm: str | None) -> Gpu | None:
    """Return the GPU that provides the next plain VF; None when no GPU has a free one."""
    state = build_fleet_state(snapshot, gpus, vm)
    choice = make_policy(snapshot, policy).choose(state.fleet, PLAIN_VF)
    return state.gpus[choice.gpu] if choice is not None else None


def make_policy(snapshot: Snapshot, name: str | None) -> PlacementPolicy:
    """Return a policy: the named one, else that of host.yaml, else the default."""
    return POLICIES[name or snapshot.placement_spec.policy or DEFAULT_PLACEMENT_POLICY]()
