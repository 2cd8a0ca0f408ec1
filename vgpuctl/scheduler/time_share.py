# SPDX-License-Identifier: Apache-2.0
"""The share of its GPU's time that a scheduler guarantees to a vGPU, and the length of a time slice.

Best effort guarantees nothing. Fixed share: 1 / the maximum number of vGPUs of its size on the GPU, also while others
are idle or missing. Equal share: 1 / the running vGPUs, if the driver does not weight them. Drivers from 590 on do
unless bit 3 of RmPVMRL is set, and the weights are not published. Source: NVIDIA's description of the three
policies; nvrm_registry.h in NVIDIA's open kernel modules, 595.45.
"""

from __future__ import annotations

from fractions import Fraction

from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerState
from vgpuctl.value import Value


class TimeShare(Value):
    """What one vGPU is guaranteed: a fraction of the GPU's time, and the time slice. None: no guarantee, or unknown."""

    fraction: Fraction | None
    time_slice_ns: int | None
    note: str


def compute_time_share(
    state: SchedulerState | None,
    *,
    is_running: bool,
    running_count: int,
    max_vgpus: int | None,
    is_weighted: bool | None,
) -> TimeShare:
    """Return a vGPU's share.

    `running_count`: running vGPUs on the GPU; `max_vgpus`: the maximum of its size; `is_weighted`: whether the driver
    weights vGPUs, None if unknown.
    """
    if state is None or state.policy is None:
        return TimeShare(None, None, "the running policy is not known")
    slice_ns = state.time_slice_ns or None
    if state.policy is SchedulerPolicy.BEST_EFFORT:
        return TimeShare(None, None, "best effort guarantees nothing")
    if state.policy is SchedulerPolicy.FIXED_SHARE:
        if not max_vgpus:
            return TimeShare(None, slice_ns, "how many of its size fit is not known")
        return TimeShare(Fraction(1, max_vgpus), slice_ns, f"1 of {max_vgpus}, whether the others run or not")
    if not is_running:
        return TimeShare(None, slice_ns, "it is off; an equal share when it runs")
    if running_count == 1:
        return TimeShare(Fraction(1), slice_ns, "it runs alone")
    if is_weighted is None:
        return TimeShare(
            None, slice_ns, "not known: the driver's version is not known, and from 590 on it weights vGPUs"
        )
    if is_weighted:
        return TimeShare(None, slice_ns, "not known: this driver weights vGPUs unless bit 3 of RmPVMRL is set")
    return TimeShare(Fraction(1, running_count), slice_ns, f"1 of the {running_count} that run now")
