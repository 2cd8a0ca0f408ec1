# SPDX-License-Identifier: Apache-2.0
"""The driver's registry word RmPVMRL, whose bits mean different things on three generations of the driver.

    bit 0       1: one software run list for each VM; 0: best effort, and the rest means nothing
    bit 1       1: no adaptive round robin; only where that can be chosen (550 to 590)
    bit 3       1: no weights (from 590 on); kept as it is found
    bits 7-4    0 equal share, 1 fixed share
    bits 21-12  frequency in Hz, bits 31-24 averaging factor: adaptive round robin
    bits 23-16  slice in ms: strict round robin; the frequency's bits overlap these

0 in a field is the driver's default. Source: nvrm_registry.h in NVIDIA's open kernel modules, 550.40 to 595.45.
"""

from __future__ import annotations

from enum import StrEnum

from vgpuctl.model.digits import whole
from vgpuctl.model.scheduler import Policy, SchedulerSpec

KEY = "RmPVMRL"
LARGEST = 0xFFFFFFFF
_ENABLE, _STRICT, UNWEIGHTED = 0x1, 0x2, 0x8
_POLICIES = {0: Policy.EQUAL_SHARE, 1: Policy.FIXED_SHARE}
_CHOICE_SINCE, _WEIGHTS_SINCE, _ADAPTIVE_SINCE = 550, 590, 595
_FREQUENCIES = range(63, 961)


class Generation(StrEnum):
    """What a driver makes of the word: strict slices alone, strict or adaptive, or adaptive alone."""

    STRICT = "strict"
    EITHER = "either"
    ADAPTIVE = "adaptive"


def branch(driver: str | None) -> int | None:
    """Return the first number of a driver's version, None when it has none."""
    return whole((driver or "").partition(".")[0])


def generation(driver: str | None, *, adaptive: bool | None = None) -> Generation | None:
    """Return the generation of a driver by its version; None when that is not known.

    `adaptive`: whether NVML says that it has adaptive round robin, which came before the oldest published bits.
    """
    number = branch(driver)
    if number is None:
        return None
    if number >= _ADAPTIVE_SINCE:
        return Generation.ADAPTIVE
    return Generation.EITHER if number >= _CHOICE_SINCE or adaptive else Generation.STRICT


def encode(kind: Generation, spec: SchedulerSpec, *, before: int = 0) -> int:
    """Return the word that asks a driver of this generation for a scheduler. `before`: the word so far.

    Raises:
        ValueError: this generation cannot be asked for that; the sentence says why.
    """
    if spec.policy is Policy.BEST_EFFORT:
        return 0
    why = unfit(kind, spec)
    if why is not None:
        raise ValueError(why)
    word = _ENABLE | (0x10 if spec.policy is Policy.FIXED_SHARE else 0) | (before & UNWEIGHTED)
    if spec.time_slice_ms is not None:
        word |= _field(spec.time_slice_ms, 8, "a time slice of {} ms") << 16
        return word | (_STRICT if kind is Generation.EITHER else 0)
    word |= _field(spec.frequency_hz or 0, 10, "a frequency of {} Hz") << 12
    return word | _field(spec.averaging_factor or 0, 8, "an averaging factor of {}") << 24


def unfit(kind: Generation, spec: SchedulerSpec) -> str | None:
    """Say why a driver of this generation has no such scheduler, None when it has."""
    if kind is Generation.ADAPTIVE and spec.adaptive is False:
        return f"drivers from {_ADAPTIVE_SINCE} on have adaptive round robin only: no fixed time slice"
    if kind is Generation.STRICT and spec.adaptive:
        return f"drivers before {_CHOICE_SINCE} take a time slice, no frequency and no averaging factor"
    return None


def decode(kind: Generation, word: int) -> SchedulerSpec:
    """Return what a driver of this generation is asked for by a word.

    Raises:
        ValueError: it is no word of 32 bits, or its policy is none that is known.
    """
    if not 0 <= word <= LARGEST:
        raise ValueError(f"{word:#x} is more than 32 bits")
    if not word & _ENABLE:
        return SchedulerSpec(Policy.BEST_EFFORT)
    number = word >> 4 & 0xF
    if number not in _POLICIES:
        raise ValueError(f"{word:#010x} asks for policy {number}, which the driver does not have")
    policy = _POLICIES[number]
    if kind is Generation.STRICT or (kind is Generation.EITHER and word & _STRICT):
        return SchedulerSpec(policy, time_slice_ms=(word >> 16 & 0xFF) or None)
    return SchedulerSpec(
        policy, frequency_hz=(word >> 12 & 0x3FF) or None, averaging_factor=(word >> 24 & 0xFF) or None
    )


def suspicion(kind: Generation, word: int) -> str | None:
    """Say why a word was probably written for another generation of the driver, None when nothing speaks for it."""
    if not 0 <= word <= LARGEST or not word & _ENABLE:
        return None
    adaptive_bits = word & 0xFF00F000 or word >> 22 & 0x3
    if kind is Generation.STRICT:
        if word & _STRICT:
            return f"{word:#010x} has bit 1 set, which drivers before {_CHOICE_SINCE} do not know"
        return f"{word:#010x} has a frequency or averaging factor, read here as a time slice" if adaptive_bits else None
    if kind is Generation.ADAPTIVE and word & _STRICT:
        return (
            f"{word:#010x} turns adaptive round robin off, which drivers from {_ADAPTIVE_SINCE} on do not do: "
            "its time slice is read as part of a frequency"
        )
    hertz = word >> 12 & 0x3FF
    if not word & _STRICT and hertz and hertz not in _FREQUENCIES:
        return f"{word:#010x} is read as {hertz} Hz; a time slice of {word >> 16 & 0xFF} ms was probably meant"
    return None


def weights_since(driver: str | None) -> bool:
    """Say whether a driver knows bit 3, so that it is kept."""
    return (branch(driver) or 0) >= _WEIGHTS_SINCE


def weighted(driver: str | None, word: int | None) -> bool | None:
    """Say whether a driver that was loaded with this word gives vGPUs weights; None when that is not known."""
    if branch(driver) is None:
        return None
    return weights_since(driver) and not (word is not None and word & _ENABLE and word & UNWEIGHTED)


def _field(value: int, bits: int, what: str) -> int:
    if not 0 <= value < 1 << bits:
        raise ValueError(f"{what.format(value)} does not fit into {bits} bits")
    return value
