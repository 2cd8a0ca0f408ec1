# SPDX-License-Identifier: Apache-2.0
"""Whether vGPUs of several profiles fit on GPUs together, where each goes, and how many are too many if they do not.

Each vGPU counts as one for its own VM. Where the driver does not report how many fit, the answer is never "no".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from vgpuctl.gpu.division import Room
from vgpuctl.gpu.mdev_pool import MdevPool
from vgpuctl.gpu.mixed_size import pack_vgpus
from vgpuctl.gpu.profiles import drop_ambiguous_gpus, find_types
from vgpuctl.gpu.room import divide
from vgpuctl.model.address import address_sort_key
from vgpuctl.model.gpu import Gpu, VgpuType
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.placement.fleet import Fleet
from vgpuctl.placement.fleet_state import FleetState, build_fleet_state, fleet_by_profile
from vgpuctl.placement.joint import fit_together
from vgpuctl.placement.slot_search import ProfileRequest, search_slots
from vgpuctl.placement.vm_placement import is_unused_sibling, list_open_gpus, list_rooms, sum_guaranteed
from vgpuctl.value import Value

_POOL_SIZE_UNKNOWN = (
    "the size of the pool that the types of a GPU share is not known: its driver reports how many of each fit alone"
)


class PlannedVgpu(Value):
    """Where one vGPU goes. `placement_id`: on a mixed-size GPU, where vgpuctl can choose it."""

    gpu: Gpu
    profile: str
    placement_id: int | None = None


class ProfileRoom(Value):
    """The room that a GPU has for one profile, where not all of the request fits."""

    gpu: Gpu
    profile: str
    room: Room


class FitResult(Value):
    """Whether everything fits; None when that is unknown, and then `reason` says why.

    `planned` has a place for each vGPU when everything fits. Otherwise `excess` lists the fewest of the requested vGPUs
    without which the others fit, and `rooms` has each GPU's room for their profiles.
    """

    fits: bool | None
    requested: Mapping[str, int]
    planned: tuple[PlannedVgpu, ...] = ()
    excess: tuple[tuple[str, int], ...] = ()
    rooms: tuple[ProfileRoom, ...] = ()
    reason: str | None = None


def check_fit(snapshot: Snapshot, gpus: Sequence[Gpu], profiles: Sequence[tuple[str, int]]) -> FitResult:
    """Check whether the requested number of each profile fits on these GPUs together, as they are now.

    Raises:
        NotFound, NoCapacity, InvalidInput: these GPUs cannot serve a profile.
    """
    types_by_text = {text: find_types(snapshot, gpus, text) for text, _ in profiles}
    gpus = drop_ambiguous_gpus(gpus, list(types_by_text.values()))
    state = build_fleet_state(snapshot, gpus)
    by_profile = fleet_by_profile(state, types_by_text)
    types = {by_profile.name_by_text[text]: types_of_text for text, types_of_text in types_by_text.items()}
    counted: Counter[str] = Counter()
    for text, count in profiles:
        counted[by_profile.name_by_text[text]] += count
    requested = {p: n for p, n in counted.items() if n}
    joint = fit_together(by_profile.fleet, requested)
    if not joint.excess:
        planned = _plan_in_turn(snapshot, gpus, profiles, types_by_text)
        return FitResult(True, requested, planned=planned or _plan_vgpus(snapshot, state, joint.by_gpu, types))
    rooms = [
        ProfileRoom(gpu, profile, room)
        for profile in requested
        for gpu, room in list_rooms(snapshot, gpus, types[profile])
        if gpu.address in types[profile]
    ]
    unknown = sorted(
        {
            profile_room.gpu.address
            for profile_room in rooms
            if _may_have_more(state.gpus, by_profile.fleet, profile_room)
        }
    )
    if unknown and len(requested) == 1:
        return _check_one_profile(snapshot, requested, rooms, types)
    if unknown:
        return FitResult(None, requested, reason=f"what fits on {', '.join(unknown)} is not known until it is tried")
    if joint.why_not_proven is not None:
        placed = sum(requested.values()) - sum(joint.excess.values())
        reason = f"at least {placed} of {sum(requested.values())} fit; {joint.why_not_proven}"
        return FitResult(None, requested, reason=reason)
    if any(isinstance(divide(gpu, ()), MdevPool) for gpu in gpus):
        largest_state = build_fleet_state(snapshot, gpus, assume_largest_pool=True)
        joint = fit_together(fleet_by_profile(largest_state, types_by_text).fleet, requested)
        is_known = set(largest_state.excluded_gpus) == set(state.excluded_gpus) and joint.why_not_proven is None
        if not is_known or not joint.excess:
            return FitResult(None, requested, reason=_POOL_SIZE_UNKNOWN)
    excess_rooms = tuple(profile_room for profile_room in rooms if profile_room.profile in joint.excess)
    siblings = tuple(_rooms_of_unused_siblings(snapshot, gpus, {p: types[p] for p in joint.excess}))
    return FitResult(False, requested, excess=tuple(joint.excess.items()), rooms=(*excess_rooms, *siblings))


def _rooms_of_unused_siblings(
    snapshot: Snapshot, gpus: Sequence[Gpu], types_by_profile: Mapping[str, Mapping[str, VgpuType]]
) -> Iterator[ProfileRoom]:
    """Yield why GPUs of the same models, which offer nothing now, have no room."""
    for profile, types in types_by_profile.items():
        unused = [gpu for gpu in gpus if is_unused_sibling(gpu, gpus, types)]
        yield from (ProfileRoom(gpu, profile, room) for gpu, room in list_rooms(snapshot, unused, types))


def _check_one_profile(
    snapshot: Snapshot,
    requested: Mapping[str, int],
    rooms: Sequence[ProfileRoom],
    types: Mapping[str, Mapping[str, VgpuType]],
) -> FitResult:
    """Check one profile by the room that each GPU reports, where numbers for other profiles are missing."""
    ((profile, count),) = requested.items()
    guaranteed = sum_guaranteed([(profile_room.gpu, profile_room.room) for profile_room in rooms])
    unknown = [entry.gpu.address for entry in rooms if entry.room.free is None or entry.room.may_be_more]
    gpus_text = ", ".join(unknown)
    if guaranteed < count and not unknown:
        return FitResult(False, requested, excess=((profile, count - guaranteed),), rooms=tuple(rooms))
    if guaranteed < count:
        return FitResult(
            None,
            requested,
            reason=f"at least {guaranteed} fit; whether more fit on {gpus_text} is not known until it is tried",
        )
    planned: list[PlannedVgpu] = []
    for profile_room in rooms:
        vgpu_types = [types[profile][profile_room.gpu.address]] * min(
            profile_room.room.guaranteed or 0, count - len(planned)
        )
        planned += _plan_on_gpu(snapshot, profile_room.gpu, vgpu_types)
    return FitResult(True, requested, planned=tuple(planned))


def _plan_in_turn(
    snapshot: Snapshot,
    gpus: Sequence[Gpu],
    profiles: Sequence[tuple[str, int]],
    types_by_text: Mapping[str, Mapping[str, VgpuType]],
) -> tuple[PlannedVgpu, ...] | None:
    """Return where create-vm would put these vGPUs, larger ones first; None when the last ones would find no room."""
    requests = [ProfileRequest(types_by_text[text], text) for text, count in profiles for _ in range(count)]
    requests.sort(key=lambda request: (-request.framebuffer_mib, request.text))
    slots = search_slots(snapshot, list_open_gpus(snapshot, gpus), requests, None, max_alternatives=0).slots
    if slots is None:
        return None
    planned = (PlannedVgpu(slot.gpu, slot.vgpu_type.profile, slot.placement_id) for slot in slots)
    return tuple(sorted(planned, key=lambda vgpu: address_sort_key(vgpu.gpu.address)))


def _plan_on_gpu(snapshot: Snapshot, gpu: Gpu, vgpu_types: Sequence[VgpuType]) -> list[PlannedVgpu]:
    """Return where these vGPUs go on one GPU, with placement ids where vgpuctl chooses them."""
    ids = pack_vgpus(gpu, snapshot.vgpus_on(gpu.address), vgpu_types) if gpu.accepts_placements else None
    return [
        PlannedVgpu(gpu, vgpu_type.profile, ids[n] if ids is not None else None)
        for n, vgpu_type in enumerate(vgpu_types)
    ]


def _may_have_more(gpus: Sequence[Gpu], fleet: Fleet, room_entry: ProfileRoom) -> bool:
    """Return whether a GPU may have room for more of a profile than the fleet's numbers say."""
    free = room_entry.room.free
    if free is None or room_entry.room.may_be_more:
        return True
    index = next((n for n, gpu in enumerate(gpus) if gpu.address == room_entry.gpu.address), None)
    if index is None:
        return free > 0
    group = fleet.group_of(index)
    return free > fleet.kind_of(group).count_remaining(group.state, room_entry.profile)


def _plan_vgpus(
    snapshot: Snapshot,
    numbers: FleetState,
    where: Mapping[int, Mapping[str, int]],
    types: Mapping[str, Mapping[str, VgpuType]],
) -> tuple[PlannedVgpu, ...]:
    """Return a place for each vGPU, by GPU; larger vGPUs first."""
    planned: list[PlannedVgpu] = []
    for index in sorted(where):
        gpu = numbers.gpus[index]
        vgpu_types = [types[p][gpu.address] for p, n in where[index].items() for _ in range(n)]
        vgpu_types.sort(key=lambda t: (-(t.framebuffer_mib or 0), t.profile))
        planned += _plan_on_gpu(snapshot, gpu, vgpu_types)
    return tuple(planned)
