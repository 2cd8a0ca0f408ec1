# SPDX-License-Identifier: Apache-2.0
"""Which profile of each kind of GPU serves a request, and kinds that use one profile name for every model.

A request names a profile by its own name (`A16-2B`), by the part without the model (`2B`), which any model may provide,
or several separated by `|`: a GPU provides the first that it has.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from vgpuctl.gpu.gpu_kind import Columns, GpuKind, Placement, State
from vgpuctl.model.profile_name import strip_board
from vgpuctl.solver import Program
from vgpuctl.value import Value


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
