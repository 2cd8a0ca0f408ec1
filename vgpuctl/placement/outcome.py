# SPDX-License-Identifier: Apache-2.0
"""What a replay says, as the values that are printed."""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.placement.kind import Kind
from vgpuctl.placement.ledger import Totals
from vgpuctl.placement.replay import Arrival, Replay
from vgpuctl.value import as_dict

Row = dict[str, object]


def run_value(policy: str, arrivals: Sequence[Arrival], came: Replay, kinds: Sequence[Kind]) -> Row:
    """Return what a policy made of the requests."""
    admitted = [mib for mib in came.admitted if mib is not None]
    mine: dict[str, list[int]] = {}
    for number, arrival in enumerate(arrivals):
        mine.setdefault(arrival.profile, []).append(number)
    least = {p: min(kind.sizes[p] for kind in kinds if p in kind.sizes) for p in mine}
    order = sorted(mine, key=lambda p: (least[p], p))
    return {
        "policy": policy,
        "admitted": len(admitted),
        "refused": len(arrivals) - len(admitted),
        "refused_though_free": len(came.held_back),
        "admitted_mib": sum(admitted),
        "peak_allocated_mib": came.peak_mib,
        "mean": _totals(came.mean),
        "profiles": [_profile(p, least[p], mine[p], arrivals, came) for p in order],
        "timeline": [{"seconds": round(m.seconds, 3), **_totals(m.totals)} for m in came.moments],
    }


def _profile(profile: str, least_mib: int, mine: Sequence[int], arrivals: Sequence[Arrival], came: Replay) -> Row:
    given = [mib for number in mine if (mib := came.admitted[number]) is not None]
    return {
        "profile": profile,
        "framebuffer_mib": least_mib,
        "requests": len(mine),
        "vgpus": sum(arrivals[number].number for number in mine),
        "admitted": len(given),
        "refused": len(mine) - len(given),
        "refused_though_free": sum(number in came.held_back for number in mine),
        "admitted_mib": sum(given),
    }


def _totals(totals: Totals) -> Row:
    return {name: round(value, 3) for name, value in as_dict(totals).items()}
