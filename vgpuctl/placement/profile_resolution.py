# SPDX-License-Identifier: Apache-2.0
"""Which profile of each kind of GPU serves a selector, and kinds that use one profile name for every model."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

from vgpuctl.model.profile_name import parse_profile_name, strip_board
from vgpuctl.placement.gpu_kind import Filling, GpuKind, Placement, State
from vgpuctl.placement.trace_request import WHOLE_GPU, ProfileSelector
from vgpuctl.value import Value, replace

_SERIES_RANK = {"C": 0, "Q": 1}
"""The preferred series for a share of a GPU: compute first."""

ModelMatcher = Callable[[str], bool]
"""Returns whether the GPUs of a kind have this model name, or words of it."""


class ResolvedProfile(Value):
    """The profile that serves a selector on each kind of GPU.

    `profiles`: the own profile of each kind in the fleet's order, None where none is suitable. `is_model_known`: False
    when the selector names models and none of them is in the fleet, so that any model will do.
    """

    name: str
    profiles: tuple[str | None, ...]
    is_model_known: bool = True


def series_of(profile: str) -> str:
    """Return the series letter of an NVIDIA profile's name, with or without its model; "" for other vendors."""
    name = parse_profile_name(profile)
    return name.series if name is not None else ""


def compute_slices_of(profile: str) -> int:
    """Return the compute slices of a MIG-backed profile by its name, with or without its model; 0 for any other."""
    name = parse_profile_name(profile)
    return name.mig_slices if name is not None else 0


def suggest_profiles(text: str, kinds: Sequence[GpuKind]) -> list[str]:
    """Return similar profile names, the most similar first."""
    profiles = {profile for kind in kinds for profile in kind.sizes}
    return difflib.get_close_matches(text, sorted(profiles | {strip_board(p) for p in profiles}), n=3, cutoff=0.5)


def resolve_selectors(
    selectors: Iterable[ProfileSelector], kinds: Sequence[GpuKind], model_matchers: Sequence[ModelMatcher]
) -> dict[ProfileSelector, ResolvedProfile | None]:
    """Resolve each selector, see `resolve_selector`; two with different results get different names."""
    resolved_by_selector: dict[ProfileSelector, ResolvedProfile | None] = {}
    names: dict[str, tuple[str | None, ...]] = {}
    for selector in dict.fromkeys(selectors):
        resolved = resolve_selector(selector, kinds, model_matchers)
        if resolved is not None and names.setdefault(resolved.name, resolved.profiles) != resolved.profiles:
            resolved = replace(resolved, name=f"{resolved.name} on {'|'.join(selector.models)}")
            names[resolved.name] = resolved.profiles
        resolved_by_selector[selector] = resolved
    return resolved_by_selector


def resolve_selector(
    selector: ProfileSelector, kinds: Sequence[GpuKind], model_matchers: Sequence[ModelMatcher]
) -> ResolvedProfile | None:
    """Return the profiles that serve a selector; None when no kind has one. `model_matchers`: one for each kind."""
    is_named = [any(is_match(model) for model in selector.models) for is_match in model_matchers]
    restricted = not selector.models or any(is_named)
    allowed = [True] * len(kinds) if not selector.models or not restricted else is_named
    if selector.profile is None:
        profiles = [
            _smallest_profile(kind, selector.gpu_milli) if is_match else None
            for kind, is_match in zip(kinds, allowed, strict=True)
        ]
    else:
        requested = selector.profile.lower().split("|")
        uses_own_names = any(name.lower() in requested for kind in kinds for name in kind.sizes)
        profiles = [
            _find_named_profile(kind, requested, use_own_names=uses_own_names) if is_match else None
            for kind, is_match in zip(kinds, allowed, strict=True)
        ]
    if not any(profiles):
        return None
    return ResolvedProfile(_common_name(profiles, kinds), tuple(profiles), restricted)


def _find_named_profile(kind: GpuKind, requested: Sequence[str], *, use_own_names: bool) -> str | None:
    """Return the first requested profile that a kind has, by its own name if any kind has such a name.

    `requested` is in lower case: case does not matter.
    """
    profiles = sorted(kind.sizes, reverse=True)
    names = {(profile if use_own_names else strip_board(profile)).lower(): profile for profile in profiles}
    return next((names[name] for name in requested if name in names), None)


def _smallest_profile(kind: GpuKind, gpu_milli: int) -> str | None:
    """Return the smallest profile that has this share of the framebuffer; of equal ones the one for compute."""
    large_enough = [
        profile for profile, mib in kind.sizes.items() if mib * WHOLE_GPU >= gpu_milli * kind.framebuffer_mib
    ]
    return min(
        large_enough,
        key=lambda profile: (kind.sizes[profile], _SERIES_RANK.get(series_of(profile), 2), profile),
        default=None,
    )


def _common_name(profiles: Sequence[str | None], kinds: Sequence[GpuKind]) -> str:
    """Return a name that resolves to the same profiles, without the model if that resolves to them on every kind."""
    names = sorted({profile for profile in profiles if profile is not None})
    (short, *others) = {strip_board(profile) for profile in names}
    if not others:
        resolved_again = [
            _find_named_profile(kind, [short.lower()], use_own_names=any(short in k.sizes for k in kinds))
            for kind in kinds
        ]
        if resolved_again == list(profiles):
            return names[0] if len(names) == 1 else short
    return "|".join(names)


def rename_profiles(kinds: Sequence[GpuKind], resolved_profiles: Sequence[ResolvedProfile]) -> tuple[GpuKind, ...]:
    """Return the kinds with only the resolved profiles, under their new names."""
    return tuple(
        _RenamedKind(
            kind,
            {
                resolved.name: own_profile
                for resolved in resolved_profiles
                if (own_profile := resolved.profiles[kind_number]) is not None
            },
        )
        for kind_number, kind in enumerate(kinds)
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

    def fits(self, state: State, requested: Mapping[str, int]) -> bool:
        counts = {profile: count for profile, count in requested.items() if count}
        if any(profile not in self._own_by_name for profile in counts):
            return False
        sums: dict[str, int] = {}
        for profile, count in counts.items():
            sums[self._own_by_name[profile]] = sums.get(self._own_by_name[profile], 0) + count
        return self._kind.fits(state, sums)

    def best_filling(self, values: Mapping[str, float]) -> Filling:
        best: dict[str, str] = {}
        for name, own_profile in self._own_by_name.items():
            if values.get(name, 0) > values.get(best.get(own_profile, ""), 0):
                best[own_profile] = name
        return _RenamedFilling(
            self._kind.best_filling({own_profile: values[name] for own_profile, name in best.items()}), best
        )


class _RenamedFilling:
    """A filling with other names. See `Filling` for each method."""

    def __init__(self, filling: Filling, name_of: Mapping[str, str]) -> None:
        self._filling = filling
        self._name_of = name_of

    def value(self, state: State) -> float:
        return self._filling.value(state)

    def counts(self, state: State) -> Mapping[str, int]:
        return {self._name_of[own_profile]: count for own_profile, count in self._filling.counts(state).items()}
