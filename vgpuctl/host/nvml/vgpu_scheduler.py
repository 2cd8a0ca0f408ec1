# SPDX-License-Identifier: Apache-2.0
"""NVML's vGPU scheduler calls, for a GPU and for one GPU instance: version 2 first, then version 1, or neither.

Every function may be missing from the loaded library; what is missing is unknown, not an error. Traps:
- Version 2's structs have no version field and name an engine.
- Version 1 returns {averaging factor, slice} or {slice} as one union; its mode says which.
- Version 1 of a GPU instance, unlike that of a GPU, has a version field and names an engine too.
- Slices are nanoseconds.
Source: nvml.h of CUDA 13, by pynvml.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vgpuctl.host.nvml.library import NvmlLibrary
from vgpuctl.model.gpu import GpuInstance
from vgpuctl.model.vgpu_scheduler import GpuScheduler, SchedulerLimits, SchedulerPolicy, SchedulerSpec, SchedulerState

_GPU, _INSTANCE = "Device", "GpuInstance"
_GET_CAPABILITIES = "nvmlDeviceGetVgpuSchedulerCapabilities"
_POLICIES = {1: SchedulerPolicy.BEST_EFFORT, 2: SchedulerPolicy.EQUAL_SHARE, 3: SchedulerPolicy.FIXED_SHARE}
_POLICY_NUMBERS = {policy: number for number, policy in _POLICIES.items()}
_GRAPHICS = 1
_DEFAULT, _STRICT, _ADAPTIVE = 0, 1, 2
_NS_PER_MS = 1_000_000


def read_scheduler(library: NvmlLibrary, handle: Any) -> GpuScheduler:
    """Return what NVML reports about a GPU's scheduler; each part that it does not report is None."""
    return GpuScheduler(
        limits=_read_limits(library, handle),
        state=_read_state(library, _GPU, handle),
        setter_versions=tuple(name for name in ("v2", "v1") if library.has(_setter_name(_GPU, name))),
        architecture=library.query("nvmlDeviceGetArchitecture", handle),
    )


def read_gi_schedulers(
    library: NvmlLibrary, handle: Any, instances: tuple[GpuInstance, ...]
) -> Mapping[int, SchedulerState]:
    """Return each GPU instance's scheduler by the instance's id; empty where instances have no own schedulers."""
    schedulers: dict[int, SchedulerState] = {}
    if not any(library.has(_getter_name(_INSTANCE, version)) for version in ("v2", "v1")):
        return schedulers
    for instance in instances:
        state = _read_state(library, _INSTANCE, library.query("nvmlDeviceGetGpuInstanceById", handle, instance.gi_id))
        if state is None:  # if one does not report it, none does
            break
        schedulers[instance.gi_id] = state
    return schedulers


def write_scheduler(library: NvmlLibrary, handle: Any, spec: SchedulerSpec) -> None:
    """Set a GPU's scheduler.

    Raises:
        NvmlFailed: NVML refused it, or the library has no call for it.
    """
    _write(library, _GPU, handle, spec)


def write_instance_scheduler(library: NvmlLibrary, handle: Any, spec: SchedulerSpec) -> None:
    """Set the scheduler of a GPU instance, by NVML's handle of the instance.

    Raises:
        NvmlFailed: as `write_scheduler`.
    """
    _write(library, _INSTANCE, handle, spec)


def _write(library: NvmlLibrary, owner: str, handle: Any, spec: SchedulerSpec) -> None:
    nvml, v2, v1 = library.nvml, _setter_name(owner, "v2"), _setter_name(owner, "v1")
    if library.has(v2) and spec.time_slice_ms is None:  # version 2 supports only adaptive round robin
        state_v2 = nvml.c_nvmlVgpuSchedulerState_v2_t()
        state_v2.engineId, state_v2.schedulerPolicy = _GRAPHICS, _POLICY_NUMBERS[spec.policy]
        state_v2.avgFactor, state_v2.frequency = spec.averaging_factor or 0, spec.frequency_hz or 0
        library.call(v2, handle, state_v2)
        return
    if not library.has(v1):
        raise library.make_error(
            f"this driver's NVML has no {v1}, which a fixed time slice needs"
            if library.has(v2)
            else "this driver's NVML cannot set a vGPU scheduler",
            v1,
            None,
        )
    if owner == _GPU:
        state_v1 = nvml.c_nvmlVgpuSchedulerSetState_t()
    else:
        state_v1 = nvml.c_nvmlVgpuSchedulerState_v1_t()
        state_v1.version, state_v1.engineId = nvml.nvmlVgpuSchedulerState_v1, _GRAPHICS
    state_v1.schedulerPolicy = _POLICY_NUMBERS[spec.policy]
    state_v1.enableARRMode = {None: _DEFAULT, True: _ADAPTIVE, False: _STRICT}[spec.adaptive]
    if spec.time_slice_ms is not None:
        state_v1.schedulerParams.vgpuSchedData.timeslice = spec.time_slice_ms * _NS_PER_MS
    else:
        state_v1.schedulerParams.vgpuSchedDataWithARR.avgFactor = spec.averaging_factor or 0
        state_v1.schedulerParams.vgpuSchedDataWithARR.frequency = spec.frequency_hz or 0
    library.call(v1, handle, state_v1)


