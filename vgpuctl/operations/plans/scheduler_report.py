# SPDX-License-Identifier: Apache-2.0
"""A GPU's scheduler as results: configured and running, limits, each vGPU's guaranteed share."""

from __future__ import annotations

from vgpuctl.model.gpu import Gpu, Vgpu
from vgpuctl.model.results.gpus import (
    RangeResult,
    RunningSchedulerResult,
    SchedulerLimitsResult,
    SchedulerResult,
    ShareResult,
)
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vgpu_scheduler import SchedulerLimits, SchedulerSpec, SchedulerState
from vgpuctl.model.vm import VmState
from vgpuctl.scheduler import time_share
from vgpuctl.scheduler.limits import running_scheduler
from vgpuctl.scheduler.modprobe_files import ModprobeFile, find_configured_dword, find_loaded_dword, parse_settings
from vgpuctl.scheduler.registry_dword import decode_dword, driver_generation, is_weighted
from vgpuctl.value import Value

_RUNNING = (VmState.RUNNING, VmState.PAUSED)
_NS_PER_US, _NS_PER_MS = 1000, 1_000_000


class SchedulerDetails(Value):
    """What show-gpu adds: limits, the scheduler that the driver was loaded with, the next one, and the shares."""

    limits: SchedulerLimitsResult | None
    at_load: SchedulerSpec | None
    at_next_load: SchedulerSpec | None
    shares: tuple[ShareResult, ...]


def scheduler_summary(gpu: Gpu) -> SchedulerResult | None:
    """Return the configured and the running scheduler, None if there is neither."""
    running = running_scheduler(gpu)
    if running is None and gpu.desired_scheduler is None:
        return None
    return SchedulerResult(configured=gpu.desired_scheduler, running=_running_result(running))


def scheduler_details(
    snapshot: Snapshot, gpu: Gpu, driver: str | None, params: str | None, files: tuple[ModprobeFile, ...]
) -> SchedulerDetails:
    """Return the details for show-gpu. `params`: the loaded driver's parameters as text; `files`: modprobe's."""
    limits = gpu.scheduler.limits if gpu.scheduler is not None else None
    adaptive = limits.supports_adaptive if limits is not None else None
    word = find_loaded_dword(params or "", gpu.address)
    return SchedulerDetails(
        limits=_limits_result(limits),
        at_load=_word_spec(driver, adaptive, word),
        at_next_load=_word_spec(driver, adaptive, find_configured_dword(parse_settings(files), gpu.address)),
        shares=_shares(snapshot, gpu, is_weighted(driver, word)),
    )


def _shares(snapshot: Snapshot, gpu: Gpu, weights: bool | None) -> tuple[ShareResult, ...]:
    state = gpu.scheduler.state if gpu.scheduler is not None else None
    if state is None:
        return ()
    vgpus = [v for v in snapshot.vgpus_on(gpu.address) if v.profile is not None]
    running = sum(_is_running(snapshot, v) for v in vgpus)
    if not vgpus:
        return ()
    shares: list[ShareResult] = []
    for vgpu in vgpus:
        max_vgpus = next((t.max_per_gpu for t in gpu.types if t.profile == vgpu.profile), None)
        share = time_share.compute_time_share(
            state,
            is_running=_is_running(snapshot, vgpu),
            running_count=running,
            max_vgpus=max_vgpus,
            is_weighted=weights,
        )
        shares.append(
            ShareResult(
                carrier=vgpu.carrier,
                vm=vgpu.vm,
                name=vgpu.name,
                profile=vgpu.profile,
                guaranteed_percent=None if share.fraction is None else round(float(100 * share.fraction), 2),
                time_slice_us=_to_us(share.time_slice_ns),
                note=share.note,
            )
        )
    return tuple(shares)


def _is_running(snapshot: Snapshot, vgpu: Vgpu) -> bool:
    vm = snapshot.vm(vgpu.vm_uuid or "")
    return vgpu.present and vm is not None and vm.state in _RUNNING


def _running_result(state: SchedulerState | None) -> RunningSchedulerResult | None:
    if state is None:
        return None
    time_slice_us = _to_us(state.time_slice_ns)
    return RunningSchedulerResult(state.policy, state.adaptive, time_slice_us, state.averaging_factor, state.source)


def _limits_result(limits: SchedulerLimits | None) -> SchedulerLimitsResult | None:
    if limits is None:
        return None
    min_slice, max_slice = limits.time_slice_ns
    return SchedulerLimitsResult(
        policies=tuple(sorted(limits.policies)),
        adaptive=limits.supports_adaptive,
        time_slice_ms=RangeResult(min_slice / _NS_PER_MS, max_slice / _NS_PER_MS),
        frequency_hz=RangeResult(*limits.frequency_hz),
        averaging_factor=RangeResult(*limits.averaging_factor),
    )


def _word_spec(driver: str | None, adaptive: bool | None, word: int | None) -> SchedulerSpec | None:
    """Return the scheduler that a DWORD selects; None if the driver does not understand it."""
    generation = driver_generation(driver, adaptive=adaptive)
    if generation is None or word is None:
        return None
    try:
        return decode_dword(generation, word)
    except ValueError:
        return None


def _to_us(time_slice_ns: int | None) -> float | None:
    return None if time_slice_ns is None else time_slice_ns / _NS_PER_US
