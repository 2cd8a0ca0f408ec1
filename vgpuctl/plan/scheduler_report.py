# SPDX-License-Identifier: Apache-2.0
"""A GPU's scheduler as the values that commands print: asked for and running, ranges, each vGPU's guaranteed share."""

from __future__ import annotations

from vgpuctl.model.gpu import Gpu, Vgpu
from vgpuctl.model.scheduler import SchedulerLimits, SchedulerSpec, SchedulerState
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import VmState
from vgpuctl.scheduler.limits import runs_on
from vgpuctl.scheduler.modprobe import ModprobeFile, in_force, loaded, settings
from vgpuctl.scheduler.registry import decode, generation, weighted

Value = dict[str, object]
_RUNNING = (VmState.RUNNING, VmState.PAUSED)
_NS_PER_US, _NS_PER_MS = 1000, 1_000_000


def scheduler_pair(gpu: Gpu) -> Value | None:
    """Return what is asked for and what runs, None where there is nothing of either."""
    running = runs_on(gpu)
    if running is None and gpu.desired_scheduler is None:
        return None
    return {"asked": _asked(gpu.desired_scheduler), "running": _running(running)}


def scheduler_details(
    snapshot: Snapshot, gpu: Gpu, driver: str | None, params: str | None, files: tuple[ModprobeFile, ...]
) -> Value:
    """Return the rest for show-gpu. `params`: the text of the loaded driver's parameters; `files`: modprobe's."""
    limits = gpu.scheduler.limits if gpu.scheduler is not None else None
    adaptive = limits.adaptive if limits is not None else None
    word = loaded(params or "", gpu.address)
    return {
        "scheduler_limits": _limits(limits),
        "scheduler_at_load": _word(driver, adaptive, word),
        "scheduler_next": _word(driver, adaptive, in_force(settings(files), gpu.address)),
        "shares": _shares(snapshot, gpu, weighted(driver, word)),
    }


def _shares(snapshot: Snapshot, gpu: Gpu, weights: bool | None) -> list[Value]:
    state = gpu.scheduler.state if gpu.scheduler is not None else None
    if state is None:
        return []
    vgpus = [v for v in snapshot.taken_on(gpu.address) if v.profile is not None]
    running = sum(_runs(snapshot, v) for v in vgpus)
    if not vgpus:
        return []
    from vgpuctl.scheduler.share import share  # with fractions, which no other command needs

    values: list[Value] = []
    for vgpu in vgpus:
        most = next((t.max_per_gpu for t in gpu.types if t.profile == vgpu.profile), None)
        found = share(state, runs=_runs(snapshot, vgpu), running=running, most=most, weighted=weights)
        values.append(
            {
                "carrier": vgpu.carrier,
                "vm": vgpu.vm,
                "name": vgpu.name,
                "profile": vgpu.profile,
                "guaranteed_percent": None if found.part is None else round(float(100 * found.part), 2),
                "time_slice_us": _us(found.time_slice_ns),
                "note": found.note,
            }
        )
    return values


def _runs(snapshot: Snapshot, vgpu: Vgpu) -> bool:
    vm = snapshot.vm(vgpu.vm_uuid or "")
    return vgpu.present and vm is not None and vm.state in _RUNNING


def _asked(spec: SchedulerSpec | None) -> Value | None:
    if spec is None:
        return None
    names = ("time_slice_ms", "frequency_hz", "averaging_factor")
    return {"policy": str(spec.policy), **{name: getattr(spec, name) for name in names}}


def _running(state: SchedulerState | None) -> Value | None:
    if state is None:
        return None
    return {
        "policy": str(state.policy) if state.policy is not None else None,
        "adaptive": state.adaptive,
        "time_slice_us": _us(state.time_slice_ns),
        "averaging_factor": state.averaging_factor,
        "source": state.source,
    }


def _limits(limits: SchedulerLimits | None) -> Value | None:
    if limits is None:
        return None
    least, most = limits.time_slice_ns
    return {
        "policies": sorted(str(policy) for policy in limits.policies),
        "adaptive": limits.adaptive,
        "time_slice_ms": {"least": least / _NS_PER_MS, "most": most / _NS_PER_MS},
        "frequency_hz": {"least": limits.frequency_hz[0], "most": limits.frequency_hz[1]},
        "averaging_factor": {"least": limits.averaging_factor[0], "most": limits.averaging_factor[1]},
    }


def _word(driver: str | None, adaptive: bool | None, word: int | None) -> Value | None:
    """Return what a word asks for; one that the driver does not understand asks for nothing."""
    kind = generation(driver, adaptive=adaptive)
    if kind is None or word is None:
        return None
    try:
        return _asked(decode(kind, word))
    except ValueError:
        return None


def _us(time_slice_ns: int | None) -> float | None:
    return None if time_slice_ns is None else time_slice_ns / _NS_PER_US
