# SPDX-License-Identifier: Apache-2.0
"""Observed GPUs as a fleet, and the same fleet under the names of profiles that a request uses.

GPUs that are divided alike are of one kind, and only what is known for sure counts.

A request names a profile by its own name (`A16-2B`), by the part without the model (`2B`), which any model may provide,
or several separated by `|`: a GPU provides the first that it has. So `2B` is one profile, whatever GPU model serves it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence, Set

from vgpuctl.gpu.division import AllocatedSlot, Division, GpuNumbers
from vgpuctl.gpu.gpu_kind import Columns, GpuKind, Placement, State
from vgpuctl.gpu.mdev_pool import MdevPool
from vgpuctl.gpu.room import divide
from vgpuctl.model.address import address_sort_key
from vgpuctl.model.gpu import Gpu, Vgpu, VgpuType
from vgpuctl.model.profile_name import strip_board
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.placement.constraints import why_profile_forbidden, why_unschedulable
from vgpuctl.placement.fleet import Fleet, GpuGroup
from vgpuctl.solver import Program
from vgpuctl.value import Value


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
