# SPDX-License-Identifier: Apache-2.0
"""How many more desktops of a pool fit, on each host, and why a host takes none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vgpuctl.config.name_patterns import natural_key
from vgpuctl.config.vm_spec import fill_number
from vgpuctl.controller.model import FleetHost, HostImage, PoolSpec
from vgpuctl.controller.planning.fleet_room import FleetRoom, demand_of
from vgpuctl.controller.planning.host_choice import none_text, why_no_desktops
from vgpuctl.value import Value

MAX_FITS = 10_000
"""Counted on one host at most."""


class HostFits(Value):
    """How many more desktops fit on a host. `profiles`: for each profile that they can have, how many if all have it.

    `why`: why none; empty if some do.
    """

    host: FleetHost
    free: int
    profiles: Mapping[str, int]
    why: str = ""


def count_fits(
    spec: PoolSpec,
    hosts: Iterable[FleetHost],
    room: FleetRoom,
    images_on: Mapping[str, HostImage],
    now: float,
    most: int | None = None,
) -> tuple[HostFits, ...]:
    """Return how many more desktops fit on each host, by name. Takes all that from `room`.

    `images_on`: the pool's image on each host. `most`: so many in all are enough to know; then the others are left out.
    """
    fits: list[HostFits] = []
    left = most
    for host in sorted(hosts, key=lambda host: natural_key(host.name)):
        if left == 0:
            break
        fits.append(_fits_on(spec, host, room, images_on, now, MAX_FITS if left is None else min(MAX_FITS, left)))
        left = None if left is None else left - fits[-1].free
    return tuple(fits)


def _fits_on(
    spec: PoolSpec, host: FleetHost, room: FleetRoom, images_on: Mapping[str, HostImage], now: float, most: int
) -> HostFits:
    demand = demand_of(spec, fill_number(spec.names, 1))
    why = why_no_desktops(host, spec, images_on, room, demand, now)
    if why is not None:
        return HostFits(host, 0, {}, why)
    alone = {wanted: room.free(host.id, demand, wanted) for wanted in demand.profiles}
    profiles = {wanted: free.now // demand.count for wanted, free in alone.items() if free.total}
    none = ", ".join(
        room.why_refused(host.id, wanted) or none_text(free, demand, wanted) for wanted, free in alone.items()
    )
    free = 0
    while free < most and why is None:
        if room.take(host.id, demand) is None:
            why = none
        else:
            free += 1
            why = why_no_desktops(host, spec, images_on, room, demand, now)
    return HostFits(host, free, profiles, "" if free else why or none)
