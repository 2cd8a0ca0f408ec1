# SPDX-License-Identifier: Apache-2.0
"""What a scheduler of a driver accepts and guarantees.

It accepts its own reported limits, or the documented ranges where those are unknown.

It guarantees a vGPU a share of its GPU's time. Best effort guarantees nothing. Fixed share: 1 / the maximum number of
vGPUs of its size on the GPU, also while others are idle or missing. Equal share: 1 / the running vGPUs, if the driver
does not weight them. Drivers from 590 on do unless bit 3 of RmPVMRL is set, and the weights are not published. Source:
NVIDIA's description of the three policies; nvrm_registry.h in NVIDIA's open kernel modules, 595.45. With Intel's xe the
host takes turns too, so a fixed share is 1 / (VFs + 1): see `xe`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.model.gpu import Gpu
from vgpuctl.model.vgpu_scheduler import (
    GpuScheduler,
    SchedulerInterface,
    SchedulerLimits,
    SchedulerPolicy,
    SchedulerSpec,
    SchedulerState,
)
from vgpuctl.scheduler.registry_dword import DriverGeneration, explain_unencodable
from vgpuctl.value import Value

if TYPE_CHECKING:
    from fractions import Fraction

DOCUMENTED_LIMITS = SchedulerLimits(
    policies=frozenset(SchedulerPolicy),
    supports_adaptive=True,
    time_slice_ns=(1_000_000, 30_000_000),
    frequency_hz=(63, 960),
    averaging_factor=(1, 60),
)
"""Source: NVIDIA's vGPU documentation of RmPVMRL. Only a fallback: a driver's own ranges take precedence."""

PASCAL, BLACKWELL = 4, 10
_NS_PER_MS = 1_000_000
_SLICE_TOLERANCE = 0.01


def has_instance_schedulers(gpu: Gpu) -> bool:
    """Return whether a GPU's instances have their own schedulers: if one takes several vGPUs (GB20x)."""
    return bool(gpu.gi_schedulers) or any((t.max_per_gi or 1) > 1 for t in gpu.types)


def running_scheduler(gpu: Gpu) -> SchedulerState | None:
    """Return the running scheduler of a GPU's vGPUs, None if unknown.

    With MIG it is the scheduler of the instances, if those have one; if they differ, a state without a policy.
    """
    if gpu.mig is not None and gpu.mig.enabled and gpu.gi_schedulers:
        states = set(gpu.gi_schedulers.values())
        return states.pop() if len(states) == 1 else SchedulerState(None)
    return gpu.scheduler.state if gpu.scheduler is not None else None


def explain_unsupported(gpu: Gpu, generation: DriverGeneration | None, spec: SchedulerSpec) -> str | None:
    """Return why this GPU and driver cannot have a scheduler, None if they can."""
    why = _explain_mode_conflict(gpu, spec)
    if why is not None:
        return why
    scheduler = gpu.scheduler
    limits = scheduler.limits if scheduler is not None else None
    source = "the driver accepts" if limits is not None else "the driver was not queried; documented is"
    if limits is not None and spec.policy not in limits.policies:
        available = ", ".join(sorted(limits.policies)) or "none"
        return f"its driver has no {spec.policy}; it has {available}"
    if limits is not None and not limits.supports_adaptive and spec.adaptive:
        return "its driver has no adaptive round robin: set a time slice, or neither"
    if generation is not None and (why := explain_unencodable(generation, spec)) is not None:
        return why
    return _explain_out_of_range(limits or DOCUMENTED_LIMITS, spec, source)


def _explain_mode_conflict(gpu: Gpu, spec: SchedulerSpec) -> str | None:
    scheduler = gpu.scheduler or GpuScheduler()
    if scheduler.interface is SchedulerInterface.SRIOV_ADMIN and not gpu.vfs_enabled:
        return f"its VFs are off, and turning them on resets it: first vgpuctl set-mode {gpu.address} sriov"
    if scheduler.interface is SchedulerInterface.IOV:
        return "vgpuctl only reads i915's files: any write there turns automatic provisioning off"
    architecture = scheduler.architecture
    if architecture is not None and architecture < PASCAL:
        return "it is older than Pascal; only Pascal and later GPUs let you choose the scheduler"
    mig = gpu.mig is not None and gpu.mig.enabled
    if mig and has_instance_schedulers(gpu):
        return None
    if mig and (architecture or 0) >= BLACKWELL:
        return "MIG is on, and its GPU instances have no schedulers of their own: its vGPUs have a fixed share"
    if mig:
        return "with MIG on, its vGPUs always have a fixed share before Blackwell"
    if gpu.mixed_size and spec.policy is SchedulerPolicy.FIXED_SHARE:
        return "with vGPUs of mixed sizes it takes only best_effort and equal_share"
    return None


