# SPDX-License-Identifier: Apache-2.0
"""What NVML reports about the use of one GPU: now, every minute, and once. `usage` says which when, and the traps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from ctypes import byref, c_ulonglong
from typing import Any

from vgpuctl.errors import NvmlFailed
from vgpuctl.host.nvml.library import NvmlLibrary
from vgpuctl.model.usage import NVML_SOURCE, EngineUse, GpuUse
from vgpuctl.value import EMPTY_MAPPING

GPU_IS_LOST = 15
MAX_POSSIBLE = 1 << 62
_TEMPERATURE_GPU = 0
_VERSION = re.compile(r"[0-9.]{1,20}", re.ASCII)
_CLOCKS = {"graphics": 0, "sm": 1, "memory": 2, "video": 3}
_CLOCK_EVENTS = {
    0x4: "sw-power-cap",
    0x8: "hw-slowdown",
    0x10: "sync-boost",
    0x20: "sw-thermal",
    0x40: "hw-thermal",
    0x80: "hw-power-brake",
    0x100: "display-clock",
}
"""nvml.h's nvmlClocksEventReason…; an idle GPU (0x1) and clocks that a user set (0x2) are normal."""
_RECOVERY_FIELD = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION."""
_RECOVERY = {
    0: "none",
    1: "reset",
    2: "reboot",
    3: "drain-p2p",
    4: "drain-and-reset",
    5: "recover-imex",
    6: "bus-reset",
    7: "system-reboot",
}
_RETIREMENT = {"multiple-single-bit": 0, "double-bit": 1}
_ECC = {"corrected": 0, "uncorrected": 1}
_NVLINK_ERRORS = {"replay": 0, "recovery": 1, "crc-flit": 2, "crc-data": 3}
_MAX_LINKS = 18


class GpuLostError(Exception):
    """NVML says that a GPU is lost."""


def read_current(library: NvmlLibrary, handle: Any) -> Mapping[str, Any]:
    """Return what changes from sample to sample, by the fields of `GpuUse`.

    Raises:
        GpuLostError: the GPU is lost.
    """
    memory = ask(library, "nvmlDeviceGetMemoryInfo", handle, getattr(library.nvml, "nvmlMemory_v2", None))
    memory = memory or ask(library, "nvmlDeviceGetMemoryInfo", handle)
    use = ask(library, "nvmlDeviceGetUtilizationRates", handle)
    encoder, decoder = (ask(library, f"nvmlDeviceGet{name}Utilization", handle) for name in ("Encoder", "Decoder"))
    power, limit, energy = (
        ask(library, name, handle)
        for name in (
            "nvmlDeviceGetPowerUsage",
            "nvmlDeviceGetEnforcedPowerLimit",
            "nvmlDeviceGetTotalEnergyConsumption",
        )
    )
    temperature = ask(library, "nvmlDeviceGetTemperature", handle, _TEMPERATURE_GPU)
    clocks = {name: ask(library, "nvmlDeviceGetClockInfo", handle, kind) for name, kind in _CLOCKS.items()}
    return dict(
        up=True,
        memory_size_bytes=None if memory is None else possible(memory.total),
        memory_used_bytes=None if memory is None else possible(memory.used),
        memory_reserved_bytes=None if memory is None or not hasattr(memory, "reserved") else possible(memory.reserved),
        engines=EngineUse(
            sm=None if use is None else ratio(use.gpu),
            memory=None if use is None else ratio(use.memory),
            encoder=None if encoder is None else ratio(encoder[0]),
            decoder=None if decoder is None else ratio(decoder[0]),
        ),
        power_watts=_scaled(power, 1000),
        power_limit_watts=_scaled(limit, 1000),
        energy_joules=_scaled(energy, 1000),
        temperatures=EMPTY_MAPPING if temperature is None else {"gpu": float(temperature)},
        clocks={name: mhz * 1e6 for name, mhz in clocks.items() if mhz is not None},
        clock_event_reasons=_clock_events(library, handle),
        pcie_link_width_lanes=ask(library, "nvmlDeviceGetCurrPcieLinkWidth", handle),
    )


def read_static(library: NvmlLibrary, address: str, handle: Any) -> GpuUse:
    """Return what never changes."""
    texts = (printable(ask(library, f"nvmlDeviceGet{name}", handle), 96) for name in ("UUID", "Serial", "VbiosVersion"))
    uuid, serial, vbios = texts
    return GpuUse(address, NVML_SOURCE, uuid=uuid, serial=serial, vbios=vbios)


def read_slow(library: NvmlLibrary, handle: Any) -> Mapping[str, Any]:
    """Return what seldom changes, by the fields of `GpuUse`."""
    ecc = {kind: ask(library, "nvmlDeviceGetTotalEccErrors", handle, number, 1) for kind, number in _ECC.items()}
    remapped = ask(library, "nvmlDeviceGetRemappedRows", handle)
    retired = {
        cause: ask(library, "nvmlDeviceGetRetiredPages", handle, number) for cause, number in _RETIREMENT.items()
    }
    return {
        "ecc_errors": {k: int(n) for k, n in ecc.items() if n is not None and possible(n) is not None},
        "row_remap_pending": None if remapped is None else bool(remapped[2]),
        "row_remap_failed": None if remapped is None else bool(remapped[3]),
        "retired_pages": {cause: len(pages) for cause, pages in retired.items() if pages is not None},
        "recovery_action": _recovery_action(library, handle),
        "pcie_replays": ask(library, "nvmlDeviceGetPcieReplayCounter", handle),
        "nvlink_errors": _nvlink_errors(library, handle),
    }


def _recovery_action(library: NvmlLibrary, handle: Any) -> str | None:
    values = ask(library, "nvmlDeviceGetFieldValues", handle, [_RECOVERY_FIELD])
    if values is None or values[0].nvmlReturn != 0:
        return None
    return _RECOVERY.get(int(values[0].value.uiVal))


def _nvlink_errors(library: NvmlLibrary, handle: Any) -> Mapping[str, int]:
    totals: dict[str, int] = {}
    for link in range(_MAX_LINKS):
        if not ask(library, "nvmlDeviceGetNvLinkState", handle, link):
            continue
        for kind, number in _NVLINK_ERRORS.items():
            count = ask(library, "nvmlDeviceGetNvLinkErrorCounter", handle, link, number)
            if count is not None:
                totals[kind] = totals.get(kind, 0) + int(count)
    return totals


def _clock_events(library: NvmlLibrary, handle: Any) -> tuple[str, ...] | None:
    reasons = ask(library, "nvmlDeviceGetCurrentClocksEventReasons", handle)
    if reasons is None:
        reasons = ask(library, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return None if reasons is None else tuple(word for bit, word in _CLOCK_EVENTS.items() if reasons & bit)


def big_number(library: NvmlLibrary, name: str, *args: int) -> int | None:
    """Return what a function writes to an `unsigned long long`, where pynvml may give it less room."""
    if not library.has(name):
        return None
    number = c_ulonglong()
    status = library.nvml._nvmlGetFunctionPointer(name)(*args, byref(number))
    if status == GPU_IS_LOST:
        raise GpuLostError
    return None if status else possible(number.value)


def possible(number: Any) -> int | None:
    """Return a number; None for NVML's "not available", all ones."""
    return int(number) if 0 <= number < MAX_POSSIBLE else None


