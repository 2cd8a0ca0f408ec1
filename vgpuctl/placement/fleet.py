# SPDX-License-Identifier: Apache-2.0
"""GPUs as a fleet: those of one kind and state are interchangeable, so a policy tries one GPU of each such group.

`build_fleet_state` makes it of observed GPUs: those that are divided alike are of one kind, and only what is known for
sure counts. Some of its vGPUs may move: a migration is a stop and start, one after the other.

`fleet_by_profile` is the same fleet under the names of profiles that a request uses. A request names a profile by its
own name (`A16-2B`), by the part without the model (`2B`), which any model may provide, or several separated by `|`: a
GPU provides the first that it has. So `2B` is one profile, whatever GPU model serves it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from vgpuctl.gpu.division import AllocatedSlot, Division, GpuNumbers
from vgpuctl.gpu.gpu_kind import Columns, GpuKind, Placement, State
from vgpuctl.gpu.mdev_pool import MdevPool
from vgpuctl.gpu.room import divide
from vgpuctl.model.gpu import Gpu, Vgpu, VgpuType
from vgpuctl.model.names import address_sort_key, strip_board
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.placement.constraints import why_profile_forbidden, why_unschedulable
from vgpuctl.solver import Program
from vgpuctl.value import Value

FreeFunctions = Mapping[int, int]
"""How many functions are free on a GPU, by its number; a GPU that is not in it has enough."""


class GpuGroup(NamedTuple):
    """What the GPUs of a group share: the index of their kind in `Fleet.kinds`, and their state."""

    kind_index: int
    state: State


class PlacementChoice(NamedTuple):
    """One possibility for the next vGPU: on this GPU, which is in this group, with this placement."""

    gpu: int
    group: GpuGroup
    placement: Placement


class Fleet:
    """A mutable set of GPUs, numbered in the order of their addresses."""

    def __init__(self, kinds: Sequence[GpuKind], gpus: Sequence[GpuGroup], vgpu_counts: Sequence[int] = ()) -> None:
        """`vgpu_counts`: how many vGPUs each GPU has already; none by default."""
        self.kinds = tuple(kinds)
        self._group_of = list(gpus)
        self._vgpu_counts = list(vgpu_counts) or [0] * len(self._group_of)
        self._members: dict[GpuGroup, list[int]] = {}
        self._group_sizes: dict[GpuGroup, int] = {}
        for gpu, group in enumerate(gpus):
            self._members.setdefault(group, []).append(gpu)
        for group, members in self._members.items():
            heapify(members)
            self._group_sizes[group] = len(members)

    def __len__(self) -> int:
        return len(self._group_of)

    def groups(self) -> Iterator[tuple[GpuGroup, int]]:
        """Return every group that has GPUs, and how many. Do not change the fleet while you iterate."""
        return iter(self._group_sizes.items())

    def group_of(self, gpu: int) -> GpuGroup:
        """Return the current group of a GPU."""
        return self._group_of[gpu]

    def vgpu_count(self, gpu: int) -> int:
        """Return how many vGPUs a GPU has now."""
        return self._vgpu_counts[gpu]

    def kind_of(self, group: GpuGroup) -> GpuKind:
        """Return the kind of the GPUs in a group."""
        return self.kinds[group.kind_index]

    def first_gpu(self, group: GpuGroup) -> int:
        """Return the GPU with the lowest number in a group that is not empty."""
        members = self._members[group]
        while self._group_of[members[0]] != group:  # GPUs that left the group stay in its heap until they are first
            heappop(members)
        return members[0]

    def add_vgpu(self, gpu: int, placement: Placement) -> None:
        """Place a vGPU on a GPU."""
        self._vgpu_counts[gpu] += 1
        self._change_group(gpu, GpuGroup(self._group_of[gpu].kind_index, placement.state_after))

    def remove_vgpu(self, gpu: int, profile: str, place: int) -> None:
        """Remove a vGPU from a GPU. `place`: the place of its `Placement`."""
        group = self._group_of[gpu]
        self._vgpu_counts[gpu] -= 1
        self._change_group(
            gpu, GpuGroup(group.kind_index, self.kinds[group.kind_index].remove(group.state, profile, place))
        )

    def _change_group(self, gpu: int, new: GpuGroup) -> None:
        old = self._group_of[gpu]
        if new == old:
            return
        self._group_sizes[old] -= 1
        if not self._group_sizes[old]:
            del self._group_sizes[old], self._members[old]
        self._group_of[gpu] = new
        self._group_sizes[new] = self._group_sizes.get(new, 0) + 1
        heappush(self._members.setdefault(new, []), gpu)


class PlacedVgpu(NamedTuple):
    """An existing vGPU that may move. `place` is its place as in `Placement.place`."""

    gpu: int
    profile: str
    place: int


class Migration(NamedTuple):
    """One stop and start: which of the existing vGPUs, and where it goes."""

    vgpu_index: int
    gpu: int
    place: int


class Leave(NamedTuple):
    """One of the existing vGPUs gives up its place and waits for its new one; its migration comes later."""

    vgpu_index: int


class MigrationPlan(NamedTuple):
    """`order`: in an order that works. `places`: where the requested vGPUs go afterwards, in request order.

    `is_minimal`: whether it is known that fewer migrations would not do.
    """

    order: tuple[Migration | Leave, ...]
    places: tuple[PlacedVgpu, ...]
    is_minimal: bool = True

    @property
    def waiting(self) -> int:
        """How many vGPUs give up their places before their new ones are free."""
        return sum(isinstance(entry, Leave) for entry in self.order)

    @property
    def migrations(self) -> tuple[Migration, ...]:
        """All migrations in their order."""
        return tuple(entry for entry in self.order if isinstance(entry, Migration))


def copy_fleet(fleet: Fleet) -> Fleet:
    """Return a copy of the fleet that can change independently."""
    gpus = range(len(fleet))
    return Fleet(fleet.kinds, [fleet.group_of(gpu) for gpu in gpus], [fleet.vgpu_count(gpu) for gpu in gpus])


def apply_order(fleet: Fleet, placed: list[PlacedVgpu], order: Sequence[Migration | Leave]) -> None:
    """Remove each vGPU from its place and put it at its new place, in this order; updates `placed` too."""
    left: set[int] = set()
    for entry in order:
        vgpu = placed[entry.vgpu_index]
        if entry.vgpu_index not in left:
            fleet.remove_vgpu(vgpu.gpu, vgpu.profile, vgpu.place)
        left.add(entry.vgpu_index)
        if isinstance(entry, Migration):
            placed[entry.vgpu_index] = PlacedVgpu(entry.gpu, vgpu.profile, entry.place)
            add_placed_vgpu(fleet, placed[entry.vgpu_index])


def add_placed_vgpu(fleet: Fleet, vgpu: PlacedVgpu) -> None:
    """Place a vGPU at a free place."""
    group = fleet.group_of(vgpu.gpu)
    state = fleet.kind_of(group).add(group.state, vgpu.profile, vgpu.place)
    if state is None:
        raise ValueError(f"{vgpu} is not free")
    fleet.add_vgpu(vgpu.gpu, Placement(vgpu.place, state))


class FleetState(Value):
    """GPUs as numbers: GPU number n of `fleet` is `gpus[n]`, with `allocated[n]`; they are in the order of addresses.

    `excluded_gpus`: by address, why a GPU is not among them.
    """

    fleet: Fleet
    gpus: tuple[Gpu, ...]
    allocated: tuple[tuple[AllocatedSlot, ...], ...]
    excluded_gpus: Mapping[str, str]


def build_fleet_state(
    snapshot: Snapshot,
    gpus: Sequence[Gpu],
    vm: str | None = None,
    read_profiles: Set[str] | None = None,
    *,
    assume_largest_pool: bool = False,
) -> FleetState:
    """Return GPUs as numbers, without those closed to a VM of this name or with a stuck kernel write.

    `read_profiles`: see `Division.numbers`. `assume_largest_pool`: where the driver only reports how many of each type
    fit, assume the largest possible pool.
    """
    excluded: dict[str, str] = {}
    vgpus_by_gpu: dict[str, list[Vgpu]] = {}
    for vgpu in snapshot.vgpus:
        vgpus_by_gpu.setdefault(vgpu.gpu, []).append(vgpu)
    kind_numbers: dict[GpuKind, int] = {}
    counted: list[tuple[Gpu, GpuGroup, tuple[AllocatedSlot, ...]]] = []
    for gpu in sorted(gpus, key=lambda g: address_sort_key(g.address)):
        division = divide(gpu, vgpus_by_gpu.get(gpu.address, ()))
        blocked = why_unschedulable(snapshot, gpu, division.mode, vm)
        numbers = _numbers_of(division, read_profiles, assume_largest_pool=assume_largest_pool)
        if blocked is not None or numbers is None:
            excluded[gpu.address] = blocked or "how many fit on it is not known"
            continue
        kind_number = kind_numbers.setdefault(numbers.kind, len(kind_numbers))
        counted.append((gpu, GpuGroup(kind_number, numbers.state), numbers.allocated))
    fleet = Fleet(
        list(kind_numbers),
        [group for _, group, _ in counted],
        [len(vgpus_by_gpu.get(g.address, ())) for g, _, _ in counted],
    )
    return FleetState(fleet, tuple(g for g, _, _ in counted), tuple(c for _, _, c in counted), excluded)


def _numbers_of(division: Division, read_profiles: Set[str] | None, *, assume_largest_pool: bool) -> GpuNumbers | None:
    """Return a GPU as numbers, for the types that host.yaml allows on it."""
    types = [t for t in division.gpu.types if why_profile_forbidden(division.gpu, t) is None]
    if assume_largest_pool and isinstance(division, MdevPool):
        return division.numbers_of_largest_pool(types)
    return division.numbers(types, read_profiles)


class ResolvedProfile(Value):
    """The profile that serves a request on each kind of GPU.

    `name`: a request that resolves to the same profiles. `profiles`: the own profile of each kind in the fleet's order,
    None where none is suitable.
    """

    name: str
    profiles: tuple[str | None, ...]


def resolve_profile(text: str, kinds: Sequence[GpuKind]) -> ResolvedProfile | None:
    """Return the profiles that serve a request; None when no kind has one."""
    profiles = _find_on_each(text, kinds)
    own_names = {profile for profile in profiles if profile is not None}
    if not own_names:
        return None
    short_names = {strip_board(profile) for profile in own_names}
    names = [*own_names] if len(own_names) == 1 else [*short_names] if len(short_names) == 1 else []
    names.append("|".join(sorted(own_names)))
    return ResolvedProfile(next((name for name in names if _find_on_each(name, kinds) == profiles), text), profiles)


def _find_on_each(text: str, kinds: Sequence[GpuKind]) -> tuple[str | None, ...]:
    """Return the profile that each kind provides: by its own name, if any kind has a profile of such a name."""
    requested = text.lower().split("|")
    use_own_names = any(profile.lower() in requested for kind in kinds for profile in kind.sizes)
    return tuple(_find_named_profile(kind, requested, use_own_names=use_own_names) for kind in kinds)


def _find_named_profile(kind: GpuKind, requested: Sequence[str], *, use_own_names: bool) -> str | None:
    """Return the first requested profile that a kind has. `requested` is in lower case: case does not matter."""
    profiles = sorted(kind.sizes, reverse=True)
    names = {(profile if use_own_names else strip_board(profile)).lower(): profile for profile in profiles}
    return next((names[name] for name in requested if name in names), None)


def rename_profiles(kinds: Sequence[GpuKind], resolved_profiles: Sequence[ResolvedProfile]) -> tuple[GpuKind, ...]:
    """Return the kinds with the resolved profiles under their new names, and all profiles without the model's name.

    A policy weighs what is left for every profile of a model, whatever was requested.
    """
    by_name = {resolved.name: resolved for resolved in resolved_profiles}
    for name in sorted({strip_board(profile) for kind in kinds for profile in kind.sizes}):
        resolved = resolve_profile(name, kinds)
        if resolved is not None:
            by_name.setdefault(resolved.name, resolved)
    return tuple(
        _RenamedKind(kind, {name: own for name, r in by_name.items() if (own := r.profiles[number]) is not None})
        for number, kind in enumerate(kinds)
    )


class _RenamedKind:
    """A kind with other names for its profiles. See `GpuKind` for each method."""

    def __init__(self, kind: GpuKind, own_by_name: Mapping[str, str]) -> None:
        self.name = kind.name
        self.framebuffer_mib = kind.framebuffer_mib
        self.sizes = {name: kind.sizes[profile] for name, profile in own_by_name.items()}
        self.empty: State = kind.empty
        self._kind = kind
        self._own_by_name = dict(own_by_name)

    def footprint(self, profile: str) -> Hashable:
        own_profile = self._own_by_name.get(profile)
        return None if own_profile is None else self._kind.footprint(own_profile)

    def placements(self, state: State, profile: str) -> tuple[Placement, ...]:
        own_profile = self._own_by_name.get(profile)
        return () if own_profile is None else self._kind.placements(state, own_profile)

    def all_placements(self, state: State, profile: str) -> tuple[Placement, ...]:
        own_profile = self._own_by_name.get(profile)
        return () if own_profile is None else self._kind.all_placements(state, own_profile)

    def add(self, state: State, profile: str, place: int) -> State | None:
        own_profile = self._own_by_name.get(profile)
        return None if own_profile is None else self._kind.add(state, own_profile, place)

    def remove(self, state: State, profile: str, place: int) -> State:
        return self._kind.remove(state, self._own_by_name[profile], place)

    def count_remaining(self, state: State, profile: str) -> int:
        own_profile = self._own_by_name.get(profile)
        return 0 if own_profile is None else self._kind.count_remaining(state, own_profile)

    def count_each(self, state: State, profiles: tuple[str, ...]) -> list[int]:
        return self._kind.count_each(state, tuple(self._own_by_name[profile] for profile in profiles))

    def sizes_in_use(self, state: State) -> frozenset[int]:
        return self._kind.sizes_in_use(state)

    def fits(self, state: State, requested: Mapping[str, int]) -> bool:
        counts = {profile: count for profile, count in requested.items() if count}
        if any(profile not in self._own_by_name for profile in counts):
            return False
        sums: dict[str, int] = {}
        for profile, count in counts.items():
            sums[self._own_by_name[profile]] = sums.get(self._own_by_name[profile], 0) + count
        return self._kind.fits(state, sums)

    def add_rows(self, program: Program, state: State, columns: Columns, number: int) -> None:
        own: dict[tuple[str, int], list[int]] = {}
        for (profile, place), same in columns.items():
            own.setdefault((self._own_by_name[profile], place), []).extend(same)
        self._kind.add_rows(program, state, own, number)


class ProfileFleet(Value):
    """`fleet`: the same GPUs with the same numbers. `name_by_text`: a requested profile's name in this fleet."""

    fleet: Fleet
    name_by_text: Mapping[str, str]


def fleet_by_profile(fleet_state: FleetState, types_by_text: Mapping[str, Mapping[str, VgpuType]]) -> ProfileFleet:
    """Return the fleet as seen by these requests. `types_by_text`: for each requested text, the type on each GPU.

    If every text names one profile, the fleet stays as it is.
    """
    profiles_by_text = {text: sorted({t.profile for t in types.values()}) for text, types in types_by_text.items()}
    if all(len(profiles) == 1 for profiles in profiles_by_text.values()):
        return ProfileFleet(fleet_state.fleet, {text: profiles[0] for text, profiles in profiles_by_text.items()})
    kinds = fleet_state.fleet.kinds
    resolved = {text: resolve_profile("|".join(profiles), kinds) for text, profiles in profiles_by_text.items()}
    numbers = range(len(fleet_state.fleet))
    fleet = Fleet(
        rename_profiles(kinds, [r for r in resolved.values() if r is not None]),
        [fleet_state.fleet.group_of(n) for n in numbers],
        [fleet_state.fleet.vgpu_count(n) for n in numbers],
    )
    return ProfileFleet(fleet, {text: text if r is None else r.name for text, r in resolved.items()})
