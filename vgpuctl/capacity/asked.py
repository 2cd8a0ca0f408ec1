# SPDX-License-Identifier: Apache-2.0
"""GPUs in numbers, with their profiles in the words of who asks: `2B` is one profile, whichever model serves it."""

from __future__ import annotations

from collections.abc import Mapping

from vgpuctl.capacity.kinds import Numbers
from vgpuctl.model.gpu import VgpuType
from vgpuctl.model.profile_name import without_model
from vgpuctl.placement.fleet import Fleet
from vgpuctl.value import NOTHING, Value


class Asked(Value):
    """`fleet`: the same GPUs by the same numbers. `names`: by what was typed, its name there.

    `made_of`: by name in the fleet the GPUs' own profiles that serve it, where these have other names.
    """

    fleet: Fleet
    names: Mapping[str, str]
    made_of: Mapping[str, frozenset[str]] = NOTHING

    def weights(self, own: Mapping[str, float]) -> Mapping[str, float]:
        """Return weights of the GPUs' own profiles as weights of the names in the fleet."""
        if not self.made_of:
            return own
        return {name: sum(own.get(profile, 0) for profile in sorted(some)) for name, some in self.made_of.items()}


def as_asked(numbers: Numbers, found: Mapping[str, Mapping[str, VgpuType]]) -> Asked:
    """Return the GPUs as those see them who ask for this. `found`: by what was typed, the type on each GPU.

    Where nobody leaves the model open the fleet is as it was.
    """
    own = {text: sorted({t.profile for t in types.values()}) for text, types in found.items()}
    if all(len(profiles) == 1 for profiles in own.values()):
        return Asked(numbers.fleet, {text: profiles[0] for text, profiles in own.items()})
    from vgpuctl.placement.demand import demands, serving  # a host with GPUs of one model needs none of it
    from vgpuctl.placement.requests import Ask

    kinds = numbers.fleet.kinds
    every = sorted({without_model(profile) for kind in kinds for profile in kind.sizes})
    asks = {text: Ask("|".join(profiles)) for text, profiles in own.items()}
    known = demands([*asks.values(), *map(Ask, every)], kinds, [lambda _: True] * len(kinds))
    served = {d.name: d for d in known.values() if d is not None}
    gpus = range(len(numbers.fleet))
    fleet = Fleet(
        serving(kinds, list(served.values())),
        [numbers.fleet.group_of(n) for n in gpus],
        [numbers.fleet.vgpus(n) for n in gpus],
    )
    names = {text: d.name if (d := known[ask]) is not None else text for text, ask in asks.items()}
    return Asked(fleet, names, {name: frozenset(p for p in d.profiles if p) for name, d in served.items()})
