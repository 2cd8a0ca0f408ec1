# SPDX-License-Identifier: Apache-2.0
"""What a driver takes: judged by its own capabilities; by the documented ranges only where those are not known."""

from __future__ import annotations

from vgpuctl.model.gpu import Gpu
from vgpuctl.model.scheduler import Policy, SchedulerLimits, SchedulerSpec, SchedulerState
from vgpuctl.scheduler.registry import Generation, unfit

DOCUMENTED = SchedulerLimits(
    policies=frozenset(Policy),
    adaptive=True,
    time_slice_ns=(1_000_000, 30_000_000),
    frequency_hz=(63, 960),
    averaging_factor=(1, 60),
)
"""Source: NVIDIA's vGPU documentation of RmPVMRL. Only a fallback: a driver's own ranges count."""

PASCAL, BLACKWELL = 4, 10
_NS_PER_MS = 1_000_000
_NEAR = 0.01


def has_own(gpu: Gpu) -> bool:
    """Say whether the GPU instances of a GPU have schedulers of their own: where one takes several vGPUs (GB20x)."""
    return bool(gpu.gi_schedulers) or any((t.max_per_gi or 1) > 1 for t in gpu.types)


def runs_on(gpu: Gpu) -> SchedulerState | None:
    """Return what runs for a GPU's vGPUs, None when that is not known.

    With MIG it is what runs in each instance, where those have schedulers; one without a policy where they differ.
    """
    if gpu.mig is not None and gpu.mig.enabled and gpu.gi_schedulers:
        each = set(gpu.gi_schedulers.values())
        return each.pop() if len(each) == 1 else SchedulerState(None)
    return gpu.scheduler.state if gpu.scheduler is not None else None


def why_not(gpu: Gpu, kind: Generation | None, spec: SchedulerSpec) -> str | None:
    """Say why this GPU and driver cannot have a scheduler, None when nothing speaks against it."""
    why = _mode(gpu, spec)
    if why is not None:
        return why
    seen = gpu.scheduler
    limits = seen.limits if seen is not None else None
    said = "the driver takes" if limits is not None else "the driver was not asked; documented is"
    if limits is not None and spec.policy not in limits.policies:
        known = ", ".join(sorted(limits.policies)) or "none"
        return f"its driver has no {spec.policy}; it has {known}"
    if limits is not None and not limits.adaptive and spec.adaptive:
        return "its driver has no adaptive round robin: give a time slice, or neither"
    if kind is not None and (why := unfit(kind, spec)) is not None:
        return why
    return _ranges(limits or DOCUMENTED, spec, said)


def _mode(gpu: Gpu, spec: SchedulerSpec) -> str | None:
    architecture = gpu.scheduler.architecture if gpu.scheduler is not None else None
    if architecture is not None and architecture < PASCAL:
        return "it is older than Pascal, and only Pascal and later GPUs have a vGPU scheduler to choose"
    mig = gpu.mig is not None and gpu.mig.enabled
    if mig and has_own(gpu):
        return None
    if mig and (architecture or 0) >= BLACKWELL:
        return "MIG is on, and its GPU instances have no schedulers of their own: its vGPUs have a fixed share"
    if mig:
        return "with MIG on its vGPUs always have a fixed share before Blackwell, whatever is set"
    if gpu.mixed_size and spec.policy is Policy.FIXED_SHARE:
        return "its vGPUs have mixed sizes, for which there is best_effort and equal_share only"
    return None


def _ranges(limits: SchedulerLimits, spec: SchedulerSpec, said: str) -> str | None:
    least, most = (n / _NS_PER_MS for n in limits.time_slice_ns)
    if spec.time_slice_ms is not None and not least <= spec.time_slice_ms <= most:
        return f"a time slice of {spec.time_slice_ms} ms is out of range: {said} {least:g} to {most:g} ms"
    for value, (low, high), what in (
        (spec.frequency_hz, limits.frequency_hz, "a frequency of {} Hz"),
        (spec.averaging_factor, limits.averaging_factor, "an averaging factor of {}"),
    ):
        if value is not None and not low <= value <= high:
            return f"{what.format(value)} is out of range: {said} {low} to {high}"
    return None


def satisfies(state: SchedulerState | None, spec: SchedulerSpec) -> bool:
    """Say whether what runs is what is asked for. What is left to the driver, or not told by it, is not compared."""
    if state is None or state.policy is not spec.policy:
        return False
    if spec.policy is Policy.BEST_EFFORT:
        return True
    if spec.adaptive is not None and state.adaptive is not None and state.adaptive is not spec.adaptive:
        return False
    wanted_ns = _slice_ns(spec)
    if wanted_ns is not None and state.time_slice_ns and abs(state.time_slice_ns - wanted_ns) > _NEAR * wanted_ns:
        return False
    factor = spec.averaging_factor
    return factor is None or state.averaging_factor in (None, 0, factor)


def as_spec(state: SchedulerState) -> SchedulerSpec | None:
    """Return what would be asked for to have this state again; None when its policy is not known."""
    if state.policy is None:
        return None
    if state.policy is Policy.BEST_EFFORT or not state.time_slice_ns:
        return SchedulerSpec(state.policy)
    if state.adaptive:
        hertz = round(1_000_000_000 / state.time_slice_ns)
        return SchedulerSpec(state.policy, None, hertz, state.averaging_factor)
    return SchedulerSpec(state.policy, round(state.time_slice_ns / _NS_PER_MS) or None)


def _slice_ns(spec: SchedulerSpec) -> int | None:
    if spec.time_slice_ms is not None:
        return spec.time_slice_ms * _NS_PER_MS
    return None if spec.frequency_hz is None else 1_000_000_000 // spec.frequency_hz
