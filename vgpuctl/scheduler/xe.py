# SPDX-License-Identifier: Apache-2.0
"""The scheduler of Intel's driver xe: what it accepts, what each policy writes, and what its files say. Pure.

Every function of a card, the host's own (pf) and each VF, has an execution quantum, a preemption timeout and a
priority. `low`: it gets its turn only if it has work. `normal`: it gets its turn whether it has work or not. `high` is
for the host's function alone. 0 is an unlimited quantum or timeout. The firmware takes at most 100 s of each. So

    best_effort    quantum 0, low: whoever works keeps the GPU until it is done
    equal_share    the same quantum for all, low: those that work take turns
    fixed_share    the same quantum for all, normal: each has its turn, also an idle one

Without numbers vgpuctl takes those of Intel's XPU Manager: 32 ms / VFs (at least 1), and 64 ms / VFs (at least 16; 128
for one VF). Turning VFs off resets all of it.

Source: Documentation/ABI/testing/sysfs-driver-intel-xe-sriov, drivers/gpu/drm/xe/xe_sriov_pf_sysfs.c and
xe_sriov_pf_provision.c (Linux 6.19 and newer), drivers/gpu/drm/xe/abi/guc_klvs_abi.h; intel/xpumanager v1.3,
vgpu_manager.cpp. Nobody has tried this on such a card.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vgpuctl.model.numbers import parse_integer
from vgpuctl.model.vgpu_scheduler import SchedulerInterface, SchedulerLimits, SchedulerPolicy, SchedulerSpec
from vgpuctl.model.vgpu_scheduler import SchedulerState as State

ADMIN_DIRECTORY = "sriov_admin"
BULK_DIRECTORY = f"{ADMIN_DIRECTORY}/.bulk_profile"
QUANTUM, TIMEOUT, PRIORITY, MEMORY_QUOTA = "exec_quantum_ms", "preempt_timeout_us", "sched_priority", "vram_quota"
_NS_PER_MS = 1_000_000
LIMITS = SchedulerLimits(
    policies=frozenset(SchedulerPolicy),
    supports_adaptive=False,
    time_slice_ns=(_NS_PER_MS, 100_000 * _NS_PER_MS),
    frequency_hz=None,
    averaging_factor=None,
    preempt_timeout_us=(1, 100_000_000),
)


def profile_directory(vf: int | None) -> str:
    """Return the directory of a function's settings. `vf`: counted from 0, as virtfnN is; None: the host's own."""
    return f"{ADMIN_DIRECTORY}/{'pf' if vf is None else f'vf{vf + 1}'}/profile"


def bulk_values(spec: SchedulerSpec, vfs: int) -> Mapping[str, str]:
    """Return what to write into each file of `.bulk_profile`, in this order. `vfs`: how many VFs are on.

    What makes the policy comes last: after a write that a kill prevented, the policy is not yet the requested one.
    """
    if spec.policy is SchedulerPolicy.BEST_EFFORT:
        return {PRIORITY: "low", TIMEOUT: "0", QUANTUM: "0"}
    slice_ms = spec.time_slice_ms or max(32 // max(vfs, 1), 1)
    timeout_us = spec.preempt_timeout_us or (128_000 if vfs <= 1 else max(64_000 // vfs, 16_000))
    priority = "normal" if spec.policy is SchedulerPolicy.FIXED_SHARE else "low"
    return {TIMEOUT: str(timeout_us), QUANTUM: str(slice_ms), PRIORITY: priority}


def parse_state(functions: Sequence[Mapping[str, str]], first_vf: int = 0) -> State:
    """Return the scheduler from the texts of each function's files. `first_vf`: 0 where the host's are the first.

    The policy is None, with the reason, if functions differ, or if the values are those of no policy.
    """
    values = [_parse_function(texts) for texts in functions]
    if None in values or not values:
        return _unknown("a value is not what the driver writes")
    first = values[0]
    for number, value in enumerate(values):
        if value != first:
            names = ["the host (pf)" if n == 0 else f"vf{n}" for n in (number + first_vf, first_vf)]
            texts = value_text(functions[number]), value_text(functions[0])
            return _unknown(f"{names[0]} and {names[1]} differ: {texts[0]}, not {texts[1]}")
    quantum, timeout, priority = first or (0, 0, "")
    if quantum:
        policy = {"low": SchedulerPolicy.EQUAL_SHARE, "normal": SchedulerPolicy.FIXED_SHARE}.get(priority)
    else:
        policy = SchedulerPolicy.BEST_EFFORT if priority == "low" else None
    if policy is None:
        return _unknown(f"{value_text(functions[0])} is none of the policies")
    return State(
        policy,
        adaptive=None if policy is SchedulerPolicy.BEST_EFFORT else False,
        time_slice_ns=quantum * _NS_PER_MS or None,
        source=SchedulerInterface.SRIOV_ADMIN,
        preempt_timeout_us=timeout or None,
    )


def unreadable_state(reason: str) -> State:
    """Return the state of a card whose values cannot be read."""
    return _unknown(reason)


def value_text(texts: Mapping[str, str]) -> str:
    """Return a function's values for people: `8 ms, 16000 us, normal`."""
    return f"{texts[QUANTUM].strip()} ms, {texts[TIMEOUT].strip()} us, {_active_word(texts[PRIORITY])}"


def _unknown(reason: str) -> State:
    return State(None, source=SchedulerInterface.SRIOV_ADMIN, problem=reason)


def _parse_function(texts: Mapping[str, str]) -> tuple[int, int, str] | None:
    quantum, timeout = (parse_integer(texts[name]) for name in (QUANTUM, TIMEOUT))
    priority = _active_word(texts[PRIORITY])
    if quantum is None or timeout is None or min(quantum, timeout) < 0 or not priority:
        return None
    return quantum, timeout, priority


def _active_word(text: str) -> str:
    """Return the word in brackets: `low [normal] high`; "" if there is none."""
    return next((w[1:-1] for w in text.split() if w.startswith("[") and w.endswith("]")), "")
