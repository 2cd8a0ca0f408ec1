# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's vGPU scheduler on a simulated host: what a GPU starts with, and when NVML may change it.

The simulator states these rules itself, from NVIDIA's open kernel modules (nvrm_registry.h, gpu.c) and nvml.h, not
from vgpuctl's code. When the driver loads, a GPU takes its setting from RegistryDwordsPerDevice, else from
RegistryDwords. NVML sets it only while no vGPU exists on the GPU, and unbinding the driver loses it. Unset numbers have
the documented defaults. The contract tests check this against the lab's library, which only restates the same sources:
only NVIDIA's own driver has a scheduler.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from vgpuctl.model.names import normalize_device
from vgpuctl.model.vgpu_scheduler import GpuScheduler, SchedulerLimits, SchedulerPolicy, SchedulerSpec, SchedulerState
from vgpuctl.sim import mig
from vgpuctl.sim.journal import JournalRecord
from vgpuctl.sim.machine import SimGpu
from vgpuctl.sim.refusals import INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, raise_nvml_error
from vgpuctl.sim.state import State

V1_SINCE, ARR_SINCE, V2_SINCE, ARR_ONLY_SINCE = 525, 535, 590, 595
BLACKWELL = 10
NS_PER_MS, DEFAULT_FACTOR = 1_000_000, 33
_SLICE_RANGE, _FREQUENCY_RANGE, _FACTOR_RANGE = (NS_PER_MS, 30 * NS_PER_MS), (63, 960), (1, 60)
_BEST_EFFORT: list[Any] = [str(SchedulerPolicy.BEST_EFFORT), None, None, None]
_OPTION = re.compile(r'(NVreg_RegistryDwords(?:PerDevice)?)="?([^"\s]*)"?')


def read_scheduler(state: State, gpu: SimGpu) -> GpuScheduler:
    """Return what NVML reports about a GPU's scheduler."""
    driver = state.machine.driver_major
    arr = driver >= ARR_SINCE
    names = (("v2", V2_SINCE), ("v1", V1_SINCE))
    return GpuScheduler(
        limits=SchedulerLimits(frozenset(SchedulerPolicy), arr, _SLICE_RANGE, _FREQUENCY_RANGE, _FACTOR_RANGE)
        if driver >= V1_SINCE
        else None,
        state=running_state(state, gpu) if driver >= V1_SINCE else None,
        setter_versions=tuple(name for name, since in names if driver >= since),
        architecture=gpu.architecture,
    )


def running_state(state: State, gpu: SimGpu) -> SchedulerState:
    """Return the active scheduler: what NVML set since the driver was bound, else what the module was loaded with.

    With MIG on, GPUs before Blackwell always use fixed share (gpu.c, _gpuGetSchedulerPolicyGr).
    """
    if state.partitions.is_mig_enabled(gpu.address) and gpu.architecture < BLACKWELL:
        return _scheduler_state(_with_defaults(state, gpu, SchedulerSpec(SchedulerPolicy.FIXED_SHARE), strict=True))
    return _scheduler_state(state.schedulers.get(gpu.address) or _values_at_load(state, gpu))


def instance_states(state: State, gpu: SimGpu) -> dict[int, SchedulerState]:
    """Return the active scheduler of each GPU instance. From Blackwell on, each instance has its own."""
    if gpu.architecture < BLACKWELL or state.machine.driver_major < V1_SINCE:
        return {}
    schedulers = state.partitions.schedulers.get(gpu.address, {})
    return {
        i.gi_id: _scheduler_state(schedulers.get(i.gi_id) or _values_at_load(state, gpu))
        for i in state.partitions.instances_on(gpu.address)
    }


def set_state(state: State, gpu: SimGpu, spec: SchedulerSpec, gi_id: int | None = None) -> list[JournalRecord]:
    """Return the records that set the scheduler of a GPU or of a GPU instance.

    Raises:
        NvmlError: a vGPU exists there; MIG is on and no instance is given; there is no such instance; instances have
            no schedulers; fixed share with mixed sizes; or the driver does not accept the numbers.
    """
    if state.machine.driver_major < V1_SINCE or state.driver(gpu.own_function) != "nvidia":
        raise_nvml_error(NOT_SUPPORTED)
    enabled = state.partitions.is_mig_enabled(gpu.address)
    if gi_id is not None and enabled:
        if gi_id not in {instance.gi_id for instance in state.partitions.instances_on(gpu.address)}:
            raise_nvml_error(NOT_FOUND)
        if gpu.architecture < BLACKWELL or mig.instance_vgpus(state, gpu, gi_id):
            raise_nvml_error(NOT_SUPPORTED)
        return [["partition", "scheduler", gpu.address, gi_id, *_checked_values(state, gpu, spec)]]
    if gi_id is not None or enabled or state.vgpus_by_gpu[gpu.address]:
        raise_nvml_error(NOT_SUPPORTED)
    if gpu.address in state.partitions.mixed_size_gpus and spec.policy is SchedulerPolicy.FIXED_SHARE:
        raise_nvml_error(NOT_SUPPORTED)
    return [["scheduler", gpu.address, *_checked_values(state, gpu, spec)]]