def _explain_out_of_range(limits: SchedulerLimits, spec: SchedulerSpec, source: str) -> str | None:
    min_ms, max_ms = (n / _NS_PER_MS for n in limits.time_slice_ns)
    if spec.time_slice_ms is not None and not min_ms <= spec.time_slice_ms <= max_ms:
        return f"a time slice of {spec.time_slice_ms} ms is out of range: {source} {min_ms:g} to {max_ms:g} ms"
    for value, accepted, text in (
        (spec.frequency_hz, limits.frequency_hz, "a frequency of {} Hz"),
        (spec.averaging_factor, limits.averaging_factor, "an averaging factor of {}"),
        (spec.preempt_timeout_us, limits.preempt_timeout_us, "a preemption timeout of {} us"),
    ):
        if value is not None and accepted is None:
            return f"{text.format(value)} is not possible: its driver has no such setting"
        if value is not None and accepted is not None and not accepted[0] <= value <= accepted[1]:
            return f"{text.format(value)} is out of range: {source} {accepted[0]} to {accepted[1]}"
    return None


def satisfies(state: SchedulerState | None, spec: SchedulerSpec) -> bool:
    """Return whether the running scheduler satisfies the request. Unset or unreported values are not compared."""
    if state is None or state.policy is not spec.policy:
        return False
    if spec.policy is SchedulerPolicy.BEST_EFFORT:
        return True
    if spec.adaptive is not None and state.adaptive is not None and state.adaptive is not spec.adaptive:
        return False
    requested_ns = _slice_ns(spec)
    if (
        requested_ns is not None
        and state.time_slice_ns
        and abs(state.time_slice_ns - requested_ns) > _SLICE_TOLERANCE * requested_ns
    ):
        return False
    requested_us, running_us = spec.preempt_timeout_us, state.preempt_timeout_us
    if requested_us is not None and running_us and abs(running_us - requested_us) > _SLICE_TOLERANCE * requested_us:
        return False
    factor = spec.averaging_factor
    return factor is None or state.averaging_factor in (None, 0, factor)


def spec_from_state(state: SchedulerState) -> SchedulerSpec | None:
    """Return the request that restores this state; None if its policy is unknown."""
    if state.policy is None:
        return None
    if state.policy is SchedulerPolicy.BEST_EFFORT or not state.time_slice_ns:
        return SchedulerSpec(state.policy)
    if state.adaptive:
        hertz = round(1_000_000_000 / state.time_slice_ns)
        return SchedulerSpec(state.policy, None, hertz, state.averaging_factor)
    slice_ms = round(state.time_slice_ns / _NS_PER_MS) or None
    return SchedulerSpec(state.policy, slice_ms, preempt_timeout_us=state.preempt_timeout_us)


def _slice_ns(spec: SchedulerSpec) -> int | None:
    if spec.time_slice_ms is not None:
        return spec.time_slice_ms * _NS_PER_MS
    return None if spec.frequency_hz is None else 1_000_000_000 // spec.frequency_hz


def scheduler_text(spec: SchedulerSpec) -> str:
    """Return a scheduler as text: `fixed_share, time slice 2 ms`."""
    numbers = (
        (spec.time_slice_ms, "time slice {} ms"),
        (spec.frequency_hz, "{} Hz"),
        (spec.averaging_factor, "averaging factor {}"),
        (spec.preempt_timeout_us, "preemption timeout {} us"),
    )
    return ", ".join([str(spec.policy), *(text.format(n) for n, text in numbers if n is not None)])


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
    counts_host: bool = False,
) -> TimeShare:
    """Return a vGPU's share.

    `running_count`: running vGPUs on the GPU; `max_vgpus`: the maximum of its size; `is_weighted`: whether the driver
    weights vGPUs, None if unknown. `counts_host`: `max_vgpus` are all VFs that are on and the host, which takes turns.
    """
    from fractions import Fraction

    if state is None or state.policy is None:
        why = "" if state is None or state.problem is None else f": {state.problem}"
        return TimeShare(None, None, f"the running policy is not known{why}")
    slice_ns = state.time_slice_ns or None
    if state.policy is SchedulerPolicy.BEST_EFFORT:
        return TimeShare(None, None, "best effort guarantees nothing")
    if state.policy is SchedulerPolicy.FIXED_SHARE:
        if not max_vgpus:
            return TimeShare(None, slice_ns, "how many of its size fit is not known")
        others = "the other VFs and the host work" if counts_host else "the others run"
        return TimeShare(Fraction(1, max_vgpus), slice_ns, f"1 of {max_vgpus}, whether {others} or not")
    if not is_running:
        return TimeShare(None, slice_ns, "it is off; an equal share when it runs")
    if counts_host:
        note = f"1 of the {running_count} that run now and the host; less of them that work: more"
        return TimeShare(Fraction(1, running_count + 1), slice_ns, note)
    if running_count == 1:
        return TimeShare(Fraction(1), slice_ns, "it runs alone")
    if is_weighted is None:
        return TimeShare(
            None, slice_ns, "not known: the driver's version is not known, and from 590 on it weights vGPUs"
        )
    if is_weighted:
        return TimeShare(None, slice_ns, "not known: this driver weights vGPUs unless bit 3 of RmPVMRL is set")
    return TimeShare(Fraction(1, running_count), slice_ns, f"1 of the {running_count} that run now")
