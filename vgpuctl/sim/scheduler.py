# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's vGPU scheduler on a simulated host: what a GPU begins with, and when NVML sets another.

The simulator's own statement, made from NVIDIA's open kernel modules (nvrm_registry.h, gpu.c) and nvml.h, not from the
program: at load a GPU takes its word from RegistryDwordsPerDevice, else from RegistryDwords; NVML sets it only while no
vGPU exists on it, and it is lost when the GPU is taken from the driver. Numbers that nobody set are the documented
defaults. The contract tests hold this to the library of the lab, which is no more than another statement of the same
sources: only NVIDIA's own driver has a scheduler.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from vgpuctl.model.address import normal_pci
from vgpuctl.model.scheduler import GpuScheduler, Policy, SchedulerLimits, SchedulerSpec, SchedulerState
from vgpuctl.sim import mig
from vgpuctl.sim.journal import Record
from vgpuctl.sim.machine import SimGpu
from vgpuctl.sim.nvml_codes import INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, refuse
from vgpuctl.sim.state import State

V1_SINCE, ARR_SINCE, V2_SINCE, ARR_ONLY_SINCE = 525, 535, 590, 595
BLACKWELL = 10
MS, FACTOR = 1_000_000, 33
_SLICES, _HERTZ, _FACTORS = (MS, 30 * MS), (63, 960), (1, 60)
_BEST: list[Any] = [str(Policy.BEST_EFFORT), None, None, None]
_OPTION = re.compile(r'(NVreg_RegistryDwords(?:PerDevice)?)="?([^"\s]*)"?')


def seen(state: State, gpu: SimGpu) -> GpuScheduler:
    """Return what NVML says of a GPU's scheduler."""
    driver = state.machine.driver_major
    arr = driver >= ARR_SINCE
    names = (("v2", V2_SINCE), ("v1", V1_SINCE))
    return GpuScheduler(
        limits=SchedulerLimits(frozenset(Policy), arr, _SLICES, _HERTZ, _FACTORS) if driver >= V1_SINCE else None,
        state=running(state, gpu) if driver >= V1_SINCE else None,
        interfaces=tuple(name for name, since in names if driver >= since),
        architecture=gpu.architecture,
    )


def running(state: State, gpu: SimGpu) -> SchedulerState:
    """Return what runs: what NVML set since the driver took the GPU, else what the module was loaded with.

    With MIG on it is a fixed share before Blackwell, whatever was set (gpu.c, _gpuGetSchedulerPolicyGr).
    """
    if state.partitions.enabled(gpu.address) and gpu.architecture < BLACKWELL:
        return _state(_filled(state, gpu, SchedulerSpec(Policy.FIXED_SHARE), strict=True))
    return _state(state.schedulers.get(gpu.address) or _at_load(state, gpu))


def in_instances(state: State, gpu: SimGpu) -> dict[int, SchedulerState]:
    """Return what runs in each GPU instance, which have schedulers of their own from Blackwell on."""
    if gpu.architecture < BLACKWELL or state.machine.driver_major < V1_SINCE:
        return {}
    own = state.partitions.schedulers.get(gpu.address, {})
    return {i.gi_id: _state(own.get(i.gi_id) or _at_load(state, gpu)) for i in state.partitions.on(gpu.address)}


def set_state(state: State, gpu: SimGpu, spec: SchedulerSpec, gi_id: int | None = None) -> list[Record]:
    """Return the records of setting that of a GPU, or of a GPU instance.

    Raises:
        RefusedByNvml: a vGPU exists there, MIG is on and no instance is meant, there is no such instance or none has
            a scheduler, sizes are mixed and it is a fixed share, or the numbers are none that the driver takes.
    """
    if state.machine.driver_major < V1_SINCE or state.driver(gpu.own) != "nvidia":
        refuse(NOT_SUPPORTED)
    enabled = state.partitions.enabled(gpu.address)
    if gi_id is not None and enabled:
        if gi_id not in {instance.gi_id for instance in state.partitions.on(gpu.address)}:
            refuse(NOT_FOUND)
        if gpu.architecture < BLACKWELL or mig.inside(state, gpu, gi_id):
            refuse(NOT_SUPPORTED)
        return [["partition", "scheduler", gpu.address, gi_id, *_asked(state, gpu, spec)]]
    if gi_id is not None or enabled or state.on_gpu[gpu.address]:
        refuse(NOT_SUPPORTED)
    if gpu.address in state.partitions.mixed and spec.policy is Policy.FIXED_SHARE:
        refuse(NOT_SUPPORTED)
    return [["scheduler", gpu.address, *_asked(state, gpu, spec)]]


