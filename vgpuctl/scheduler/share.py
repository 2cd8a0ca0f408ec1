# SPDX-License-Identifier: Apache-2.0
"""What a vGPU is guaranteed of its GPU's time under a scheduler, and how long a turn is.

Best effort guarantees nothing. Fixed share: 1 / the most vGPUs of its size that the GPU takes, also while others are
idle or missing. Equal share: 1 / the vGPUs that run now. Source: NVIDIA's description of the three policies.
"""

from __future__ import annotations

from fractions import Fraction

from vgpuctl.model.scheduler import Policy, SchedulerState
from vgpuctl.value import Value


class Share(Value):
    """What one vGPU is guaranteed: a part of the GPU's time, and a turn's length. None: nothing, or not known."""

    part: Fraction | None
    time_slice_ns: int | None
    note: str


def share(state: SchedulerState | None, *, runs: bool, running: int, most: int | None) -> Share:
    """Return a vGPU's share. `running`: vGPUs that run on the GPU; `most`: how many of its size there can be."""
    if state is None or state.policy is None:
        return Share(None, None, "which policy runs is not known")
    length = state.time_slice_ns or None
    if state.policy is Policy.BEST_EFFORT:
        return Share(None, None, "best effort guarantees nothing")
    if state.policy is Policy.FIXED_SHARE:
        if not most:
            return Share(None, length, "how many of its size fit is not known")
        return Share(Fraction(1, most), length, f"1 of {most}, whether the others run or not")
    if not runs:
        return Share(None, length, "it is off; an equal share when it runs")
    return Share(Fraction(1, running), length, f"1 of the {running} that run now" if running > 1 else "it runs alone")
