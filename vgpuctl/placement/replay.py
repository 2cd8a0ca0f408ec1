# SPDX-License-Identifier: Apache-2.0
"""Replay arrivals and departures on a fleet, one after the other: which requests are admitted, and framebuffer use.

A request that finds no room is refused and does not come again. Of events at one instant, departures come first. A
request for several vGPUs is admitted when all of them find room one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from vgpuctl.placement.fleet import Fleet, PlacementChoice
from vgpuctl.placement.policy import PlacementPolicy
from vgpuctl.placement.usage_ledger import Sample, Totals, UsageLedger
from vgpuctl.value import Value


class Arrival(NamedTuple):
    """A request with a profile name of the fleet's kinds. `departure_seconds` None: it stays until the end."""

    seconds: float
    departure_seconds: float | None
    profile: str
    vgpu_count: int


Departure = tuple[float, int, tuple[PlacementChoice, ...]]
"""When a request's vGPUs leave, its number among the arrivals, and where they are."""


class ReplayResult(Value):
    """The result of a replay.

    `admitted`: for each arrival, in order, the framebuffer in MiB that it got; None when it was refused.
    `refused_though_free`: refused arrivals for which a GPU had enough free framebuffer, but other vGPUs on it blocked
    them.
    """

    admitted: tuple[int | None, ...]
    refused_though_free: frozenset[int]
    mean: Totals
    peak_mib: int
    samples: tuple[Sample, ...]


def replay_arrivals(
    fleet: Fleet, used_mib: Sequence[int], arrivals: Sequence[Arrival], policy: PlacementPolicy
) -> ReplayResult:
    """Replay arrivals, sorted by time, on a fleet, which changes. `used_mib`: the framebuffer in use on each GPU."""
    start, end = find_time_span(arrivals)
    ledger = UsageLedger(fleet, used_mib, start, end)
    departures: list[Departure] = []
    admitted: list[int | None] = []
    refused_though_free = set()
    for number, arrival in enumerate(arrivals):
        while departures and departures[0][0] <= arrival.seconds:
            _depart(fleet, ledger, arrivals, heappop(departures))
        ledger.advance_to(arrival.seconds)
        choices = _place_request(fleet, policy, arrival)
        if not choices:
            admitted.append(None)
            if ledger.has_free_framebuffer(arrival.profile):
                refused_though_free.add(number)
            continue
        for choice in choices:
            ledger.record_arrival(choice.gpu, arrival.profile, _mib(fleet, choice, arrival.profile))
        admitted.append(sum(_mib(fleet, choice, arrival.profile) for choice in choices))
        if arrival.departure_seconds is not None:
            heappush(departures, (arrival.departure_seconds, number, choices))
    while departures:
        _depart(fleet, ledger, arrivals, heappop(departures))
    ledger.close(end)
    return ReplayResult(
        tuple(admitted), frozenset(refused_though_free), ledger.average(), ledger.peak_mib, tuple(ledger.samples)
    )


def find_time_span(arrivals: Sequence[Arrival]) -> tuple[float, float]:
    """Return the time of the first arrival, and of the last arrival or departure."""
    times = [arrival.seconds for arrival in arrivals]
    ends = [arrival.departure_seconds for arrival in arrivals if arrival.departure_seconds is not None]
    return min(times), max([*times, *ends])


def _place_request(fleet: Fleet, policy: PlacementPolicy, arrival: Arrival) -> tuple[PlacementChoice, ...]:
    """Place all vGPUs of a request on the fleet, or none."""
    choices: list[PlacementChoice] = []
    for _ in range(arrival.vgpu_count):
        choice = policy.choose(fleet, arrival.profile)
        if choice is None:
            for placed in reversed(choices):
                fleet.remove_vgpu(placed.gpu, arrival.profile, placed.placement.place)
            return ()
        fleet.add_vgpu(choice.gpu, choice.placement)
        choices.append(choice)
    return tuple(choices)


def _depart(
    fleet: Fleet,
    ledger: UsageLedger,
    arrivals: Sequence[Arrival],
    departure: tuple[float, int, tuple[PlacementChoice, ...]],
) -> None:
    seconds, number, choices = departure
    ledger.advance_to(seconds)
    for choice in choices:
        profile = arrivals[number].profile
        fleet.remove_vgpu(choice.gpu, profile, choice.placement.place)
        ledger.record_departure(choice.gpu, profile, _mib(fleet, choice, profile))


def _mib(fleet: Fleet, choice: PlacementChoice, profile: str) -> int:
    return fleet.kind_of(choice.group).sizes[profile]
