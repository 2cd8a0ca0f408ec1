# SPDX-License-Identifier: Apache-2.0
"""What a vGPU is guaranteed of its GPU's time under a scheduler, and how long a turn is.

Best effort guarantees nothing. Fixed share: 1 / the most vGPUs of its size that the GPU takes, also while others are
idle or missing. Equal share: 1 / the vGPUs that run now, where the driver does not weight them. Drivers from 590 on do
unless bit 3 of RmPVMRL is set, and what the weights are is not published. Source: NVIDIA's description of the three
policies; nvrm_registry.h in NVIDIA's open kernel modules, 595.45.
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


def share(state: SchedulerState | None, *, runs: bool, running: int, most: int | None, weighted: bool | None) -> Share:
    """Return a vGPU's share.

    `running`: vGPUs that run on the GPU; `most`: how many of its size there can be; `weighted`: whether the driver
    weights vGPUs, None when that is not known.
    """
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
    if running == 1:
        return Share(Fraction(1), length, "it runs alone")
    if weighted is None:
        return Share(None, length, "not known: the driver's version is not known, and from 590 on it weights vGPUs")
    if weighted:
        return Share(None, length, "not known: this driver weights vGPUs unless bit 3 of RmPVMRL is set")
    return Share(Fraction(1, running), length, f"1 of the {running} that run now")