def ask(library: NvmlLibrary, name: str, *args: Any) -> Any:
    """Return a call's result; None where NVML does not tell it.

    Raises:
        GpuLostError: the GPU is lost.
    """
    if not library.has(name):
        return None
    try:
        return library.call(name, *args)
    except UnicodeDecodeError:  # pynvml decodes what a guest chose
        return None
    except NvmlFailed as error:
        if error.facts["nvml_code"] == GPU_IS_LOST:
            raise GpuLostError from error
        return None


def ratio(percent: Any) -> float | None:
    """Return a percentage as a ratio; None for NVML's "not available"."""
    return percent / 100 if 0 <= percent <= 100 else None


def _scaled(number: Any, divisor: int) -> float | None:
    return None if number is None else number / divisor


def decode(text: object) -> str:
    """Return a text, which pynvml may leave as bytes."""
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)


def printable(text: object, most: int) -> str | None:
    """Return a text without control characters and not too long; None for none."""
    if text is None:
        return None
    return "".join(c for c in decode(text) if c.isprintable())[:most] or None


def parse_version(text: object) -> str | None:
    """Return a driver's version; None for anything else that a guest may say, such as "Not Available"."""
    word = None if text is None else decode(text)
    return word if word is not None and _VERSION.fullmatch(word) else None
