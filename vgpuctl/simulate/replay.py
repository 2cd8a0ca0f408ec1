# SPDX-License-Identifier: Apache-2.0
"""Replay arrivals and departures on a fleet, one after the other: which requests are admitted, and framebuffer use.

A request that finds no room is refused and does not come again. Of events at one instant, departures come first. A
request for several vGPUs is admitted when all of them find room one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from vgpuctl.gpu.gpu_kind import GpuKind
from vgpuctl.model.results.simulation import (
    SimulatedMomentResult,
    SimulatedPolicyResult,
    SimulatedProfileResult,
    SimulatedTotalsResult,
)
from vgpuctl.placement.fleet import Fleet, PlacementChoice
from vgpuctl.placement.policy import PlacementPolicy
from vgpuctl.value import Value

SAMPLE_COUNT = 240
"""The number of points in the timeline."""


class Arrival(NamedTuple):
    """A request with a profile name of the fleet's kinds. `departure_seconds` None: it stays until the end."""

    seconds: float
    departure_seconds: float | None
    profile: str
    vgpu_count: int


class ReplayResult(Value):
    """The result of a replay.

    `admitted`: for each arrival, in order, the framebuffer in MiB that it got; None when it was refused.
    `refused_though_free`: refused arrivals for which a GPU had enough free framebuffer, but other vGPUs on it blocked
    them.
    """

    admitted: tuple[int | None, ...]
    refused_though_free: frozenset[int]
    mean: SimulatedTotalsResult
    peak_mib: int
    timeline: tuple[SimulatedMomentResult, ...]


def replay_arrivals(
    fleet: Fleet, used_mib: Sequence[int], arrivals: Sequence[Arrival], policy: PlacementPolicy
) -> ReplayResult:
    """Replay arrivals, sorted by time, on a fleet, which changes. `used_mib`: the framebuffer in use on each GPU."""
    usage = _Usage(fleet, used_mib, *find_time_span(arrivals))
    departures: list[tuple[float, int, tuple[PlacementChoice, ...]]] = []
    admitted: list[int | None] = []
    refused_though_free = set()
    for number, arrival in enumerate(arrivals):
        while departures and departures[0][0] <= arrival.seconds:
            seconds, leaving, choices = heappop(departures)
            usage.remove_request(seconds, arrivals[leaving].profile, choices)
        choices = usage.place_request(arrival, policy)
        admitted.append(sum(usage.mib_of(choice, arrival.profile) for choice in choices) if choices else None)
        if not choices and usage.has_free_framebuffer(arrival.profile):
            refused_though_free.add(number)
        if choices and arrival.departure_seconds is not None:
            heappush(departures, (arrival.departure_seconds, number, choices))
    while departures:
        seconds, leaving, choices = heappop(departures)
        usage.remove_request(seconds, arrivals[leaving].profile, choices)
    usage.close()
    return ReplayResult(
        tuple(admitted), frozenset(refused_though_free), usage.average(), usage.peak_mib, tuple(usage.timeline)
    )


def find_time_span(arrivals: Sequence[Arrival]) -> tuple[float, float]:
    """Return the time of the first arrival, and of the last arrival or departure."""
    times = [arrival.seconds for arrival in arrivals]
    ends = [arrival.departure_seconds for arrival in arrivals if arrival.departure_seconds is not None]
    return min(times), max([*times, *ends])


def report_replay(
    policy: str, arrivals: Sequence[Arrival], result: ReplayResult, kinds: Sequence[GpuKind]
) -> SimulatedPolicyResult:
    """Return the result of one policy for the requests."""
    numbers_by_profile: dict[str, list[int]] = {}
    for number, arrival in enumerate(arrivals):
        numbers_by_profile.setdefault(arrival.profile, []).append(number)
    profiles = []
    for profile, numbers in numbers_by_profile.items():
        admitted = [mib for number in numbers if (mib := result.admitted[number]) is not None]
        profiles.append(
            SimulatedProfileResult(
                profile=profile,
                framebuffer_mib=min(kind.sizes[profile] for kind in kinds if profile in kind.sizes),
                requests=len(numbers),
                vgpus=sum(arrivals[number].vgpu_count for number in numbers),
                admitted=len(admitted),
                refused=len(numbers) - len(admitted),
                refused_though_free=sum(number in result.refused_though_free for number in numbers),
                admitted_mib=sum(admitted),
            )
        )
    return SimulatedPolicyResult(
        policy=policy,
        admitted=sum(row.admitted for row in profiles),
        refused=sum(row.refused for row in profiles),
        refused_though_free=len(result.refused_though_free),
        admitted_mib=sum(row.admitted_mib for row in profiles),
        peak_allocated_mib=result.peak_mib,
        mean=result.mean,
        profiles=tuple(sorted(profiles, key=lambda row: (row.framebuffer_mib, row.profile))),
        timeline=result.timeline,
    )


