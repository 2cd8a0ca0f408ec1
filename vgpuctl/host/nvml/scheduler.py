# SPDX-License-Identifier: Apache-2.0
"""NVML's vGPU scheduler calls: version 2 first, then version 1, or none; of a GPU, and of one GPU instance.

Every function may be missing from the loaded library, and what is missing is unknown, not an error. Traps: version 2's
structs have no version field and name an engine; version 1 gives {averaging factor, slice} or {slice} as one union,
told apart by its mode; version 1 of a GPU instance, unlike that of a GPU, has a version field and names an engine
too; slices are nanoseconds. Source: nvml.h of CUDA 13, by pynvml.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vgpuctl.host.nvml.call import Library
from vgpuctl.model.partition import GpuInstance
from vgpuctl.model.scheduler import GpuScheduler, Policy, SchedulerLimits, SchedulerSpec, SchedulerState

_GPU, _INSTANCE = "Device", "GpuInstance"
_LIMITS = "nvmlDeviceGetVgpuSchedulerCapabilities"
_POLICIES = {1: Policy.BEST_EFFORT, 2: Policy.EQUAL_SHARE, 3: Policy.FIXED_SHARE}
_NUMBERS = {policy: number for number, policy in _POLICIES.items()}
_GRAPHICS = 1
_DEFAULT, _STRICT, _ADAPTIVE = 0, 1, 2
_NS_PER_MS = 1_000_000


def read(library: Library, handle: Any) -> GpuScheduler:
    """Return what NVML says of a GPU's scheduler; each part that it does not tell is None."""
    return GpuScheduler(
        limits=_limits(library, handle),
        state=_state(library, _GPU, handle),
        interfaces=tuple(name for name in ("v2", "v1") if library.has(_setter(_GPU, name))),
        architecture=library.ask("nvmlDeviceGetArchitecture", handle),
    )


def read_instances(library: Library, handle: Any, instances: tuple[GpuInstance, ...]) -> Mapping[int, SchedulerState]:
    """Return what runs in each GPU instance by its id, none where they have no schedulers of their own."""
    found: dict[int, SchedulerState] = {}
    if not any(library.has(_getter(_INSTANCE, version)) for version in ("v2", "v1")):
        return found
    for one in instances:
        state = _state(library, _INSTANCE, library.ask("nvmlDeviceGetGpuInstanceById", handle, one.gi_id))
        if state is None:  # what one does not tell, none does
            break
        found[one.gi_id] = state
    return found


def write(library: Library, handle: Any, spec: SchedulerSpec) -> None:
    """Set a GPU's scheduler.

    Raises:
        NvmlFailed: NVML refused it, or the library has no call for this.
    """
    _write(library, _GPU, handle, spec)


def write_instance(library: Library, handle: Any, spec: SchedulerSpec) -> None:
    """Set the scheduler of a GPU instance, by NVML's handle of that.

    Raises:
        NvmlFailed: as `write`.
    """
    _write(library, _INSTANCE, handle, spec)


def _write(library: Library, owner: str, handle: Any, spec: SchedulerSpec) -> None:
    nvml, v2, v1 = library.nvml, _setter(owner, "v2"), _setter(owner, "v1")
    if library.has(v2) and spec.time_slice_ms is None:  # version 2 knows adaptive round robin alone
        two = nvml.c_nvmlVgpuSchedulerState_v2_t()
        two.engineId, two.schedulerPolicy = _GRAPHICS, _NUMBERS[spec.policy]
        two.avgFactor, two.frequency = spec.averaging_factor or 0, spec.frequency_hz or 0
        library.run(v2, handle, two)
        return
    if not library.has(v1):
        raise library.failed(
            f"this driver's NVML has no {v1}, which a fixed time slice needs"
            if library.has(v2)
            else "this driver's NVML cannot set a vGPU scheduler",
            v1,
            None,
        )
    if owner == _GPU:
        one = nvml.c_nvmlVgpuSchedulerSetState_t()
    else:
        one = nvml.c_nvmlVgpuSchedulerState_v1_t()
        one.version, one.engineId = nvml.nvmlVgpuSchedulerState_v1, _GRAPHICS
    one.schedulerPolicy = _NUMBERS[spec.policy]
    one.enableARRMode = {None: _DEFAULT, True: _ADAPTIVE, False: _STRICT}[spec.adaptive]
    if spec.time_slice_ms is not None:
        one.schedulerParams.vgpuSchedData.timeslice = spec.time_slice_ms * _NS_PER_MS
    else:
        one.schedulerParams.vgpuSchedDataWithARR.avgFactor = spec.averaging_factor or 0
        one.schedulerParams.vgpuSchedDataWithARR.frequency = spec.frequency_hz or 0
    library.run(v1, handle, one)


