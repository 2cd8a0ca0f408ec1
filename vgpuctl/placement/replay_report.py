# SPDX-License-Identifier: Apache-2.0
"""The result of a replay."""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.model.results.simulation import (
    SimulatedMomentResult,
    SimulatedPolicyResult,
    SimulatedProfileResult,
    SimulatedTotalsResult,
)
from vgpuctl.placement.gpu_kind import GpuKind
from vgpuctl.placement.replay import Arrival, ReplayResult
from vgpuctl.placement.usage_ledger import Totals
from vgpuctl.value import extend


def report_replay(
    policy: str, arrivals: Sequence[Arrival], result: ReplayResult, kinds: Sequence[GpuKind]
) -> SimulatedPolicyResult:
    """Return the result of one policy for the requests."""
    admitted = [mib for mib in result.admitted if mib is not None]
    arrivals_by_profile: dict[str, list[int]] = {}
    for number, arrival in enumerate(arrivals):
        arrivals_by_profile.setdefault(arrival.profile, []).append(number)
    smallest_mib = {
        profile: min(kind.sizes[profile] for kind in kinds if profile in kind.sizes) for profile in arrivals_by_profile
    }
    order = sorted(arrivals_by_profile, key=lambda profile: (smallest_mib[profile], profile))
    return SimulatedPolicyResult(
        policy=policy,
        admitted=len(admitted),
        refused=len(arrivals) - len(admitted),
        refused_though_free=len(result.refused_though_free),
        admitted_mib=sum(admitted),
        peak_allocated_mib=result.peak_mib,
        mean=_round_totals(result.mean),
        profiles=tuple(
            _report_profile(profile, smallest_mib[profile], arrivals_by_profile[profile], arrivals, result)
            for profile in order
        ),
        timeline=tuple(
            extend(SimulatedMomentResult, _round_totals(sample.totals), seconds=round(sample.seconds, 3))
            for sample in result.samples
        ),
    )


def _report_profile(
    profile: str,
    framebuffer_mib: int,
    arrival_numbers: Sequence[int],
    arrivals: Sequence[Arrival],
    result: ReplayResult,
) -> SimulatedProfileResult:
    admitted = [mib for number in arrival_numbers if (mib := result.admitted[number]) is not None]
    return SimulatedProfileResult(
        profile=profile,
        framebuffer_mib=framebuffer_mib,
        requests=len(arrival_numbers),
        vgpus=sum(arrivals[number].vgpu_count for number in arrival_numbers),
        admitted=len(admitted),
        refused=len(arrival_numbers) - len(admitted),
        refused_though_free=sum(number in result.refused_though_free for number in arrival_numbers),
        admitted_mib=sum(admitted),
    )


def _round_totals(totals: Totals) -> SimulatedTotalsResult:
    return SimulatedTotalsResult(
        allocated_mib=round(totals.allocated_mib, 3),
        stranded_mib=round(totals.stranded_mib, 3),
        locked_gpus=round(totals.locked_gpus, 3),
        busy_gpus=round(totals.busy_gpus, 3),
    )
