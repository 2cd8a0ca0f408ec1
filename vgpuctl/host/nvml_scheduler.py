# SPDX-License-Identifier: Apache-2.0
"""NVML's vGPU scheduler calls, through a pynvml that is handed in: version 2 first, then version 1, or none.

Every function may be missing from the loaded library, and what is missing is unknown, not an error. Traps: version 2's
structs have no version field and name an engine; version 1 gives {averaging factor, slice} or {slice} as one union,
told apart by its mode; slices are nanoseconds. Source: nvml.h of CUDA 13, by pynvml.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vgpuctl.errors import NvmlFailed
from vgpuctl.model.scheduler import GpuScheduler, Policy, SchedulerLimits, SchedulerSpec, SchedulerState

_GET = {"v2": "nvmlDeviceGetVgpuSchedulerState_v2", "v1": "nvmlDeviceGetVgpuSchedulerState"}
_SET = {"v2": "nvmlDeviceSetVgpuSchedulerState_v2", "v1": "nvmlDeviceSetVgpuSchedulerState"}
_LIMITS = "nvmlDeviceGetVgpuSchedulerCapabilities"
_POLICIES = {1: Policy.BEST_EFFORT, 2: Policy.EQUAL_SHARE, 3: Policy.FIXED_SHARE}
_NUMBERS = {policy: number for number, policy in _POLICIES.items()}
_GRAPHICS = 1
_DEFAULT, _STRICT, _ADAPTIVE = 0, 1, 2
_NS_PER_MS = 1_000_000

Has = Callable[[str], bool]
"""Says whether the loaded library has a function; asked once for each."""


def read(nvml: Any, handle: Any, has: Has) -> GpuScheduler:
    """Return what NVML says of a GPU's scheduler; each part that it does not tell is None."""
    return GpuScheduler(
        limits=_limits(nvml, handle, has),
        state=_state(nvml, handle, has),
        interfaces=tuple(name for name, function in _SET.items() if has(function)),
        architecture=_told(nvml, has, "nvmlDeviceGetArchitecture", handle),
    )


def write(nvml: Any, handle: Any, has: Has, spec: SchedulerSpec) -> None:
    """Set a GPU's scheduler.

    Raises:
        NvmlFailed: the library has no call for this.
        NVMLError: of pynvml: NVML refused it.
    """
    if has(_SET["v2"]) and spec.time_slice_ms is None:  # version 2 knows adaptive round robin alone
        two = nvml.c_nvmlVgpuSchedulerState_v2_t()
        two.engineId, two.schedulerPolicy = _GRAPHICS, _NUMBERS[spec.policy]
        two.avgFactor, two.frequency = spec.averaging_factor or 0, spec.frequency_hz or 0
        nvml.nvmlDeviceSetVgpuSchedulerState_v2(handle, two)
        return
    if not has(_SET["v1"]):
        raise NvmlFailed(
            f"this driver's NVML has no {_SET['v1']}, which a fixed time slice needs"
            if has(_SET["v2"])
            else "this driver's NVML cannot set a vGPU scheduler",
            nvml_code=None,
            call=_SET["v1"],
        )
    one = nvml.c_nvmlVgpuSchedulerSetState_t()
    one.schedulerPolicy = _NUMBERS[spec.policy]
    one.enableARRMode = {None: _DEFAULT, True: _ADAPTIVE, False: _STRICT}[spec.adaptive]
    if spec.time_slice_ms is not None:
        one.schedulerParams.vgpuSchedData.timeslice = spec.time_slice_ms * _NS_PER_MS
    else:
        one.schedulerParams.vgpuSchedDataWithARR.avgFactor = spec.averaging_factor or 0
        one.schedulerParams.vgpuSchedDataWithARR.frequency = spec.frequency_hz or 0
    nvml.nvmlDeviceSetVgpuSchedulerState(handle, one)


def _state(nvml: Any, handle: Any, has: Has) -> SchedulerState | None:
    if has(_GET["v2"]):
        asked = nvml.c_nvmlVgpuSchedulerStateInfo_v2_t()
        asked.engineId = _GRAPHICS
        two = _told(nvml, has, _GET["v2"], handle, asked)
        if two is not None:
            adaptive = None if has(_GET["v1"]) else True
            one = _told(nvml, has, _GET["v1"], handle)
            if one is not None:
                adaptive = _mode(one.arrMode)
            return _made(two.schedulerPolicy, adaptive, two.timeslice, two.avgFactor)
    one = _told(nvml, has, _GET["v1"], handle)
    if one is None:
        return None
    mode = _mode(one.arrMode)
    if mode is None:  # then nothing tells which half of the union is meant
        return _made(one.schedulerPolicy, None, 0, 0)
    if mode:
        params = one.schedulerParams.vgpuSchedDataWithARR
        return _made(one.schedulerPolicy, True, params.timeslice, params.avgFactor)
    return _made(one.schedulerPolicy, False, one.schedulerParams.vgpuSchedData.timeslice, 0)


def _made(policy: int, adaptive: bool | None, slice_ns: int, factor: int) -> SchedulerState:
    known = _POLICIES.get(int(policy))
    if known is Policy.BEST_EFFORT:
        return SchedulerState(known)
    return SchedulerState(known, adaptive, int(slice_ns) or None, int(factor) or None)


def _mode(number: int) -> bool | None:
    return {_STRICT: False, _ADAPTIVE: True}.get(int(number))


def _limits(nvml: Any, handle: Any, has: Has) -> SchedulerLimits | None:
    seen = _told(nvml, has, _LIMITS, handle)
    if seen is None:
        return None
    return SchedulerLimits(
        policies=frozenset(_POLICIES[n] for n in seen.supportedSchedulers if n in _POLICIES),
        adaptive=bool(seen.isArrModeSupported),
        time_slice_ns=(int(seen.minTimeslice), int(seen.maxTimeslice)),
        frequency_hz=(int(seen.minFrequencyForARR), int(seen.maxFrequencyForARR)),
        averaging_factor=(int(seen.minAvgFactorForARR), int(seen.maxAvgFactorForARR)),
    )


def _told(nvml: Any, has: Has, name: str, *args: Any) -> Any:
    """Return what a function says; None where the library lacks it or NVML refuses to answer."""
    if not has(name):
        return None
    try:
        return getattr(nvml, name)(*args)
    except nvml.NVMLError:
        return None
