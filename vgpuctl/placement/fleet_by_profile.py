# SPDX-License-Identifier: Apache-2.0
"""A fleet whose profiles have the names that the request uses: `2B` is one profile, whatever GPU model serves it."""

from __future__ import annotations

from collections.abc import Mapping

from vgpuctl.model.gpu import VgpuType
from vgpuctl.model.profile_name import strip_board
from vgpuctl.placement.fleet import Fleet
from vgpuctl.placement.fleet_state import FleetState
from vgpuctl.placement.profile_resolution import rename_profiles, resolve_profile
from vgpuctl.value import EMPTY_MAPPING, Value


class ProfileFleet(Value):
    """`fleet`: the same GPUs with the same numbers. `name_by_text`: a requested profile's name in this fleet.

    `profiles_by_name`: for each name in the fleet, the GPUs' own profiles that serve it, where their names differ.
    """

    fleet: Fleet
    name_by_text: Mapping[str, str]
    profiles_by_name: Mapping[str, frozenset[str]] = EMPTY_MAPPING

    def weights_by_name(self, profile_weights: Mapping[str, float]) -> Mapping[str, float]:
        """Convert weights of the GPUs' own profiles into weights of the names in this fleet."""
        if not self.profiles_by_name:
            return profile_weights
        return {
            name: sum(profile_weights.get(profile, 0) for profile in sorted(profiles))
            for name, profiles in self.profiles_by_name.items()
        }


def fleet_by_profile(fleet_state: FleetState, types_by_text: Mapping[str, Mapping[str, VgpuType]]) -> ProfileFleet:
    """Return the fleet as seen by these requests. `types_by_text`: for each requested text, the type on each GPU.

    If every text names one profile, the fleet stays as it is.
    """
    profiles_by_text = {text: sorted({t.profile for t in types.values()}) for text, types in types_by_text.items()}
    if all(len(profiles) == 1 for profiles in profiles_by_text.values()):
        return ProfileFleet(fleet_state.fleet, {text: profiles[0] for text, profiles in profiles_by_text.items()})
    kinds = fleet_state.fleet.kinds
    board_free_names = sorted({strip_board(profile) for kind in kinds for profile in kind.sizes})
    joined_names = {text: "|".join(profiles) for text, profiles in profiles_by_text.items()}
    demands = {name: resolve_profile(name, kinds) for name in [*joined_names.values(), *board_free_names]}
    demand_by_name = {d.name: d for d in demands.values() if d is not None}
    numbers = range(len(fleet_state.fleet))
    fleet = Fleet(
        rename_profiles(kinds, list(demand_by_name.values())),
        [fleet_state.fleet.group_of(n) for n in numbers],
        [fleet_state.fleet.vgpu_count(n) for n in numbers],
    )
    names = {text: d.name if (d := demands[joined]) is not None else text for text, joined in joined_names.items()}
    return ProfileFleet(
        fleet, names, {name: frozenset(p for p in d.profiles if p) for name, d in demand_by_name.items()}
    )
