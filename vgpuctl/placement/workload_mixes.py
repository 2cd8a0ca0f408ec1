# SPDX-License-Identifier: Apache-2.0
"""The profiles of generated requests, in the names of a fleet's own profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vgpuctl.errors import NotFound
from vgpuctl.model.profile_name import strip_board
from vgpuctl.placement.gpu_kind import GpuKind
from vgpuctl.placement.profile_resolution import (
    ModelMatcher,
    ResolvedProfile,
    compute_slices_of,
    resolve_selector,
    series_of,
    suggest_profiles,
)
from vgpuctl.placement.trace_request import WHOLE_GPU, ProfileSelector
from vgpuctl.placement.workload import WorkloadPart

DESKTOP_PERCENTS = {(1, "B"): 40, (2, "B"): 35, (4, "Q"): 20, (8, "Q"): 5}
"""Desktops by framebuffer in GiB and series, in percent."""
AI_PERCENTS = {125: 40, 250: 30, 500: 20, WHOLE_GPU: 10}
"""AI by thousandths of a GPU, in percent: notebooks, small and large inference, training."""
AI_HOURS = {125: 2.0, 250: 6.0, 500: 12.0, WHOLE_GPU: 8.0}
"""The median lifetime of each."""
MIG_PERCENTS = {1: 40, 2: 25, 3: 20, 4: 5, 7: 10}
"""MIG by compute slices, in percent."""
MEMORY_SLICES = 8
"""The most that a GPU with MIG has."""
DESKTOP_HOURS, MIG_HOURS = 8.0, 12.0
"""Mean lifetimes."""


def desktop_mix(kinds: Sequence[GpuKind], model_matchers: Sequence[ModelMatcher]) -> tuple[WorkloadPart, ...]:
    """Return the mix of desktops: for each the smallest profile that is large enough, in its series if possible.

    Raises:
        NotFound: no profile is large enough.
    """
    parts = []
    for (gib, letter), weight in DESKTOP_PERCENTS.items():
        large_enough = [
            offer for offer in _list_profiles(kinds) if compute_slices_of(offer[1]) == 0 and offer[0] >= gib * 1024
        ]
        if not large_enough:
            raise _not_offered_error(kinds, f"a desktop of {gib} GiB")
        same_series = [offer for offer in large_enough if series_of(offer[1]) == letter] or large_enough
        parts.append(_make_part(ProfileSelector(min(same_series)[1]), weight, DESKTOP_HOURS, kinds, model_matchers))
    return tuple(parts)


def ai_mix(kinds: Sequence[GpuKind], model_matchers: Sequence[ModelMatcher]) -> tuple[WorkloadPart, ...]:
    """Return the mix of AI: shares of a GPU, on each model by the smallest profile that covers it.

    Raises:
        NotFound: no profile covers a share.
    """
    return tuple(
        _make_part(ProfileSelector(gpu_milli=gpu_milli), weight, AI_HOURS[gpu_milli], kinds, model_matchers)
        for gpu_milli, weight in AI_PERCENTS.items()
    )


def mig_mix(kinds: Sequence[GpuKind], model_matchers: Sequence[ModelMatcher]) -> tuple[WorkloadPart, ...]:
    """Return the mix of MIG: a whole GPU instance with this many slices, or if there is none the next larger.

    Raises:
        NotFound: the fleet has no MIG.
    """
    offers = [(compute_slices_of(name), mib, name) for mib, name in _list_profiles(kinds) if compute_slices_of(name)]
    if not offers:
        raise _not_offered_error(kinds, "a GPU instance", "GPUs with MIG on do, with GPU instances or --mig-on-demand")
    parts = []
    for wanted_slices, weight in MIG_PERCENTS.items():
        slices = min(
            (offered_slices for offered_slices, _, _ in offers if offered_slices >= wanted_slices),
            default=max(offered_slices for offered_slices, _, _ in offers),
        )
        parts.append(
            _make_part(
                ProfileSelector(_smallest_whole_instance(kinds, slices)), weight, MIG_HOURS, kinds, model_matchers
            )
        )
    return tuple(parts)


def custom_mix(
    weights: Mapping[str, float], kinds: Sequence[GpuKind], model_matchers: Sequence[ModelMatcher], hours: float
) -> tuple[WorkloadPart, ...]:
    """Return a mix of the profiles in the request, with their mean lifetime.

    Raises:
        NotFound: the fleet does not have one.
    """
    return tuple(
        _make_part(ProfileSelector(profile), weight, hours, kinds, model_matchers)
        for profile, weight in weights.items()
    )


def require_profile(
    selector: ProfileSelector, kinds: Sequence[GpuKind], model_matchers: Sequence[ModelMatcher]
) -> ResolvedProfile:
    """Return the profiles that serve a selector.

    Raises:
        NotFound: no GPU in the fleet serves it.
    """
    resolved = resolve_selector(selector, kinds, model_matchers)
    if resolved is None:
        raise _not_offered_error(kinds, *describe_unserved(selector, kinds))
    return resolved


def describe_unserved(selector: ProfileSelector, kinds: Sequence[GpuKind]) -> tuple[str, str]:
    """Return what no GPU of a fleet offers, and how to fix it."""
    on_models = f" on {' or '.join(selector.models)}" if selector.models else ""
    if selector.profile is None:
        return f"{selector.gpu_milli} thousandths of a GPU{on_models}", "simulate on GPUs with larger profiles"
    similar = suggest_profiles(selector.profile, kinds)
    hint = (
        f"did you mean {', '.join(similar)}?" if similar else "vgpuctl list-profiles --all shows what the host offers"
    )
    return f"{selector.profile}{on_models}", hint


def _make_part(
    selector: ProfileSelector,
    weight: float,
    hours: float,
    kinds: Sequence[GpuKind],
    model_matchers: Sequence[ModelMatcher],
) -> WorkloadPart:
    resolved = require_profile(selector, kinds, model_matchers)
    mib = min(
        kind.sizes[profile] for kind, profile in zip(kinds, resolved.profiles, strict=True) if profile is not None
    )
    return WorkloadPart(ProfileSelector(resolved.name), weight, mib, hours)


def _list_profiles(kinds: Sequence[GpuKind]) -> list[tuple[int, str]]:
    """Return every profile by its name without the model, with its framebuffer where that is smallest."""
    smallest_mib: dict[str, int] = {}
    for kind in kinds:
        for profile, mib in kind.sizes.items():
            name = strip_board(profile)
            smallest_mib[name] = min(mib, smallest_mib.get(name, mib))
    return [(mib, name) for name, mib in smallest_mib.items()]


def _smallest_whole_instance(kinds: Sequence[GpuKind], slices: int) -> str:
    """Return the profiles that use all of the smallest GPU instance with this many slices, one for each kind."""
    profiles = set()
    for kind in kinds:
        candidates = [
            profile
            for profile in kind.sizes
            if compute_slices_of(strip_board(profile)) == slices and not profile.endswith("ME")
        ]
        whole = [profile for profile in candidates if _is_whole_instance(kind, profile, slices)] or candidates
        if whole:
            profiles.add(min(whole, key=lambda profile: (kind.sizes[profile], series_of(profile) != "C", profile)))
    return "|".join(sorted(profiles))


def _is_whole_instance(kind: GpuKind, profile: str, slices: int) -> bool:
    """Return whether a profile has its share of the memory, and no instance takes two: there are 7 slices or 4."""
    has_memory_share = kind.sizes[profile] * MEMORY_SLICES >= kind.framebuffer_mib * slices
    return has_memory_share and kind.count_remaining(kind.empty, profile) * slices < MEMORY_SLICES


def _not_offered_error(kinds: Sequence[GpuKind], request: str, hint: str | None = None) -> NotFound:
    names = ", ".join(dict.fromkeys(kind.name for kind in kinds))
    return NotFound(f"no GPU of {names} offers {request}", hint=hint)
