# SPDX-License-Identifier: Apache-2.0
"""Arrivals and departures on a fleet, one after the other: who is admitted, and what the framebuffer does meanwhile.

A request that finds no room is refused and does not come again. Of what happens at one instant the departures are
first; a request for several vGPUs is admitted when all of them find room one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from vgpuctl.placement.fleet import Choice, Fleet
from vgpuctl.placement.ledger import Ledger, Moment, Totals
from vgpuctl.placement.policy import Policy
from vgpuctl.value import Value


class Arrival(NamedTuple):
    """A request as the fleet's kinds know it. `departure_seconds` None: it stays until the end."""

    seconds: float
    departure_seconds: float | None
    profile: str
    number: int


Leaving = tuple[float, int, tuple[Choice, ...]]
"""When a request's vGPUs go, its number among the arrivals, and where they are."""


class Replay(Value):
    """What came of a replay.

    `admitted`: for each arrival, in their order, the framebuffer in MiB that it was given, None when it was refused.
    `held_back`: which of the refused found a GPU with the framebuffer free, that others on it kept from them.
    """

    admitted: tuple[int | None, ...]
    held_back: frozenset[int]
    mean: Totals
    peak_mib: int
    moments: tuple[Moment, ...]


def replay(fleet: Fleet, used_mib: Sequence[int], arrivals: Sequence[Arrival], policy: Policy) -> Replay:
    """Replay arrivals, sorted by time, on a fleet, which changes. `used_mib`: of what each GPU has already."""
    begin, end = span(arrivals)
    ledger = Ledger(fleet, used_mib, begin, end)
    leaving: list[Leaving] = []
    admitted: list[int | None] = []
    held_back = set()
    for number, arrival in enumerate(arrivals):
        while leaving and leaving[0][0] <= arrival.seconds:
            _leave(fleet, ledger, arrivals, heappop(leaving))
        ledger.until(arrival.seconds)
        choices = _place(fleet, policy, arrival)
        if not choices:
            admitted.append(None)
            if ledger.held_back(arrival.profile):
                held_back.add(number)
            continue
        for choice in choices:
            ledger.came(choice.gpu, arrival.profile, _mib(fleet, choice, arrival.profile))
        admitted.append(sum(_mib(fleet, choice, arrival.profile) for choice in choices))
        if arrival.departure_seconds is not None:
            heappush(leaving, (arrival.departure_seconds, number, choices))
    while leaving:
        _leave(fleet, ledger, arrivals, heappop(leaving))
    ledger.close(end)
    return Replay(tuple(admitted), frozenset(held_back), ledger.mean(), ledger.peak_mib, tuple(ledger.moments))


def span(arrivals: Sequence[Arrival]) -> tuple[float, float]:
    """Return when the first comes, and when the last comes or goes."""
    times = [a.seconds for a in arrivals]
    ends = [a.departure_seconds for a in arrivals if a.departure_seconds is not None]
    return min(times), max([*times, *ends])


def _place(fleet: Fleet, policy: Policy, arrival: Arrival) -> tuple[Choice, ...]:
    """Put all vGPUs of a request on the fleet, or none."""
    choices: list[Choice] = []
    for _ in range(arrival.number):
        choice = policy.choose(fleet, arrival.profile)
        if choice is None:
            for taken in reversed(choices):
                fleet.take(taken.gpu, arrival.profile, taken.move.place)
            return ()
        fleet.put(choice.gpu, choice.move)
        choices.append(choice)
    return tuple(choices)


def _leave(
    fleet: Fleet, ledger: Ledger, arrivals: Sequence[Arrival], gone: tuple[float, int, tuple[Choice, ...]]
) -> None:
    seconds, number, choices = gone
    ledger.until(seconds)
    for choice in choices:
        profile = arrivals[number].profile
        fleet.take(choice.gpu, profile, choice.move.place)
        ledger.went(choice.gpu, profile, _mib(fleet, choice, profile))


def _mib(fleet: Fleet, choice: Choice, profile: str) -> int:
    return fleet.kind(choice.group).sizes[profile]