class _Usage:
    """A fleet whose allocated framebuffer and busy GPUs are summed up over time."""

    def __init__(self, fleet: Fleet, used_mib: Sequence[int], begin: float, end: float) -> None:
        self._fleet = fleet
        self._free = [fleet.kind_of(fleet.group_of(n)).framebuffer_mib - mib for n, mib in enumerate(used_mib)]
        self._allocated_mib = self.peak_mib = sum(used_mib)
        self._busy_gpus = sum(fleet.vgpu_count(n) > 0 for n in range(len(fleet)))
        self._allocated_sum = self._busy_sum = 0.0
        self._time, self._end = begin, end
        self._length = end - begin
        step = self._length / (SAMPLE_COUNT - 1)
        self._sample_times = [begin + step * n for n in range(SAMPLE_COUNT - 1)] + [end] if step else [end]
        self.timeline: list[SimulatedMomentResult] = []

    def place_request(self, arrival: Arrival, policy: PlacementPolicy) -> tuple[PlacementChoice, ...]:
        """Place all vGPUs of a request, or none."""
        self._advance_to(arrival.seconds)
        choices: list[PlacementChoice] = []
        for _ in range(arrival.vgpu_count):
            choice = policy.choose(self._fleet, arrival.profile)
            if choice is None:
                for placed in reversed(choices):
                    self._fleet.remove_vgpu(placed.gpu, arrival.profile, placed.placement.place)
                return ()
            self._fleet.add_vgpu(choice.gpu, choice.placement)
            choices.append(choice)
        for choice in choices:
            self._free[choice.gpu] -= self.mib_of(choice, arrival.profile)
            self._allocated_mib += self.mib_of(choice, arrival.profile)
        gpus = [choice.gpu for choice in choices]
        self._busy_gpus += sum(self._fleet.vgpu_count(gpu) == gpus.count(gpu) for gpu in set(gpus))
        self.peak_mib = max(self.peak_mib, self._allocated_mib)
        return tuple(choices)

    def remove_request(self, seconds: float, profile: str, choices: Sequence[PlacementChoice]) -> None:
        """Remove the vGPUs of a request at a time."""
        self._advance_to(seconds)
        for choice in choices:
            self._fleet.remove_vgpu(choice.gpu, profile, choice.placement.place)
            self._free[choice.gpu] += self.mib_of(choice, profile)
            self._allocated_mib -= self.mib_of(choice, profile)
            self._busy_gpus -= not self._fleet.vgpu_count(choice.gpu)

    def mib_of(self, choice: PlacementChoice, profile: str) -> int:
        """Return the framebuffer of a vGPU."""
        return self._fleet.kind_of(choice.group).sizes[profile]

    def has_free_framebuffer(self, profile: str) -> bool:
        """Return whether a GPU that offers the profile has enough free framebuffer for it."""
        sizes = [kind.sizes.get(profile) for kind in self._fleet.kinds]
        return any(
            (mib := sizes[self._fleet.group_of(gpu).kind_index]) is not None and free >= mib
            for gpu, free in enumerate(self._free)
        )

    def close(self) -> None:
        """Advance the time to the end, and record the remaining samples."""
        self._advance_to(self._end)
        while len(self.timeline) < len(self._sample_times):
            self._add_sample()

    def average(self) -> SimulatedTotalsResult:
        """Return the averages over the time; if no time has passed, the current values."""
        if not self._length:
            return SimulatedTotalsResult(self._allocated_mib, self._busy_gpus)
        return SimulatedTotalsResult(
            round(self._allocated_sum / self._length, 3), round(self._busy_sum / self._length, 3)
        )

    def _advance_to(self, seconds: float) -> None:
        while len(self.timeline) < len(self._sample_times) and self._sample_times[len(self.timeline)] < seconds:
            self._add_sample()
        self._allocated_sum += self._allocated_mib * (seconds - self._time)
        self._busy_sum += self._busy_gpus * (seconds - self._time)
        self._time = seconds

    def _add_sample(self) -> None:
        seconds = round(self._sample_times[len(self.timeline)], 3)
        self.timeline.append(SimulatedMomentResult(seconds, self._allocated_mib, self._busy_gpus))
