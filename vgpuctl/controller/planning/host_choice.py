# SPDX-License-Identifier: Apache-2.0
"""On which host a new desktop goes. The host chooses the GPU, and has the last word whether it has room.

Offers are what hosts said they can make, less what is on its way there. Offers of several profiles are about the
same GPUs, so an offer is an estimate until the host's next report.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from vgpuctl.config.name_patterns import natural_key
from vgpuctl.config.vm_request import FIELDS
from vgpuctl.controller.model import (
    Desktop,
    FleetHost,
    FleetHostState,
    HostChoice,
    HostImage,
    Offer,
    Pool,
    PoolSpec,
)
from vgpuctl.controller.planning.phase import is_silent
from vgpuctl.model.image_copy import CopyState
from vgpuctl.model.names import strip_board
from vgpuctl.model.numbers import count_text, format_mib, parse_memory_size
from vgpuctl.value import EMPTY_MAPPING, Value

MAX_REASONS = 20


class HostRoom(Value):
    """How much memory a host has free, and how many CPUs it has; None: not known."""

    memory_mib: int | None = None
    cpus: int | None = None


class ChosenHost(Value):
    """Where a desktop goes, and why; `host` None: nowhere, and `reason` says for each host why not.

    `profile`: the offer that it takes; None without a host.
    """

    host: FleetHost | None
    profile: str | None
    reason: str


class _Candidate(NamedTuple):
    host: FleetHost
    offer: Offer
    waste: float
    has_image: bool
    placed: int


def choose_host(
    desktop: Desktop,
    pool: Pool,
    hosts: Sequence[FleetHost],
    offers: Iterable[Offer],
    images_on: Mapping[str, HostImage],
    placed: Mapping[str, int],
    now: float,
    *,
    rooms: Mapping[str, HostRoom] = EMPTY_MAPPING,
    number: float = 0.0,
) -> ChosenHost:
    """Choose a host for a desktop without one.

    `images_on`: the desktop's image on each host; a host without an entry can get it. `placed`: how many desktops of
    this pool are on each host. `number`: at random from 0 up to, but not at, 1.
    """
    by_host: dict[str, list[Offer]] = {}
    for offer in offers:
        by_host.setdefault(offer.host_id, []).append(offer)
    reasons: dict[str, str] = {}
    able: list[FleetHost] = []
    for host in sorted(hosts, key=lambda host: _order(host.name)):
        reason = why_no_desktops(host, pool.spec, images_on, rooms.get(host.id, HostRoom()), now)
        if reason is None:
            able.append(host)
        else:
            reasons[host.name] = reason
    for wanted in wanted_profiles(pool.spec):
        candidates = []
        for host in able:
            own = by_host.get(host.id, [])
            fitting = [offer for offer in own if matches_profile(offer.profile, wanted)]
            for offer in fitting:
                if offer.free > 0:
                    waste = sum(o.free / o.total for o in own if o.profile != offer.profile and o.total > 0)
                    entry = _Candidate(host, offer, waste, _has_image(host, images_on), placed.get(host.id, 0))
                    candidates.append(entry)
            if all(offer.free <= 0 for offer in fitting):
                total = sum(offer.total for offer in fitting)
                text = f"no free {wanted} (of {total})" if fitting else f"offers no {wanted}"
                reasons[host.name] = f"{reasons[host.name]}, {text}" if host.name in reasons else text
        if candidates:
            best = _best(candidates, pool.spec, number)
            text = f"{best.host.name}: {best.offer.free} of {best.offer.total} {best.offer.profile} free"
            return ChosenHost(best.host, best.offer.profile, text)
    return ChosenHost(None, None, _sentence(desktop, reasons))


def wanted_profiles(spec: PoolSpec) -> tuple[str, ...]:
    """Return the profiles that a desktop can have, best first; of whole GPUs and VFs their mode is the offer's name."""
    return spec.profiles or (str(spec.vm.get("mode", "vgpu")),)


@functools.lru_cache(maxsize=4096)
def matches_profile(offered: str, wanted: str) -> bool:
    """Return whether an offer is of a profile; one without a board, `2B`, is of any GPU model."""
    return wanted.lower() in (offered.lower(), strip_board(offered).lower())


_order = functools.lru_cache(maxsize=4096)(natural_key)
"""Each new desktop is compared with each host: a thousand of each are a million."""


def why_no_desktops(
    host: FleetHost,
    spec: PoolSpec,
    images_on: Mapping[str, HostImage],
    room: HostRoom,
    now: float,
) -> str | None:
    """Return why a host gets no desktops of a pool, whatever it offers; None: it can get some."""
    differing = [f"{key}={value}" for key, value in spec.hosts.items() if host.labels.get(key) != value]
    if differing:
        return f"lacks the label {', '.join(differing)}"
    if host.state is not FleetHostState.ACTIVE:
        return str(host.state)
    if host.held is not None:
        return f"held ({host.held})"
    if is_silent(host, now):
        return "silent"
    image = images_on.get(host.id)
    if image is not None and image.state is CopyState.FAILED:
        return f"its image failed ({image.error})"
    if room.memory_mib is not None:
        memory_mib = parse_memory_size(str(spec.vm.get("memory", FIELDS["memory"].default)))
        if room.memory_mib < memory_mib:
            return f"{format_mib(room.memory_mib)} of memory free, {format_mib(memory_mib)} needed"
    if room.cpus is not None:
        vcpus = int(spec.vm.get("vcpus", str(FIELDS["vcpus"].default)))
        if room.cpus < vcpus:
            return f"{room.cpus} CPUs, {vcpus} needed"
    return None


def _has_image(host: FleetHost, images_on: Mapping[str, HostImage]) -> bool:
    return host.id in images_on and images_on[host.id].state is CopyState.READY


def _best(candidates: list[_Candidate], spec: PoolSpec, number: float) -> _Candidate:
    """Return the best candidate; `candidates` are in the order of the hosts' names, which decides last."""
    kept = _least(candidates, lambda c: not c.has_image)
    if spec.apart:
        kept = _least(kept, lambda c: c.placed)
    if spec.choice is HostChoice.RANDOM:
        return kept[min(int(number * len(kept)), len(kept) - 1)]
    if spec.choice is HostChoice.SPREAD:
        return min(kept, key=lambda c: (-c.offer.free / max(c.offer.total, 1), c.placed, -c.offer.free))
    return min(kept, key=lambda c: (c.waste, c.offer.free))


def _least(candidates: list[_Candidate], key: Callable[[_Candidate], int]) -> list[_Candidate]:
    least = min(map(key, candidates))
    return [candidate for candidate in candidates if key(candidate) == least]


def _sentence(desktop: Desktop, reasons: Mapping[str, str]) -> str:
    if not reasons:
        return f"no host can take {desktop.name}: the fleet has none"
    shown = [f"{name}: {reason}" for name, reason in list(reasons.items())[:MAX_REASONS]]
    more = f"; and {count_text(len(reasons) - MAX_REASONS, 'more host')}" if len(reasons) > MAX_REASONS else ""
    return f"no host can take {desktop.name}: {'; '.join(shown)}{more}"
