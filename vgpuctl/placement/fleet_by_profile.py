# SPDX-License-Identifier: Apache-2.0
"""A fleet whose profiles have the names that the request uses: `2B` is one profile, whatever GPU model serves it."""

from __future__ import annotations

from collections.abc import Mapping

from vgpuctl.model.gpu import VgpuType
from vgpuctl.placement.fleet import Fleet
from vgpuctl.placement.fleet_state import FleetState
from vgpuctl.placement.profile_resolution import rename_profiles, resolve_profile
from vgpuctl.value import Value


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