def _asked(state: State, gpu: SimGpu, spec: SchedulerSpec) -> list[Any]:
    """Return what the driver keeps of a specification."""
    driver = state.machine.driver_major
    if spec.policy is Policy.BEST_EFFORT:
        return list(_BEST)
    strict = spec.time_slice_ms is not None
    adaptive = spec.frequency_hz is not None or spec.averaging_factor is not None
    if (strict and driver >= ARR_ONLY_SINCE) or (adaptive and driver < ARR_SINCE) or (strict and adaptive):
        refuse(INVALID_ARGUMENT)
    for value, (least, most) in (
        (spec.time_slice_ms and spec.time_slice_ms * MS, _SLICES),
        (spec.frequency_hz, _HERTZ),
        (spec.averaging_factor, _FACTORS),
    ):
        if value is not None and not least <= value <= most:
            refuse(INVALID_ARGUMENT)
    return _filled(state, gpu, spec, strict=strict)


def loaded(texts: Iterable[str]) -> list[Record]:
    """Return the records of loading nvidia.ko with the options in these files: of one parameter the last counts."""
    found: dict[str, str] = {}
    for text in texts:
        for line in text.replace("\\\n", " ").splitlines():
            if line.split()[:2] == ["options", "nvidia"]:
                found.update({name: value for name, value in _OPTION.findall(line)})
    if not found:
        return []
    return [["module", found.get("NVreg_RegistryDwords", ""), found.get("NVreg_RegistryDwordsPerDevice", "")]]


def params(state: State) -> str:
    """Return /proc/driver/nvidia/params, as far as the registry goes."""
    return f'RegistryDwords: "{state.module[0]}"\nRegistryDwordsPerDevice: "{state.module[1]}"\n'


def kernel_log(state: State) -> tuple[str, ...]:
    """Return the lines that the driver writes when it takes each GPU."""
    lines = []
    for gpu in state.machine.gpus.values():
        if gpu.nvml and state.driver(gpu.own) == "nvidia" and gpu.types:
            policy = str(_at_load(state, gpu)[0]).upper()
            word = "DISABLED" if policy == "BEST_EFFORT" else "ENABLED"
            lines.append(f"NVRM: GPU at {gpu.address} has software scheduler {word} with policy {policy}.")
    return tuple(lines)


def _state(values: list[Any]) -> SchedulerState:
    policy, arr, factor, slice_ns = values
    return SchedulerState(Policy(policy), arr, slice_ns, factor)


def _filled(state: State, gpu: SimGpu, spec: SchedulerSpec, *, strict: bool) -> list[Any]:
    few = max((kind.maximum for kind in gpu.types.values() if not kind.mig), default=1) <= 8
    if strict or state.machine.driver_major < ARR_SINCE:
        return [str(spec.policy), False, None, (spec.time_slice_ms or (2 if few else 1)) * MS]
    hertz = spec.frequency_hz or (480 if few else 960)
    return [str(spec.policy), True, spec.averaging_factor or FACTOR, 1000 * MS // hertz]


def _at_load(state: State, gpu: SimGpu) -> list[Any]:
    """Return what the GPU begins with: the bits of its RmPVMRL, as this driver reads them."""
    word = _word(state, gpu)
    if not word & 1:
        return list(_BEST)
    policy = Policy.FIXED_SHARE if word >> 4 & 0xF == 1 else Policy.EQUAL_SHARE
    driver = state.machine.driver_major
    strict = driver < 550 or (driver < ARR_ONLY_SINCE and bool(word & 2))
    if strict:
        spec = SchedulerSpec(policy, time_slice_ms=(word >> 16 & 0xFF) or None)
    else:
        spec = SchedulerSpec(policy, None, (word >> 12 & 0x3FF) or None, (word >> 24) or None)
    return _filled(state, gpu, spec, strict=strict)


def _word(state: State, gpu: SimGpu) -> int:
    everywhere, each = state.module
    word, here = 0, False
    for entry in everywhere.split(";"):
        name, _, value = entry.partition("=")
        word = int(value, 0) if name == "RmPVMRL" else word
    for entry in each.split(";"):
        name, _, value = entry.partition("=")
        if name == "pci":
            short = value if "." in value else f"{value}.0"
            here = normal_pci(short if short.count(":") == 2 else f"0000:{short}") == gpu.address
        elif here and name == "RmPVMRL":
            word = int(value, 0)
    return word
