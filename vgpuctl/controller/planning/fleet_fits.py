# SPDX-License-Identifier: Apache-2.0
"""How many more desktops of a pool fit, on each host, and why a host takes none.

What a host offers of a profile is its own count of that profile alone, less the desktops of it that are on their way
there. Other profiles share its GPUs: a desktop of another profile on its way takes at most one whole GPU from this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vgpuctl.config.name_patterns import natural_key
from vgpuctl.controller.model import FleetHost, HostImage, Offer, PoolSpec
from vgpuctl.controller.planning.host_choice import HostRoom, matches_profile, wanted_profiles, why_no_desktops
from vgpuctl.value import EMPTY_MAPPING, Value


class HostFits(Value):
    """How many more desktops fit on a host; `at_least`: whatever those on their way there take.

    `profiles`: for each profile that they can have, how many fit if all have it. `why`: why none; empty if some do.
    """

    host: FleetHost
    free: int
    at_least: int
    profiles: Mapping[str, int]
    why: str = ""


def count_fits(
    spec: PoolSpec,
    hosts: Iterable[FleetHost],
    offers: Iterable[Offer],
    images_on: Mapping[str, HostImage],
    on_their_way: Mapping[str, Mapping[str, int]],
    now: float,
) -> tuple[HostFits, ...]:
    """Return how many more desktops fit on each host, by name.

    `images_on`: the pool's image on each host. `on_their_way`: for each host, how many desktops of each profile were
    placed there and are not made yet.
    """
    by_host: dict[str, list[Offer]] = {}
    for offer in offers:
        by_host.setdefault(offer.host_id, []).append(offer)
    return tuple(
        _fits_on(spec, host, by_host.get(host.id, []), images_on, on_their_way.get(host.id, EMPTY_MAPPING), now)
        for host in sorted(hosts, key=lambda host: natural_key(host.name))
    )


def _fits_on(
    spec: PoolSpec,
    host: FleetHost,
    offers: Sequence[Offer],
    images_on: Mapping[str, HostImage],
    on_their_way: Mapping[str, int],
    now: float,
) -> HostFits:
    why = why_no_desktops(host, spec, images_on, HostRoom(), now)
    if why is not None:
        return HostFits(host, 0, 0, {}, why)
    profiles: dict[str, int] = {}
    best = (0, 0)
    for wanted in wanted_profiles(spec):  # they share GPUs, so that their numbers do not add up
        fitting = [offer for offer in offers if matches_profile(offer.profile, wanted)]
        profiles |= {offer.profile: offer.free for offer in fitting}
        others = sum(on_their_way.values()) - sum(on_their_way.get(offer.profile, 0) for offer in fitting)
        most = max((offer.total for offer in fitting), default=0)
        free = sum(offer.free for offer in fitting)
        best = max(best, (free, max(0, free - others * most)))
    words = " or ".join(wanted_profiles(spec))
    none = f"no {words} is free" if profiles else f"it offers no {words}"
    return HostFits(host, *best, profiles, "" if best[0] else none)