def _setter(owner: str, version: str) -> str:
    return f"nvml{owner}SetVgpuSchedulerState" + ("_v2" if version == "v2" else "")


def _getter(owner: str, version: str) -> str:
    return f"nvml{owner}GetVgpuSchedulerState" + ("_v2" if version == "v2" else "")


def _state(library: Library, owner: str, handle: Any) -> SchedulerState | None:
    if library.has(_getter(owner, "v2")):
        asked = library.nvml.c_nvmlVgpuSchedulerStateInfo_v2_t()
        asked.engineId = _GRAPHICS
        two = library.ask(_getter(owner, "v2"), handle, asked)
        if two is not None:
            adaptive = None if library.has(_getter(owner, "v1")) else True
            one = _version_1(library, owner, handle)
            if one is not None:
                adaptive = _mode(one.arrMode)
            return _made(two.schedulerPolicy, adaptive, two.timeslice, two.avgFactor)
    one = _version_1(library, owner, handle)
    if one is None:
        return None
    mode = _mode(one.arrMode)
    if mode is None:  # then nothing tells which half of the union is meant
        return _made(one.schedulerPolicy, None, 0, 0)
    if mode:
        params = one.schedulerParams.vgpuSchedDataWithARR
        return _made(one.schedulerPolicy, True, params.timeslice, params.avgFactor)
    return _made(one.schedulerPolicy, False, one.schedulerParams.vgpuSchedData.timeslice, 0)


def _version_1(library: Library, owner: str, handle: Any) -> Any:
    name = _getter(owner, "v1")
    if owner == _GPU or not library.has(name):
        return library.ask(name, handle)
    asked = library.nvml.c_nvmlVgpuSchedulerStateInfo_v1_t()
    asked.version, asked.engineId = library.nvml.nvmlVgpuSchedulerStateInfo_v1, _GRAPHICS
    return library.ask(name, handle, asked)


def _made(policy: int, adaptive: bool | None, slice_ns: int, factor: int) -> SchedulerState:
    known = _POLICIES.get(int(policy))
    if known is Policy.BEST_EFFORT:
        return SchedulerState(known)
    return SchedulerState(known, adaptive, int(slice_ns) or None, int(factor) or None)


def _mode(number: int) -> bool | None:
    return {_STRICT: False, _ADAPTIVE: True}.get(int(number))


def _limits(library: Library, handle: Any) -> SchedulerLimits | None:
    seen = library.ask(_LIMITS, handle)
    if seen is None:
        return None
    return SchedulerLimits(
        policies=frozenset(_POLICIES[n] for n in seen.supportedSchedulers if n in _POLICIES),
        adaptive=bool(seen.isArrModeSupported),
        time_slice_ns=(int(seen.minTimeslice), int(seen.maxTimeslice)),
        frequency_hz=(int(seen.minFrequencyForARR), int(seen.maxFrequencyForARR)),
        averaging_factor=(int(seen.minAvgFactorForARR), int(seen.maxAvgFactorForARR)),
    )
