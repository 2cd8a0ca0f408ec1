# SPDX-License-Identifier: Apache-2.0
"""Which host a desktop goes to: from what the hosts say they have room for, less what was placed there since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vgpuctl.controller.model import Desktop, FleetHost, FleetHostState, HostChoice, Offer, Pool
from vgpuctl.controller.planning.phase import SILENT_SECONDS
from vgpuctl.value import EMPTY_MAPPING, Value

WHOLE_GPUS = "*"
"""The profile of an offer of whole GPUs and plain VFs: the host alone knows how many fit."""
MAX_REASONS = 8


class Choice(Value):
    """A host and a profile for a desktop, or neither and why not."""

    host: FleetHost | None
    profile: str | None
    reason: str | None = None


class FleetRoom(Value):
    """What is known of the fleet when a host is chosen.

    `refused`: hosts by id that said no to this desktop a short time ago. `desktops`: how many of the same pool each
    host has, by its id. `random`: a number from 0 to 1.
    """

    hosts: Sequence[FleetHost]
    offers: Sequence[Offer]
    desktops: Mapping[str, int] = EMPTY_MAPPING
    refused: frozenset[str] = frozenset()
    random: float = 0.0


def choose_host(desktop: Desktop, pool: Pool, room: FleetRoom, now: float) -> Choice:
    """Return where a desktop goes; the first of its pool's profiles that a host has room for."""
    reasons = {host.name: why for host in room.hosts if (why := _why_not(host, pool, room, now)) is not None}
    hosts = [host for host in room.hosts if host.name not in reasons]
    by_host = {(offer.host_id, offer.profile): offer for offer in room.offers}
    if not pool.spec.profiles:
        return _best(hosts, None, pool, room, by_host, reasons)
    for profile in pool.spec.profiles:
        fitting = [h for h in hosts if (offer := _offer(by_host, h, profile)) is not None and offer.free > 0]
        if fitting:
            return _best(fitting, profile, pool, room, by_host, reasons)
    wanted = " or ".join(pool.spec.profiles)
    reasons |= {host.name: f"no room for {wanted}" for host in hosts}
    return Choice(None, None, _reason_text(desktop, reasons))


def _why_not(host: FleetHost, pool: Pool, room: FleetRoom, now: float) -> str | None:
    if host.held is not None:
        return f"held: {host.held}"
    if host.state is not FleetHostState.ACTIVE:
        return str(host.state)
    if host.seen_at is None or now - host.seen_at > SILENT_SECONDS:
        return "it does not answer"
    missing = [f"{key}={value}" for key, value in pool.spec.hosts.items() if host.labels.get(key) != value]
    if missing:
        return f"without the label {', '.join(missing)}"
    return "it had no room a moment ago" if host.id in room.refused else None


def _offer(by_host: Mapping[tuple[str, str], Offer], host: FleetHost, profile: str) -> Offer | None:
    """Return a host's offer of a profile; a short name such as 4C is the one of any model that ends so."""
    exact = by_host.get((host.id, profile))
    if exact is not None:
        return exact
    of_any = [o for (h, name), o in by_host.items() if h == host.id and name.endswith(f"-{profile}") and o.free > 0]
    return max(of_any, key=lambda offer: (offer.free, offer.profile), default=None)


def _best(
    hosts: Sequence[FleetHost],
    profile: str | None,
    pool: Pool,
    room: FleetRoom,
    by_host: Mapping[tuple[str, str], Offer],
    reasons: Mapping[str, str],
) -> Choice:
    if not hosts:
        return Choice(None, None, "; ".join(f"{name}: {why}" for name, why in reasons.items()) or "there is no host")

    def rank(host: FleetHost) -> tuple[float, float, str]:
        offer = None if profile is None else _offer(by_host, host, profile)
        free = 0 if offer is None else offer.free
        apart = room.desktops.get(host.id, 0) if pool.spec.apart else 0
        by_choice = {HostChoice.LEAST_WASTE: free, HostChoice.SPREAD: -free, HostChoice.RANDOM: 0}[pool.spec.choice]
        return apart, by_choice, host.name

    ordered = sorted(hosts, key=rank)
    if pool.spec.choice is HostChoice.RANDOM:
        best = rank(ordered[0])[:2]
        equal = [host for host in ordered if rank(host)[:2] == best]
        chosen = equal[min(int(room.random * len(equal)), len(equal) - 1)]
    else:
        chosen = ordered[0]
    offer = None if profile is None else _offer(by_host, chosen, profile)
    return Choice(chosen, None if offer is None else offer.profile)


def _reason_text(desktop: Desktop, reasons: Mapping[str, str]) -> str:
    shown = [f"{name}: {why}" for name, why in list(reasons.items())[:MAX_REASONS]]
    more = len(reasons) - len(shown)
    text = "; ".join(shown) + (f"; and {more} more" if more > 0 else "")
    return f"no host takes {desktop.name}: {text or 'there is none'}"
