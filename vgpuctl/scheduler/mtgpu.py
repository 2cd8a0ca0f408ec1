# SPDX-License-Identifier: Apache-2.0
"""The scheduler of Moore Threads' driver mtgpu, pure: two parameters of the module, for all cards of a host.

    mtgpu_vgpu_scheduling_policy   0 best effort (the default): who works has the GPU; 1 time sliced: an equal share
    mtgpu_vgpu_time_sliced_value   the time slice in ms, 20 by default; its range is not published

They are read when the module is loaded (mode 0444), so vgpuctl writes host.yaml and shows the line for modprobe.

Source: docs.mthreads.com, MT vGPU 2.9.2, install_guide; mtgpu_module_param.c of the driver, for modes and defaults.
Nobody has tried this on such a card.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vgpuctl.model.numbers import parse_integer
from vgpuctl.model.vgpu_scheduler import (
    SchedulerInterface,
    SchedulerLimits,
    SchedulerPolicy,
    SchedulerSpec,
    SchedulerState,
)
from vgpuctl.scheduler.modprobe_files import ModprobeFile, line_with_values, parse_settings

MODULE = "mtgpu"
PARAMETERS_PATH = f"/sys/module/{MODULE}/parameters"
POLICY, TIME_SLICE = "mtgpu_vgpu_scheduling_policy", "mtgpu_vgpu_time_sliced_value"
OVERCOMMIT, OVERCOMMIT_NUMBER = "vgpu_overcommit_enable", "vgpu_overcommit_num"
_DEFAULTS = {POLICY: "0", TIME_SLICE: "20"}
_POLICIES = {"0": SchedulerPolicy.BEST_EFFORT, "1": SchedulerPolicy.EQUAL_SHARE}
_NS_PER_MS = 1_000_000
LIMITS = SchedulerLimits(
    policies=frozenset(_POLICIES.values()),
    supports_adaptive=False,
    time_slice_ns=(_NS_PER_MS, 100_000 * _NS_PER_MS),
    frequency_hz=None,
    averaging_factor=None,
)


def parse_state(values: Mapping[str, str]) -> SchedulerState:
    """Return the scheduler from the values of both parameters."""
    policy, slice_ms = _POLICIES.get(values[POLICY].strip()), parse_integer(values[TIME_SLICE])
    problem = None if policy is not None else f"{POLICY} is {values[POLICY].strip()[:20]!r}"
    is_sliced = policy is SchedulerPolicy.EQUAL_SHARE and slice_ms is not None and slice_ms > 0
    return SchedulerState(
        policy,
        adaptive=False if is_sliced else None,
        time_slice_ns=(slice_ms or 0) * _NS_PER_MS if is_sliced else None,
        source=SchedulerInterface.MODULE,
        problem=problem,
    )


def unreadable_state(reason: str) -> SchedulerState:
    """Return the state where the parameters cannot be read."""
    return SchedulerState(None, source=SchedulerInterface.MODULE, problem=reason)


def configured_state(files: Iterable[ModprobeFile]) -> SchedulerState:
    """Return the scheduler that the module has at its next load."""
    set_values = {s.name: s.value for s in parse_settings(files, MODULE, (POLICY, TIME_SLICE))}
    return parse_state({**_DEFAULTS, **set_values})


def line_with_spec(files: Iterable[ModprobeFile], spec: SchedulerSpec) -> tuple[str, str]:
    """Return where a line goes and the line, so that the module has this scheduler at its next load."""
    values = {POLICY: next(word for word, policy in _POLICIES.items() if policy is spec.policy)}
    if spec.policy is SchedulerPolicy.EQUAL_SHARE:
        values[TIME_SLICE] = str(spec.time_slice_ms or _DEFAULTS[TIME_SLICE])
    return line_with_values(files, MODULE, values)