def _setter_name(owner: str, version: str) -> str:
    return f"nvml{owner}SetVgpuSchedulerState" + ("_v2" if version == "v2" else "")


def _getter_name(owner: str, version: str) -> str:
    return f"nvml{owner}GetVgpuSchedulerState" + ("_v2" if version == "v2" else "")


def _read_state(library: NvmlLibrary, owner: str, handle: Any) -> SchedulerState | None:
    if library.has(_getter_name(owner, "v2")):
        request = library.nvml.c_nvmlVgpuSchedulerStateInfo_v2_t()
        request.engineId = _GRAPHICS
        state_v2 = library.query(_getter_name(owner, "v2"), handle, request)
        if state_v2 is not None:
            adaptive = None if library.has(_getter_name(owner, "v1")) else True
            state_v1 = _read_version_1(library, owner, handle)
            if state_v1 is not None:
                adaptive = _parse_adaptive(state_v1.arrMode)
            return _make_state(state_v2.schedulerPolicy, adaptive, state_v2.timeslice, state_v2.avgFactor)
    state_v1 = _read_version_1(library, owner, handle)
    if state_v1 is None:
        return None
    mode = _parse_adaptive(state_v1.arrMode)
    if mode is None:  # then it is unknown which half of the union is valid
        return _make_state(state_v1.schedulerPolicy, None, 0, 0)
    if mode:
        params = state_v1.schedulerParams.vgpuSchedDataWithARR
        return _make_state(state_v1.schedulerPolicy, True, params.timeslice, params.avgFactor)
    return _make_state(state_v1.schedulerPolicy, False, state_v1.schedulerParams.vgpuSchedData.timeslice, 0)


def _read_version_1(library: NvmlLibrary, owner: str, handle: Any) -> Any:
    name = _getter_name(owner, "v1")
    if owner == _GPU or not library.has(name):
        return library.query(name, handle)
    request = library.nvml.c_nvmlVgpuSchedulerStateInfo_v1_t()
    request.version, request.engineId = library.nvml.nvmlVgpuSchedulerStateInfo_v1, _GRAPHICS
    return library.query(name, handle, request)


def _make_state(policy: int, adaptive: bool | None, slice_ns: int, factor: int) -> SchedulerState:
    known_policy = _POLICIES.get(int(policy))
    if known_policy is SchedulerPolicy.BEST_EFFORT:
        return SchedulerState(known_policy)
    return SchedulerState(known_policy, adaptive, int(slice_ns) or None, int(factor) or None)


def _parse_adaptive(number: int) -> bool | None:
    return {_STRICT: False, _ADAPTIVE: True}.get(int(number))


def _read_limits(library: NvmlLibrary, handle: Any) -> SchedulerLimits | None:
    capabilities = library.query(_GET_CAPABILITIES, handle)
    if capabilities is None:
        return None
    return SchedulerLimits(
        policies=frozenset(_POLICIES[n] for n in capabilities.supportedSchedulers if n in _POLICIES),
        supports_adaptive=bool(capabilities.isArrModeSupported),
        time_slice_ns=(int(capabilities.minTimeslice), int(capabilities.maxTimeslice)),
        frequency_hz=(int(capabilities.minFrequencyForARR), int(capabilities.maxFrequencyForARR)),
        averaging_factor=(int(capabilities.minAvgFactorForARR), int(capabilities.maxAvgFactorForARR)),
    )
