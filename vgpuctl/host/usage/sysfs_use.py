# SPDX-License-Identifier: Apache-2.0
"""The use of GPUs of AMD and Intel, from sysfs and hwmon. Neither has a use of one VF there.

Source: kernel documentation, Documentation/gpu/amdgpu/thermal.rst and driver-misc.rst (amdgpu: gpu_busy_percent,
mem_busy_percent, mem_info_vram_*, hwmon) and ABI/testing/sysfs-driver-intel-xe-hwmon, sysfs-driver-intel-i915-hwmon.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping

from vgpuctl.model.numbers import parse_integer
from vgpuctl.model.usage import SYSFS_SOURCE, EngineUse, GpuUse
from vgpuctl.regular_file import read_regular_file
from vgpuctl.value import field_names, replace

_MICRO, _MILLI = 1e6, 1e3
_SENSORS = {"edge": "gpu", "pkg": "gpu", "junction": "hotspot", "mem": "memory", "vram": "memory"}


def read_gpu(address: str, path: str) -> GpuUse:
    """Return the use of a GPU whose directory in sysfs is `path`.

    Raises:
        FileNotFoundError: there is no such GPU any more.
    """
    if not os.path.isdir(path):
        raise FileNotFoundError(2, "the GPU is gone", path)
    monitor = next(iter(sorted(glob.glob(f"{glob.escape(path)}/hwmon/hwmon*"))), None)
    sensors = {} if monitor is None else _sensors(monitor)
    busy, memory_busy = (_number(f"{path}/{name}_busy_percent") for name in ("gpu", "mem"))
    return GpuUse(
        address,
        SYSFS_SOURCE,
        up=_is_answering(path),
        memory_size_bytes=_number(f"{path}/mem_info_vram_total"),
        memory_used_bytes=_number(f"{path}/mem_info_vram_used"),
        engines=EngineUse(sm=_ratio(busy), memory=_ratio(memory_busy)),
        power_watts=_scaled(monitor, ("power1_average", "power1_input"), _MICRO),
        power_limit_watts=_scaled(monitor, ("power1_cap", "power1_max"), _MICRO),
        energy_joules=_scaled(monitor, ("energy1_input",), _MICRO),
        temperatures=sensors,
        serial=_text(f"{path}/unique_id"),
        vbios=_text(f"{path}/vbios_version"),
        pcie_link_width_lanes=_number(f"{path}/current_link_width"),
    )


def add_sysfs(use: GpuUse | None, sysfs: GpuUse) -> GpuUse:
    """Return a GPU's use with what its maker's program leaves unknown from sysfs."""
    if use is None:
        return sysfs
    unknown = GpuUse(use.address, use.source)
    missing = [name for name in field_names(use) if getattr(use, name) == getattr(unknown, name)]
    return replace(use, **{name: getattr(sysfs, name) for name in missing if name not in ("address", "source")})


def _is_answering(path: str) -> bool:
    """Return whether the configuration space has values: a GPU that fell off the bus reads as ones."""
    try:
        with open(f"{path}/config", "rb") as file:
            return file.read(4) != b"\xff" * 4
    except OSError:
        return True


def _sensors(monitor: str) -> Mapping[str, float]:
    """Return the temperatures by sensor."""
    values: dict[str, float] = {}
    for file in sorted(glob.glob(f"{glob.escape(monitor)}/temp*_input")):
        milli = _number(file)
        label = _text(file.replace("_input", "_label")) or "edge"
        if milli is not None:
            values[_SENSORS.get(label, label)] = milli / _MILLI
    return values


def _scaled(monitor: str | None, names: tuple[str, ...], divisor: float) -> float | None:
    numbers = (None if monitor is None else _number(f"{monitor}/{name}") for name in names)
    number = next((number for number in numbers if number is not None), None)
    return None if number is None else number / divisor


def _ratio(percent: int | None) -> float | None:
    return percent / 100 if percent is not None and 0 <= percent <= 100 else None


def _number(path: str) -> int | None:
    return parse_integer(_text(path) or "")


def _text(path: str) -> str | None:
    """Return a file's first line; None where there is none or the driver does not tell it."""
    try:
        text = read_regular_file(path, is_sysfs=True).decode("ascii", "replace")
    except OSError:
        return None
    return "".join(c for c in text.partition("\n")[0] if c.isprintable()).strip() or None
