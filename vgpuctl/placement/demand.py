# SPDX-License-Identifier: Apache-2.0
"""Which profile of each kind of GPU serves an ask, and kinds that know asks by one name on every model."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

from vgpuctl.model.profile_name import parse_name, without_model
from vgpuctl.placement.kind import Filling, Kind, Move, State
from vgpuctl.placement.requests import WHOLE_GPU, Ask
from vgpuctl.value import Value, replace

_SERIES = {"C": 0, "Q": 1}
"""What a share of a GPU is asked for by: compute first."""

Called = Callable[[str], bool]
"""Says whether the GPUs of a kind are called so: by their model, or words of it."""


class Demand(Value):
    """What a request wants on each kind of GPU.

    `profiles`: the own profile of each kind in the fleet's order, None where it has none that will do. `restricted`:
    False when models were asked for and none of them is in the fleet, so that any will do.
    """

    name: str
    profiles: tuple[str | None, ...]
    restricted: bool = True


def series(profile: str) -> str:
    """Return the letter of an NVIDIA profile's name, with its model or without; "" of another's."""
    name = parse_name(profile)
    return name.series if name is not None else ""


def slices(profile: str) -> int:
    """Return the compute slices of a MIG-backed profile by its name, with its model or without; 0 of any other."""
    name = parse_name(profile)
    return name.slices if name is not None else 0


def near(text: str, kinds: Sequence[Kind]) -> list[str]:
    """Return the names of profiles that somebody may have meant, the nearest first."""
    own = {profile for kind in kinds for profile in kind.sizes}
    return difflib.get_close_matches(text, sorted(own | {without_model(p) for p in own}), n=3, cutoff=0.5)


def demands(asks: Iterable[Ask], kinds: Sequence[Kind], called: Sequence[Called]) -> dict[Ask, Demand | None]:
    """Return what serves each ask, see `demand`; two that are served otherwise have different names."""
    found: dict[Ask, Demand | None] = {}
    names: dict[str, tuple[str | None, ...]] = {}
    for ask in dict.fromkeys(asks):
        made = demand(ask, kinds, called)
        if made is not None and names.setdefault(made.name, made.profiles) != made.profiles:
            made = replace(made, name=f"{made.name} on {'|'.join(ask.models)}")
            names[made.name] = made.profiles
        found[ask] = made
    return found


def demand(ask: Ask, kinds: Sequence[Kind], called: Sequence[Called]) -> Demand | None:
    """Return what serves an ask; None when no kind has such a profile. `called`: one for each kind."""
    known = [any(it(model) for model in ask.models) for it in called]
    restricted = not ask.models or any(known)
    may = [True] * len(kinds) if not ask.models or not restricted else known
    if ask.profile is None:
        found = [_covering(kind, ask.gpu_milli) if it else None for kind, it in zip(kinds, may, strict=True)]
    else:
        asked = ask.profile.lower().split("|")
        own = any(name.lower() in asked for kind in kinds for name in kind.sizes)
        found = [_named(kind, asked, own=own) if it else None for kind, it in zip(kinds, may, strict=True)]
    if not any(found):
        return None
    return Demand(_name(found, kinds), tuple(found), restricted)


def _named(kind: Kind, asked: Sequence[str], *, own: bool) -> str | None:
    """Return the first profile of a kind that is asked for, by its own name if any kind has such a one.

    `asked` in small letters: capitals make no difference.
    """
    every = sorted(kind.sizes, reverse=True)
    names = {(profile if own else without_model(profile)).lower(): profile for profile in every}
    return next((names[name] for name in asked if name in names), None)


def _covering(kind: Kind, gpu_milli: int) -> str | None:
    """Return the smallest profile that has this share of the framebuffer; of equal ones that for compute."""
    enough = [p for p, mib in kind.sizes.items() if mib * WHOLE_GPU >= gpu_milli * kind.framebuffer_mib]
    return min(enough, key=lambda p: (kind.sizes[p], _SERIES.get(series(p), 2), p), default=None)


def _name(found: Sequence[str | None], kinds: Sequence[Kind]) -> str:
    """Return a name that asks for the same again: short when every kind that has such a profile serves by it."""
    own = sorted({profile for profile in found if profile is not None})
    (short, *others) = {without_model(profile) for profile in own}
    if not others:
        again = [_named(kind, [short.lower()], own=any(short in k.sizes for k in kinds)) for kind in kinds]
        if again == list(found):
            return own[0] if len(own) == 1 else short
    return "|".join(own)


def serving(kinds: Sequence[Kind], demands: Sequence[Demand]) -> tuple[Kind, ...]:
    """Return the kinds with the demands' names for their profiles, and no others."""
    return tuple(
        _Serving(kind, {d.name: own for d in demands if (own := d.profiles[number]) is not None})
        for number, kind in enumerate(kinds)
    )


class _Serving:
    """A kind with other names for its profiles. See `Kind` for what each method is."""

    def __init__(self, kind: Kind, own: Mapping[str, str]) -> None:
        self.name = kind.name
        self.framebuffer_mib = kind.framebuffer_mib
        self.sizes = {name: kind.sizes[profile] for name, profile in own.items()}
        self.empty: State = kind.empty
        self._kind = kind
        self._own = dict(own)

    def takes(self, profile: str) -> Hashable:
        own = self._own.get(profile)
        return None if own is None else self._kind.takes(own)

    def moves(self, state: State, profile: str) -> tuple[Move, ...]:
        own = self._own.get(profile)
        return () if own is None else self._kind.moves(state, own)

    def everywhere(self, state: State, profile: str) -> tuple[Move, ...]:
        own = self._own.get(profile)
        return () if own is None else self._kind.everywhere(state, own)

    def at(self, state: State, profile: str, place: int) -> State | None:
        own = self._own.get(profile)
        return None if own is None else self._kind.at(state, own, place)

    def without(self, state: State, profile: str, place: int) -> State:
        return self._kind.without(state, self._own[profile], place)

    def left(self, state: State, profile: str) -> int:
        own = self._own.get(profile)
        return 0 if own is None else self._kind.left(state, own)

    def fits(self, state: State, wanted: Mapping[str, int]) -> bool:
        some = {profile: number for profile, number in wanted.items() if number}
        if any(profile not in self._own for profile in some):
            return False
        sums: dict[str, int] = {}
        for profile, number in some.items():
            sums[self._own[profile]] = sums.get(self._own[profile], 0) + number
        return self._kind.fits(state, sums)

    def filling(self, worth: Mapping[str, float]) -> Filling:
        best: dict[str, str] = {}
        for name, own in self._own.items():
            if worth.get(name, 0) > worth.get(best.get(own, ""), 0):
                best[own] = name
        return _Filling(self._kind.filling({own: worth[name] for own, name in best.items()}), best)


class _Filling:
    """A filling with other names. See `Filling` for what each method is."""

    def __init__(self, filling: Filling, name_of: Mapping[str, str]) -> None:
        self._filling = filling
        self._name_of = name_of

    def worth(self, state: State) -> float:
        return self._filling.worth(state)

    def counts(self, state: State) -> Mapping[str, int]:
        return {self._name_of[own]: number for own, number in self._filling.counts(state).items()}