def _checked_values(state: State, gpu: SimGpu, spec: SchedulerSpec) -> list[Any]:
    """Check a specification and return the values that the driver stores."""
    driver = state.machine.driver_major
    if spec.policy is SchedulerPolicy.BEST_EFFORT:
        return list(_BEST_EFFORT)
    strict = spec.time_slice_ms is not None
    adaptive = spec.frequency_hz is not None or spec.averaging_factor is not None
    if (strict and driver >= ARR_ONLY_SINCE) or (adaptive and driver < ARR_SINCE) or (strict and adaptive):
        raise_nvml_error(INVALID_ARGUMENT)
    for value, (minimum, maximum) in (
        (spec.time_slice_ms and spec.time_slice_ms * NS_PER_MS, _SLICE_RANGE),
        (spec.frequency_hz, _FREQUENCY_RANGE),
        (spec.averaging_factor, _FACTOR_RANGE),
    ):
        if value is not None and not minimum <= value <= maximum:
            raise_nvml_error(INVALID_ARGUMENT)
    return _with_defaults(state, gpu, spec, strict=strict)


def module_records(texts: Iterable[str]) -> list[JournalRecord]:
    """Return the records of loading nvidia.ko with the options in these files. The last value of a parameter wins."""
    options: dict[str, str] = {}
    for text in texts:
        for line in text.replace("\\\n", " ").splitlines():
            if line.split()[:2] == ["options", "nvidia"]:
                options.update({name: value for name, value in _OPTION.findall(line)})
    if not options:
        return []
    return [["module", options.get("NVreg_RegistryDwords", ""), options.get("NVreg_RegistryDwordsPerDevice", "")]]


def module_params_text(state: State) -> str:
    """Return the registry lines of /proc/driver/nvidia/params."""
    return f'RegistryDwords: "{state.module_options[0]}"\nRegistryDwordsPerDevice: "{state.module_options[1]}"\n'


def kernel_log_lines(state: State) -> tuple[str, ...]:
    """Return the lines that the driver logs when it initialises each GPU."""
    lines = []
    for gpu in state.machine.gpus.values():
        if gpu.nvml and state.driver(gpu.own_function) == "nvidia" and gpu.types:
            policy = str(_values_at_load(state, gpu)[0]).upper()
            word = "DISABLED" if policy == "BEST_EFFORT" else "ENABLED"
            lines.append(f"NVRM: GPU at {gpu.address} has software scheduler {word} with policy {policy}.")
    return tuple(lines)


def _scheduler_state(values: list[Any]) -> SchedulerState:
    policy, arr, factor, slice_ns = values
    return SchedulerState(SchedulerPolicy(policy), arr, slice_ns, factor)


def _with_defaults(state: State, gpu: SimGpu, spec: SchedulerSpec, *, strict: bool) -> list[Any]:
    has_few_vgpus = max((kind.maximum for kind in gpu.types.values() if not kind.is_mig_backed), default=1) <= 8
    if strict or state.machine.driver_major < ARR_SINCE:
        return [str(spec.policy), False, None, (spec.time_slice_ms or (2 if has_few_vgpus else 1)) * NS_PER_MS]
    hertz = spec.frequency_hz or (480 if has_few_vgpus else 960)
    return [str(spec.policy), True, spec.averaging_factor or DEFAULT_FACTOR, 1000 * NS_PER_MS // hertz]


def _values_at_load(state: State, gpu: SimGpu) -> list[Any]:
    """Return the values that the GPU starts with: the bits of its RmPVMRL, as this driver reads them."""
    word = _registry_word(state, gpu)
    if not word & 1:
        return list(_BEST_EFFORT)
    policy = SchedulerPolicy.FIXED_SHARE if word >> 4 & 0xF == 1 else SchedulerPolicy.EQUAL_SHARE
    driver = state.machine.driver_major
    strict = driver < 550 or (driver < ARR_ONLY_SINCE and bool(word & 2))
    if strict:
        spec = SchedulerSpec(policy, time_slice_ms=(word >> 16 & 0xFF) or None)
    else:
        spec = SchedulerSpec(policy, None, (word >> 12 & 0x3FF) or None, (word >> 24) or None)
    return _with_defaults(state, gpu, spec, strict=strict)


def _registry_word(state: State, gpu: SimGpu) -> int:
    dwords, per_device = state.module_options
    word, is_this_gpu = 0, False
    for entry in dwords.split(";"):
        name, _, value = entry.partition("=")
        word = int(value, 0) if name == "RmPVMRL" else word
    for entry in per_device.split(";"):
        name, _, value = entry.partition("=")
        if name == "pci":
            is_this_gpu = normalize_device(value) == gpu.address
        elif is_this_gpu and name == "RmPVMRL":
            word = int(value, 0)
    return word
