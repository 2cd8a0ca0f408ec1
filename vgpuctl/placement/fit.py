# SPDX-License-Identifier: Apache-2.0
"""Whether vGPUs of several profiles fit on GPUs together, where each goes, and how many are too many if they do not.

Each vGPU counts as one for its own VM. Where the driver does not report how many fit, the answer is never "no". What a
simple order places, fits; an integer program answers the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import inf

from vgpuctl.gpu.division import Room
from vgpuctl.gpu.mdev_pool import MdevPool
from vgpuctl.gpu.mixed_size import pack_vgpus
from vgpuctl.gpu.profiles import drop_ambiguous_gpus, find_types
from vgpuctl.gpu.room import divide
from vgpuctl.model.gpu import Gpu, VgpuType
from vgpuctl.model.names import address_sort_key
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.placement.fleet import Fleet, FleetState, build_fleet_state, copy_fleet, fleet_by_profile
from vgpuctl.placement.fleet_program import FleetProgram, ProfileClasses
from vgpuctl.placement.policy import FirstFit
from vgpuctl.placement.slot_search import ProfileRequest, search_slots
from vgpuctl.placement.vm_placement import is_unused_sibling, list_open_gpus, list_rooms, sum_guaranteed
from vgpuctl.solver import TIME_LIMIT_SECONDS, SolverFailed
from vgpuctl.value import Value, replace

_POOL_SIZE_UNKNOWN = (
    "the size of the pool that the types of a GPU share is not known: its driver reports how many of each fit alone"
)


class Joint(Value):
    """The most of the requested vGPUs that fit together.

    `by_gpu`: by the number of the GPU how many of each profile it takes. `excess`: for what no room is left: the fewest
    that are too many, and of equally many those with the least framebuffer. `why_not_proven`: why fewer may be.
    """

    by_gpu: Mapping[int, Mapping[str, int]]
    excess: Mapping[str, int]
    why_not_proven: str | None = None


def fit_together(fleet: Fleet, requested: Mapping[str, int]) -> Joint:
    """Fit as many of the requested vGPUs as possible on the GPUs together."""
    wanted = {profile: count for profile, count in sorted(requested.items()) if count}
    classes = ProfileClasses(fleet, wanted)
    wanted_by_class = classes.count(wanted)
    joint = _in_simple_order(fleet, wanted_by_class)
    if joint.why_not_proven is not None:
        try:
            joint = _solve(fleet, wanted_by_class)
        except SolverFailed as missing:
            joint = replace(joint, why_not_proven=f"{missing}: {missing.hint}")
    return _by_profile(joint, classes, wanted)


def total_left(fleet: Fleet, profile: str) -> int:
    """Return how many more of one profile fit on all GPUs together."""
    return sum(count * fleet.kind_of(group).count_remaining(group.state, profile) for group, count in fleet.groups())


def largest_mib(fleet: Fleet, profile: str) -> int:
    """Return the framebuffer of a profile in MiB, on the GPU on which it is largest; 0 where no GPU has the profile."""
    return max((kind.sizes.get(profile, 0) for kind in fleet.kinds), default=0)


def none_beside(fleet: Fleet, profile: str, others: Sequence[str]) -> tuple[str, ...]:
    """Return of which other profiles not one fits once as many of a profile are there as fit."""
    full = {group: fleet.kind_of(group).count_remaining(group.state, profile) for group, _ in fleet.groups()}

    def fits(other: str) -> bool:
        return any(fleet.kind_of(group).fits(group.state, {profile: n, other: 1}) for group, n in full.items())

    return tuple(other for other in others if other != profile and not fits(other))


def _in_simple_order(fleet: Fleet, wanted: Mapping[str, int]) -> Joint:
    """Place the largest first, each on the first GPU that takes it.

    That proves what fits; and what does not, where there is room for one class at most.
    """
    with_room = sum(1 for profile in wanted if total_left(fleet, profile))
    fleet = copy_fleet(fleet)
    first_fit = FirstFit()
    by_gpu: dict[int, Counter[str]] = {}
    excess = Counter(wanted)
    for profile in sorted(wanted, key=lambda p: (-largest_mib(fleet, p), p)):
        while excess[profile] and (choice := first_fit.choose(fleet, profile)) is not None:
            fleet.add_vgpu(choice.gpu, choice.placement)
            by_gpu.setdefault(choice.gpu, Counter())[profile] += 1
            excess[profile] -= 1
    return Joint(by_gpu, +excess, None if not +excess or with_room < 2 else "another order may place more")


def _solve(fleet: Fleet, wanted: Mapping[str, int], bound: float = inf, apart: Collection[int] = ()) -> Joint:
    """Place as many as possible; of equally many those with the most framebuffer.

    `bound`: no solution is better. `apart`: see `FleetProgram`.
    """
    program = FleetProgram(fleet, (), wanted, apart)
    mib = {profile: largest_mib(fleet, profile) for profile in wanted}
    total_mib = sum(mib[profile] * count for profile, count in wanted.items())
    objective: dict[int, float] = {}
    for profile, count in wanted.items():
        columns = program.columns_of(profile)
        program.add_row(dict.fromkeys(columns, 1), upper=count)
        objective |= dict.fromkeys(columns, 1 + mib[profile] / (2 * total_mib + 1))
    solution = program.maximize(objective, bound)
    placed = program.spread(solution) if solution is not None else None
    if placed is None and solution is not None and not apart:
        return _solve(fleet, wanted, solution.objective if solution.is_proven else inf, range(len(fleet)))
    by_gpu: dict[int, Counter[str]] = {}
    for vgpu in placed or ():
        by_gpu.setdefault(vgpu.gpu, Counter())[vgpu.profile] += 1
    excess = Counter(wanted) - sum(by_gpu.values(), Counter())
    is_proven = placed is not None and solution is not None and solution.is_proven
    return Joint(by_gpu, excess, None if is_proven else f"no proof was found in {TIME_LIMIT_SECONDS:.0f} seconds")


def _by_profile(joint: Joint, classes: ProfileClasses, wanted: Mapping[str, int]) -> Joint:
    """Hand out what each class got to its profiles, in the order of their names."""
    left = Counter(wanted)
    by_gpu: dict[int, dict[str, int]] = {}
    for gpu, counts in sorted(joint.by_gpu.items()):
        rest = Counter(counts)
        for profile in wanted:
            number = min(left[profile], rest[classes.class_of[profile]])
            if number:
                by_gpu.setdefault(gpu, {})[profile] = number
                left[profile] -= number
                rest[classes.class_of[profile]] -= number
    return Joint(by_gpu, dict(+left), joint.why_not_proven)


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
