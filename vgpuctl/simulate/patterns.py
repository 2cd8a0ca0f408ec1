# SPDX-License-Identifier: Apache-2.0
"""Generated requests of desktops, for a fleet: a day of office work, or arrivals at any time.

They are invented, with round numbers, to compare fleets and policies; they do not measure real users. The same random
source gives the same requests. A request that outlives the generated days has no departure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import log
from typing import Protocol

from vgpuctl.errors import NotFound
from vgpuctl.gpu.gpu_kind import GpuKind
from vgpuctl.model.profile_name import parse_profile_name, strip_board
from vgpuctl.placement.profile_resolution import resolve_profile, suggest_profiles
from vgpuctl.simulate.trace import TraceRequest
from vgpuctl.value import Value

HOUR = 3600.0
DAY = 24 * HOUR
LOG_ON = (8 * HOUR, 9.5 * HOUR)
LATE_LOG_ON_END, LATE_LOG_ON_SHARE = 11 * HOUR, 0.1
LUNCH, LUNCH_SHARE = (11.75 * HOUR, 12.75 * HOUR), 0.5
LUNCH_MINUTES = (30, 60)
LOG_OFF, LOG_OFF_DEVIATION, LATEST_LOG_OFF = 17 * HOUR, 0.75 * HOUR, 22 * HOUR
CHURN_LIFE = 8 * HOUR
"""The mean lifetime of a desktop that comes at any time."""
DESKTOP_PERCENTS = {(1, "B"): 40, (2, "B"): 35, (4, "Q"): 20, (8, "Q"): 5}
"""Desktops by framebuffer in GiB and series, in percent."""


class RandomSource(Protocol):
    """Random numbers, as random.Random gives them."""

    def random(self) -> float:
        """Return a number from 0 up to 1."""

    def gauss(self, mu: float, sigma: float) -> float:
        """Return a normally distributed number."""


class DesktopShare(Value):
    """The share of the desktops that have a profile. `mib`: of one vGPU, on the model where it is smallest."""

    profile: str
    weight: float
    mib: int


class WorkloadSize(Value):
    """How much to generate: so many days, and so many desktops at a time (for churn, on average)."""

    days: int
    desktops: int


Pattern = Callable[[RandomSource, Sequence[DesktopShare], WorkloadSize], Iterator[TraceRequest]]


def generate_vdi_day(
    random_source: RandomSource, shares: Sequence[DesktopShare], size: WorkloadSize
) -> Iterator[TraceRequest]:
    """Yield the sessions of desktops: log-on from 08:00 to 09:30, half of them off at lunch, log-off about 17:00.

    Each desktop has one profile on all days.
    """
    width = len(str(size.desktops))
    profiles = [_draw_profile(random_source, shares) for _ in range(size.desktops)]
    for day in range(size.days):
        midnight = day * DAY
        for index, profile in enumerate(profiles, 1):
            for start, end in _draw_sessions(random_source):
                yield _make_request(midnight + start, midnight + end, profile, size, f"desktop-{index:0{width}}")


def generate_churn(
    random_source: RandomSource, shares: Sequence[DesktopShare], size: WorkloadSize
) -> Iterator[TraceRequest]:
    """Yield desktops that arrive at a constant rate, and stay for exponential lifetimes."""
    start = _draw_exponential(random_source, CHURN_LIFE / size.desktops)
    while start < size.days * DAY:
        profile = _draw_profile(random_source, shares)
        yield _make_request(start, start + _draw_exponential(random_source, CHURN_LIFE), profile, size)
        start += _draw_exponential(random_source, CHURN_LIFE / size.desktops)


PATTERNS: Mapping[str, Pattern] = {"vdi-day": generate_vdi_day, "churn": generate_churn}


def desktop_mix(kinds: Sequence[GpuKind]) -> tuple[DesktopShare, ...]:
    """Return the mix of desktops: for each the smallest profile that is large enough, in its series if possible.

    Raises:
        NotFound: no profile is large enough.
    """
    offers = [(mib, name) for kind in kinds for profile, mib in kind.sizes.items() if (name := _desktop_name(profile))]
    shares = []
    for (gib, series), weight in DESKTOP_PERCENTS.items():
        large_enough = [(mib, name) for mib, name in offers if mib >= gib * 1024]
        if not large_enough:
            raise _not_offered_error(kinds, f"a desktop of {gib} GiB", "specify the profiles: --mix PROFILE:WEIGHT")
        same_series = [(mib, name) for mib, name in large_enough if name.endswith(series)]
        shares.append(_make_share(min(same_series or large_enough)[1], weight, kinds))
    return tuple(shares)


def custom_mix(weights: Mapping[str, float], kinds: Sequence[GpuKind]) -> tuple[DesktopShare, ...]:
    """Return a mix of these profiles.

    Raises:
        NotFound: the fleet does not have one.
    """
    return tuple(_make_share(profile, weight, kinds) for profile, weight in weights.items())


def fill_fleet(shares: Sequence[DesktopShare], framebuffer_mib: int) -> int:
    """Return how many desktops of a mix have as much framebuffer as this; at least one."""
    mean_mib = sum(share.weight * share.mib for share in shares) / sum(share.weight for share in shares)
    return max(1, round(framebuffer_mib / mean_mib))


def suggestion_for(profile: str, kinds: Sequence[GpuKind]) -> str:
    """Return what helps when no GPU offers a profile."""
    similar = suggest_profiles(profile, kinds)
    return (
        f"did you mean {', '.join(similar)}?" if similar else "vgpuctl list-profiles --all shows what the host offers"
    )


def _draw_sessions(random_source: RandomSource) -> list[tuple[float, float]]:
    late = random_source.random() < LATE_LOG_ON_SHARE
    start = _draw_uniform(random_source, LOG_ON[1], LATE_LOG_ON_END) if late else _draw_uniform(random_source, *LOG_ON)
    end = min(max(random_source.gauss(LOG_OFF, LOG_OFF_DEVIATION), LUNCH[1] + HOUR), LATEST_LOG_OFF)
    if random_source.random() >= LUNCH_SHARE:
        return [(start, end)]
    lunch = _draw_uniform(random_source, *LUNCH)
    return [(start, lunch), (lunch + _draw_uniform(random_source, *LUNCH_MINUTES) * 60, end)]


def _make_request(start: float, end: float, profile: str, size: WorkloadSize, name: str = "") -> TraceRequest:
    """Return a request in whole seconds, at least one long."""
    start, end = float(round(start)), float(max(round(end), round(start) + 1))
    return TraceRequest(start, end if end < size.days * DAY else None, profile, 1, name)


def _draw_profile(random_source: RandomSource, shares: Sequence[DesktopShare]) -> str:
    position = random_source.random() * sum(share.weight for share in shares)
    for share in shares:
        position -= share.weight
        if position < 0:
            return share.profile
    return shares[-1].profile


def _draw_exponential(random_source: RandomSource, mean: float) -> float:
    return -mean * log(1 - random_source.random())


def _draw_uniform(random_source: RandomSource, minimum: float, maximum: float) -> float:
    return minimum + (maximum - minimum) * random_source.random()


def _desktop_name(profile: str) -> str:
    """Return a profile's name without the model; "" for a MIG-backed one, which no desktop of the mix uses."""
    parsed = parse_profile_name(profile)
    return "" if parsed is not None and parsed.mig_slices else strip_board(profile)


def _make_share(profile: str, weight: float, kinds: Sequence[GpuKind]) -> DesktopShare:
    resolved = resolve_profile(profile, kinds)
    if resolved is None:
        raise _not_offered_error(kinds, profile, suggestion_for(profile, kinds))
    mib = min(kind.sizes[own] for kind, own in zip(kinds, resolved.profiles, strict=True) if own is not None)
    return DesktopShare(resolved.name, weight, mib)


def _not_offered_error(kinds: Sequence[GpuKind], request: str, hint: str) -> NotFound:
    names = ", ".join(dict.fromkeys(kind.name for kind in kinds))
    return NotFound(f"no GPU of {names} offers {request}", hint=hint)
