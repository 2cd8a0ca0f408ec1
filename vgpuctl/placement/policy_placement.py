# SPDX-License-Identifier: Apache-2.0
"""Let a placement policy choose the GPU of each vGPU, one vGPU after the other; `room` still decides whether it fits.

A policy that only compares GPUs leaves the place on a mixed-size GPU to `mixed_size`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice

from vgpuctl.config.vm_fields import DEFAULT_PLACEMENT_POLICY
from vgpuctl.gpu.gpu_kind import Placement
from vgpuctl.gpu.mixed_size import choose_placement_id
from vgpuctl.gpu.profiles import matches_type
from vgpuctl.gpu.room import compute_room
from vgpuctl.gpu.whole_functions import PLAIN_VF
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.placement.fleet import Fleet, PlacementChoice
from vgpuctl.placement.fleet_by_profile import ProfileFleet, fleet_by_profile
from vgpuctl.placement.fleet_state import FleetState, build_fleet_state
from vgpuctl.placement.policy import GPU_POLICIES, PlacementPolicy
from vgpuctl.placement.slot_search import OpenGpu, ProfileRequest, Slot, add_slot, make_planned_vgpus
from vgpuctl.value import EMPTY_MAPPING

_UNSEEN_REQUESTS = 8
"""This many requests, spread evenly over all profiles, are added to the existing VMs.

A few VMs do not predict future requests; weights from them alone would give the second GPU to their size before the
first is full.
"""

_MAX_TRIES = 500
"""A command that places on a few GPUs spends five milliseconds on looking ahead."""


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
    policy_name = policy or snapshot.placement_spec.policy or DEFAULT_PLACEMENT_POLICY
    chooser = _LazyPolicy(policy_name, snapshot, state, by_profile, len(requests))
    slots: dict[str, tuple[Slot, ...]] = {}
    order: list[Slot] = []
    for request in requests:
        profile = by_profile.name_by_text[request.text]
        choice = chooser.choose(profile)
        if choice is None:
            return None
        gpu = state.gpus[choice.gpu]
        vgpu_type = request.types.get(gpu.address)
        if vgpu_type is None:
            return None
        current = slots.get(gpu.address, ())
        open_gpu = OpenGpu(gpu, (*by_address[gpu.address].taken, *make_planned_vgpus(current)))
        if gpu.accepts_placements:
            room = compute_room(gpu, open_gpu.taken, vgpu_type)
            placement_id: int | None = _placement_id_of(choice.placement)
            if not chooser.picks_placement:
                placement_id = choose_placement_id(gpu, open_gpu.taken, vgpu_type)
            placement = _find_placement(_possible_placements(by_profile.fleet, choice, profile), placement_id)
            if not room.has_room or placement is None:
                return None
            slot, choice = Slot(gpu, room.functions[0], vgpu_type, placement_id), choice._replace(placement=placement)
        else:
            added = add_slot(open_gpu, (), vgpu_type)
            if added is None:
                return None
            (slot,) = added
        slots[gpu.address] = (*current, slot)
        order.append(slot)
        by_profile.fleet.add_vgpu(choice.gpu, choice.placement)
    return tuple(order)


def _find_placement(placements: Sequence[Placement], placement_id: int | None) -> Placement | None:
    """Return the placement with this ID."""
    return next((placement for placement in placements if _placement_id_of(placement) == placement_id), None)


def choose_gpu_for_vf(snapshot: Snapshot, gpus: Sequence[Gpu], policy: str | None, vm: str | None) -> Gpu | None:
    """Return the GPU that provides the next plain VF; None when no GPU has a free one."""
    state = build_fleet_state(snapshot, gpus, vm)
    policy_name = policy or snapshot.placement_spec.policy or DEFAULT_PLACEMENT_POLICY
    chooser = _LazyPolicy(policy_name, snapshot, state, fleet_by_profile(state, EMPTY_MAPPING))
    choice = chooser.choose(PLAIN_VF)
    return state.gpus[choice.gpu] if choice is not None else None


class _LazyPolicy:
    """A policy by its name, created only when there is something to choose."""

    def __init__(
        self, name: str, snapshot: Snapshot, fleet_state: FleetState, profile_fleet: ProfileFleet, vgpu_count: int = 1
    ) -> None:
        self._name = name
        self._snapshot = snapshot
        self._fleet_state = fleet_state
        self._profile_fleet = profile_fleet
        self._vgpu_count = vgpu_count
        self._policy: PlacementPolicy | None = None

    @property
    def picks_placement(self) -> bool:
        """Whether the policy also chooses among the places of a GPU."""
        return self._name not in GPU_POLICIES

    def choose(self, profile: str) -> PlacementChoice | None:
        """Return where the next vGPU goes."""
        choices = list(islice(self._profile_fleet.fleet.choices(profile), 2))
        if len(choices) < 2:
            return choices[0] if choices else None
        if self._policy is None:
            self._policy = self._make_policy()
        return self._policy.choose(self._profile_fleet.fleet, profile)

    def _make_policy(self) -> PlacementPolicy:
        if self._name in GPU_POLICIES:
            return GPU_POLICIES[self._name]()
        from vgpuctl.placement.least_waste import LeastWaste  # import the solver only where there is a choice

        weights = self._profile_fleet.weights_by_name(weigh_profiles(self._snapshot, self._fleet_state))
        return LeastWaste(weights, together=self._vgpu_count, tries=_MAX_TRIES)


def weigh_profiles(snapshot: Snapshot, fleet_state: FleetState) -> Mapping[str, float]:
    """Return how often each profile of these GPUs is requested, relative to the others.

    The weights come from host.yaml. Without them, each profile counts as often as VMs have it (including VMs that are
    off), plus a few for every profile alike.
    """
    types_by_profile = {t.profile: t for gpu in fleet_state.gpus for t in gpu.types}
    sizes = {p for kind in fleet_state.fleet.kinds for p, mib in kind.sizes.items() if mib}
    configured = {
        profile: sum(
            weight
            for text, weight in snapshot.placement_spec.demand.items()
            if matches_type(types_by_profile[profile], text)
        )
        for profile in sizes
        if profile in types_by_profile
    }
    configured = {profile: weight for profile, weight in configured.items() if weight}
    if configured:
        return configured
    vgpus_by_vm = {vm.uuid: vm.record.vgpus for vm in snapshot.vms if vm.record is not None}
    assigned = [v.profile for vgpus in vgpus_by_vm.values() for v in vgpus]
    # the others belong to a VM that is being created, or to none
    others = [v.profile for v in snapshot.vgpus if v.vm_uuid not in vgpus_by_vm]
    counts = Counter(p for p in (*assigned, *others) if p in sizes)
    return {p: counts[p] + _UNSEEN_REQUESTS / len(sizes) for p in sorted(sizes)}


def _possible_placements(fleet: Fleet, choice: PlacementChoice, profile: str) -> tuple[Placement, ...]:
    return fleet.kind_of(choice.group).placements(choice.group.state, profile)


def _placement_id_of(placement: Placement) -> int:
    """Return the placement id of a placement on a mixed-size GPU: the lowest slice that it covers."""
    return (placement.place & -placement.place).bit_length() - 1
