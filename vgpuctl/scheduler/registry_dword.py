# SPDX-License-Identifier: Apache-2.0
"""The driver's registry dword RmPVMRL, whose bits have different meanings in three driver generations.

    bit 0       1: one software run list for each VM; 0: best effort, and the other bits have no meaning
    bit 1       1: no adaptive round robin; only where it can be chosen (550 to 590)
    bit 3       1: no weights (from 590 on); vgpuctl keeps it
    bits 7-4    0 equal share, 1 fixed share
    bits 21-12  frequency in Hz, bits 31-24 averaging factor: adaptive round robin
    bits 23-16  slice in ms: strict round robin; the frequency's bits overlap these

0 in a field is the driver's default. Source: nvrm_registry.h in NVIDIA's open kernel modules, 550.40 to 595.45.

The generation follows from the driver's version, which the driver writes into the kernel's files; into the log it
writes the scheduler that it applied to a GPU. Other modules query NVML. The log line is, up to 580, `NVRM: GPU at
0000:41:00.0 has software scheduler ENABLED with policy FIXED_SHARE.`; from 590 on it ends ` on GR`. Best effort is
ENABLED or DISABLED, by version. The driver does not log later changes through NVML.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum

from vgpuctl.model.names import normalize_pci
from vgpuctl.model.numbers import parse_integer
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec, SchedulerState

REGISTRY_KEY = "RmPVMRL"
MAX_DWORD = 0xFFFFFFFF
_ENABLE, _STRICT, UNWEIGHTED = 0x1, 0x2, 0x8
_POLICIES = {0: SchedulerPolicy.EQUAL_SHARE, 1: SchedulerPolicy.FIXED_SHARE}
_CHOICE_SINCE, _WEIGHTS_SINCE, _ADAPTIVE_SINCE = 550, 590, 595
_FREQUENCIES = range(63, 961)

MODULE_VERSION = "/sys/module/nvidia/version"
PROC_VERSION = "/proc/driver/nvidia/version"
"""Written by the driver itself (nv-procfs.c in NVIDIA's open kernel modules), also if the module has no version."""
_NVRM = re.compile(r"^NVRM version: .*Kernel Module.*?\s(\d+(?:\.\d+)+)(?:\s|$)", re.MULTILINE)
LOG_MARKER = "has software scheduler"
_LINE = re.compile(r"GPU at ([0-9a-fA-F:.]+) has software scheduler \w+ with policy (\w+?)(?: on (\w+))?\.?\s*$")
_SOURCE = "kernel log"


class DriverGeneration(StrEnum):
    """How a driver reads the dword: strict slices only, strict or adaptive, or adaptive only."""

    STRICT = "strict"
    EITHER = "either"
    ADAPTIVE = "adaptive"


def driver_branch(driver: str | None) -> int | None:
    """Return the first number of a driver's version, None if it has none."""
    return parse_integer((driver or "").partition(".")[0])


def driver_generation(driver: str | None, *, adaptive: bool | None = None) -> DriverGeneration | None:
    """Return the generation of a driver from its version; None if unknown.

    `adaptive`: whether NVML reports adaptive round robin, which some drivers had before the oldest published bits.
    """
    branch = driver_branch(driver)
    if branch is None:
        return None
    if branch >= _ADAPTIVE_SINCE:
        return DriverGeneration.ADAPTIVE
    return DriverGeneration.EITHER if branch >= _CHOICE_SINCE or adaptive else DriverGeneration.STRICT


def encode_dword(generation: DriverGeneration, spec: SchedulerSpec, *, previous: int = 0) -> int:
    """Return the dword that requests a scheduler from a driver of this generation. `previous`: the current dword.

    Raises:
        ValueError: this generation does not support it; the message says why.
    """
    if spec.policy is SchedulerPolicy.BEST_EFFORT:
        return 0
    why = explain_unencodable(generation, spec)
    if why is not None:
        raise ValueError(why)
    word = _ENABLE | (0x10 if spec.policy is SchedulerPolicy.FIXED_SHARE else 0) | (previous & UNWEIGHTED)
    if spec.time_slice_ms is not None:
        word |= _check_field(spec.time_slice_ms, 8, "a time slice of {} ms") << 16
        return word | (_STRICT if generation is DriverGeneration.EITHER else 0)
    word |= _check_field(spec.frequency_hz or 0, 10, "a frequency of {} Hz") << 12
    return word | _check_field(spec.averaging_factor or 0, 8, "an averaging factor of {}") << 24


def explain_unencodable(generation: DriverGeneration, spec: SchedulerSpec) -> str | None:
    """Return why a driver of this generation has no such scheduler, None if it has."""
    if generation is DriverGeneration.ADAPTIVE and spec.adaptive is False:
        return f"drivers from {_ADAPTIVE_SINCE} on support only adaptive round robin: no fixed time slice"
    if generation is DriverGeneration.STRICT and spec.adaptive:
        return f"drivers before {_CHOICE_SINCE} accept a time slice, but no frequency or averaging factor"
    return None


def decode_dword(generation: DriverGeneration, dword: int) -> SchedulerSpec:
    """Return what a dword requests from a driver of this generation.

    Raises:
        ValueError: it has more than 32 bits, or its policy is unknown.
    """
    if not 0 <= dword <= MAX_DWORD:
        raise ValueError(f"{dword:#x} is more than 32 bits")
    if not dword & _ENABLE:
        return SchedulerSpec(SchedulerPolicy.BEST_EFFORT)
    policy_number = dword >> 4 & 0xF
    if policy_number not in _POLICIES:
        raise ValueError(f"{dword:#010x} selects policy {policy_number}, which the driver does not have")
    policy = _POLICIES[policy_number]
    if generation is DriverGeneration.STRICT or (generation is DriverGeneration.EITHER and dword & _STRICT):
        return SchedulerSpec(policy, time_slice_ms=(dword >> 16 & 0xFF) or None)
    return SchedulerSpec(
        policy, frequency_hz=(dword >> 12 & 0x3FF) or None, averaging_factor=(dword >> 24 & 0xFF) or None
    )


def wrong_generation(generation: DriverGeneration, dword: int) -> str | None:
    """Return why a dword was probably written for another driver generation, None if nothing suggests it."""
    if not 0 <= dword <= MAX_DWORD or not dword & _ENABLE:
        return None
    adaptive_bits = dword & 0xFF00F000 or dword >> 22 & 0x3
    if generation is DriverGeneration.STRICT:
        if dword & _STRICT:
            return f"{dword:#010x} has bit 1 set, which drivers before {_CHOICE_SINCE} ignore"
        return (
            f"{dword:#010x} has a frequency or averaging factor, read here as a time slice" if adaptive_bits else None
        )
    if generation is DriverGeneration.ADAPTIVE and dword & _STRICT:
        return (
            f"{dword:#010x} turns adaptive round robin off, which drivers from {_ADAPTIVE_SINCE} on do not support: "
            "its time slice is read as part of a frequency"
        )
    hertz = dword >> 12 & 0x3FF
    if not dword & _STRICT and hertz and hertz not in _FREQUENCIES:
        return f"{dword:#010x} is read as {hertz} Hz; a time slice of {dword >> 16 & 0xFF} ms was probably intended"
    return None


def supports_weights(driver: str | None) -> bool:
    """Return whether a driver supports bit 3, so that vgpuctl keeps it."""
    return (driver_branch(driver) or 0) >= _WEIGHTS_SINCE


def is_weighted(driver: str | None, dword: int | None) -> bool | None:
    """Return whether a driver that was loaded with this dword weights vGPUs; None if unknown."""
    if driver_branch(driver) is None:
        return None
    return supports_weights(driver) and not (dword is not None and dword & _ENABLE and dword & UNWEIGHTED)


def _check_field(value: int, bits: int, what: str) -> int:
    if not 0 <= value < 1 << bits:
        raise ValueError(f"{what.format(value)} does not fit into {bits} bits")
    return value


def parse_driver_version(module: str | None, proc: str | None) -> str | None:
    """Return the version from the texts of both files (None for a missing file); None if neither has it."""
    match = _NVRM.search(proc or "")
    return (module or "").strip() or (match.group(1) if match is not None else None)


def parse_scheduler_log(lines: Iterable[str], address: str) -> SchedulerState | None:
    """Return the state in the last line about a GPU's graphics engine, None if there is no line."""
    state: SchedulerState | None = None
    for line in lines:
        match = _LINE.search(line)
        if match is None or normalize_pci(match.group(1)) != address or match.group(3) not in (None, "GR"):
            continue
        policy = match.group(2).lower()
        state = SchedulerState(SchedulerPolicy(policy) if policy in set(SchedulerPolicy) else None, source=_SOURCE)
    return state
