# SPDX-License-Identifier: Apache-2.0
"""The `gpus:` part of a scenario: one entry becomes one or several GPUs with addresses, groups and types.

The models that an entry can name are in data/models.json: those of the built-in scenarios, and further cards. The
figures are the vendors' published ones. Only the simulator reads them: vgpuctl uses what the simulated driver reports,
as with a real one. These are not published, and filled in here: the ids of H100's time-sliced types (those before its
MIG types'), most of RTX PRO 6000's (interpolated between four observed ids), the numbers of VFs of H100, A40, A10 and
RTX PRO 4500, that card's PCI id and the ids of its types (only the time-sliced ones with a published size and number
are here), and the placements of RTX PRO 6000's GPU instances (copied from A30, which also has four slices). Of other
makers: what an MTT S3000's types take (so that 28 of mtgpu-1101 and the published numbers of the others fit), what an
Ascend 910B or 950 has (the least that its largest templates need), Biren's device id and the number of its VFs and
Cambricon's, and the names of the drivers of Cambricon, Enflame, Kunlunxin and Vastai.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from vgpuctl.model.names import format_pci, normalize_pci
from vgpuctl.sim.scenario_reader import YamlMapping, YamlValue

GPU_KEYS = (
    "model",
    "count",
    "address",
    "backend",
    "driver",
    "vfs",
    "numa_node",
    "iommu_group",
    "profiles",
    "vgpus",
    "framebuffer_mib",
    "vendor_id",
    "device_id",
    "class",
    "console",
    "companions",
    "units",
    "refusal",
    "types_header",
    "configurable",
    "mig",
    "mixed_size",
    "held_by",
    "behind",
    "nvlink",
)
GENERIC_DRIVERS = ("vfio-pci", "pci-stub")
"""Drivers of no vendor: they bind any function, and it offers nothing then."""
BACKENDS = ("mdev-pf", "mdev-vf", "vendor-vf", "sriov-vf", "passthrough")
PROFILE_KEYS = (
    "name",
    "id",
    "key",
    "framebuffer_mib",
    "max",
    "max_per_vm",
    "units",
    "gi_profile",
    "max_per_gi",
    "description",
)
MAX_BRIDGES = 8
FIRST_BUS, BUS_STEP, LAST_BUS = 0x3B, 4, 0xF8
LAST_DOMAIN = 0xFF
FIRST_BRIDGE_GROUP = 1_000_000
MAX_COUNT = 4096
"""How many GPUs one entry may have: enough for a whole fleet in one host."""
_VENDOR_VF_SINCE = (6, 8)
_MODEL_FACTS = {"bar_mib": 0, "mdevs_take_vfs": False, "xcc": 0}
"""What only a model has, and its value for the other models."""
_UNKNOWN_MODEL: dict[str, Any] = {"vendor_id": "10de", "device_id": "ffff", "class": "030200", "profiles": []}


def expand_gpus(table: YamlMapping, kernel: str, previous: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the GPUs of one entry. `previous` has the GPUs so far; the caller adds each GPU as it takes it."""
    name = table.require("model")
    model = find_model(name.text())
    if model is None and table.get("backend") is None:
        name.reject(f"'{name.text()}' is not known, so 'backend' is needed; known: {', '.join(model_names())}")
    address = table.get("address")
    count = table.number("count", 1, 1, MAX_COUNT)
    if address is not None and count > 1:
        address.reject("give either an address or a count")
    for _ in range(count):
        yield _read_gpu(table, model or {**_UNKNOWN_MODEL, "model": name.text()}, kernel, previous)


def _read_gpu(
    table: YamlMapping, model: Mapping[str, Any], kernel: str, previous: list[dict[str, Any]]
) -> dict[str, Any]:
    position = len(previous)
    address = _read_address(table, model, previous)
    driver = _read_driver(table, model)
    backend = _read_backend(table, model, kernel, driver)
    vendor = table.text("vendor_id", model.get("vendor_id", "ffff")).removeprefix("0x")
    is_nvidia_vgpu = vendor == "10de" and backend not in ("passthrough", "sriov-vf")
    units = table.number("units", model.get("units", 0))
    total, enabled = _read_vfs(table, model, backend, driver)
    device = table.text("device_id", model.get("device_id", "ffff")).removeprefix("0x")
    group = table.get("iommu_group")
    numa_node = table.get("numa_node")
    return {
        "address": address,
        "model": model["model"],
        "backend": backend,
        "rule": "counter" if units else "nvidia" if is_nvidia_vgpu else None,
        "types": _read_types(table, model, is_nvidia_vgpu),
        "pci_name": model.get("pci_name"),
        "vendor": f"0x{vendor}",
        "device": f"0x{device}",
        "vf_device": f"0x{model.get('vf_device_id', device)}",
        "class": f"0x{table.text('class', model.get('class', '030200')).removeprefix('0x')}",
        "driver": driver,
        "vf_driver": "nvidia" if is_nvidia_vgpu else None,
        "vfs_total": total,
        "vfs_enabled": enabled,
        "numa_node": numa_node.number(-1, 63) if numa_node is not None else -1,
        "iommu_group": group.number() if group is not None else 20 + position,
        "vf_group": 100 + 64 * position,
        "port_group": 1000 + position,
        **_read_links(table, position),
        "framebuffer_mib": table.number("framebuffer_mib", model.get("framebuffer_mib", 0)),
        **{name: model.get(name, default) for name, default in _MODEL_FACTS.items()},
        "units": units,
        "units_refusal": _read_refusal(table, model),
        "console": table.flag("console", False),
        "header": table.flag("types_header", True),
        "configurable": table.flag("configurable", model.get("configurable", not is_nvidia_vgpu)) and driver != "gim",
        "companions": _read_companions(table, model),
        "nvml": vendor == "10de" and driver == "nvidia",
        "held_by": table.get("held_by") and table.require("held_by").text(),
        "gi_profiles": model.get("gi_profiles", []) if is_nvidia_vgpu else [],
    }


def _read_address(table: YamlMapping, model: Mapping[str, Any], previous: list[dict[str, Any]]) -> str:
    taken = {raw["address"] for raw in previous}
    configured = table.get("address")
    if configured is None and "address" in model and model["address"] not in taken:
        return str(model["address"])
    if configured is None:
        return _next_address(taken)
    address = normalize_pci(configured.text()) or configured.text()
    if address in taken:
        configured.reject(f"{address} appears twice")
    if ":" in address and normalize_pci(address) is None:
        configured.reject(f"'{address}' is not a PCI address; write it like 0000:3b:00.0")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:-]*", address):
        configured.reject(f"'{address}' is neither a PCI address nor a kernel name")
    return address


def _read_links(table: YamlMapping, position: int) -> dict[str, Any]:
    """Return what the GPU is connected to: the bridges above it with their first IOMMU group, and GPUs by NVLink."""
    return {
        "behind": read_bridges(table),
        "bridge_group": FIRST_BRIDGE_GROUP + MAX_BRIDGES * position,
        "nvlink": sorted(normalize_pci(value.text()) or value.text() for value in table.items("nvlink")),
    }


def read_bridges(table: YamlMapping) -> list[str]:
    """Return the addresses of the bridges above a device, from the root port down; empty: a root port of its own."""
    bridges = []
    for value in table.items("behind"):
        address = normalize_pci(value.text())
        if address is None or address in bridges:
            value.reject(f"'{value.text()}' is not the PCI address of another bridge; write it like 0000:3a:00.0")
        bridges.append(address)
    if len(bridges) > MAX_BRIDGES:
        table.require("behind").reject(f"at most {MAX_BRIDGES} bridges")
    return bridges


def _next_address(taken: set[str]) -> str:
    for domain in range(LAST_DOMAIN + 1):
        for bus in range(FIRST_BUS, LAST_BUS, BUS_STEP):
            address = format_pci(domain, bus, 0, 0)
            if address not in taken:
                return address
    raise AssertionError("more GPUs than a scenario may have")


def _read_driver(table: YamlMapping, model: Mapping[str, Any]) -> str | None:
    configured = table.get("driver")
    name = configured.text() if configured is not None else str(model.get("driver", "nvidia"))
    return None if name == "none" else name


def _read_backend(table: YamlMapping, model: Mapping[str, Any], kernel: str, driver: str | None) -> str:
    configured = table.get("backend")
    if configured is not None:
        return configured.choice(BACKENDS)
    if driver in ("vfio-pci", None):
        return "passthrough"
    backend = str(model["backend"])
    if backend != "nvidia-sriov":
        return backend
    version = tuple(int(part) for part in re.findall(r"\d+", kernel)[:2])
    return "vendor-vf" if version >= _VENDOR_VF_SINCE else "mdev-vf"


def _read_vfs(table: YamlMapping, model: Mapping[str, Any], backend: str, driver: str | None) -> tuple[int, int]:
    """Return the total and enabled VFs: by default all enabled if the backend needs VFs, else none.

    A driver turns them on: none does without one, and vfio-pci only with its option enable_sriov (vfio_pci.c).
    """
    needs_vfs = backend in ("mdev-vf", "vendor-vf", "sriov-vf")
    turns_on = driver not in (None, *GENERIC_DRIVERS)
    total = int(model.get("vfs", 16)) if needs_vfs or ("mdevs_take_vfs" in model and backend == "mdev-pf") else 0
    configured = table.get("vfs")
    if configured is None:
        return total, total if turns_on else 0
    mapping = configured.mapping(("total", "enabled"))
    total = mapping.number("total", total, 0, 63)
    enabled = mapping.number("enabled", total if needs_vfs and turns_on else 0, 0, total)
    if enabled and not turns_on:
        mapping.require("enabled").reject(f"no VF is on while the driver is {driver or 'none'}")
    return total, enabled


def _read_refusal(table: YamlMapping, model: Mapping[str, Any]) -> str:
    value = table.get("refusal")
    word = value.choice(("ENOSPC", "EUSERS", "EINVAL")) if value is not None else model.get("refusal", "ENOSPC")
    return {"ENOSPC": "no-units", "EUSERS": "no-instances", "EINVAL": "invalid"}[word]


def _read_companions(table: YamlMapping, model: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the other endpoints of the slot, for example a display card's audio function."""
    raws: list[Mapping[str, Any]] = list(model.get("companions", []))
    if table.get("companions") is not None:
        raws = []
        for value in table.items("companions"):
            mapping = value.mapping(("vendor_id", "device_id", "class", "driver"))
            raws.append(
                {
                    "vendor_id": mapping.text("vendor_id", "10de"),
                    "device_id": mapping.text("device_id", "ffff"),
                    "class": mapping.text("class", "040300"),
                    "driver": mapping.text("driver", "none"),
                }
            )
    return [
        {
            "vendor": f"0x{raw['vendor_id']}",
            "device": f"0x{raw['device_id']}",
            "class": f"0x{raw['class']}",
            "driver": None if raw["driver"] == "none" else raw["driver"],
        }
        for raw in raws
    ]


# ---------------------------------------------------------------------- profiles


def _read_types(table: YamlMapping, model: Mapping[str, Any], is_nvidia_vgpu: bool) -> list[dict[str, Any]]:
    """Return the vGPU types: all of the model's, or those that the entry lists by name or defines in full."""
    catalogue = list(model["profiles"])
    configured = table.get("profiles")
    if configured is None:
        return [_complete_type(raw, is_nvidia_vgpu) for raw in catalogue]
    return [_complete_type(_read_profile(value, catalogue), is_nvidia_vgpu) for value in configured.items()]


def _read_profile(value: YamlValue, catalogue: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    if value.is_text():
        profile_name = value.text()
        for raw in catalogue:
            if profile_name in (raw["name"], raw["name"].split()[-1], raw.get("key")):
                return raw
        value.choice(raw["name"].split()[-1] for raw in catalogue)
    table = value.mapping(PROFILE_KEYS)
    profile: dict[str, Any] = {"name": table.require("name").text()}
    for name in ("id", "framebuffer_mib", "max", "max_per_vm", "units", "max_per_gi", "gi_profile"):
        number = table.get(name)
        if number is not None:
            profile[name] = number.number(0 if name == "gi_profile" else 1)
    for name in ("key", "description"):
        text = table.get(name)
        if text is not None:
            profile[name] = text.text()
    if "id" not in profile and "key" not in profile:
        value.reject("'id' is missing (or 'key', the type directory's name, for another maker's driver)")
    return profile


def _complete_type(raw: Mapping[str, Any], is_nvidia_vgpu: bool) -> dict[str, Any]:
    series = str(raw["name"])[-1:]
    is_exclusive = is_nvidia_vgpu and (series in "AB" or str(raw["name"]).endswith("ME"))
    framebuffer, max_per_gpu = int(raw.get("framebuffer_mib", 0)), int(raw.get("max", 1))
    description = raw.get("description")
    if is_nvidia_vgpu and description is None:
        description = (
            f"num_heads={raw.get('heads', 4)}, frl_config={45 if series == 'B' else 60}, "
            f"framebuffer={framebuffer}M, max_resolution={raw.get('resolution', '4096x2160')}, "
            f"max_instance={max_per_gpu}"
        )
    return {
        "key": raw.get("key") or f"nvidia-{raw['id']}",
        "number": int(raw.get("id", 0)),
        "name": raw["name"],
        "framebuffer_mib": framebuffer,
        "maximum": max_per_gpu,
        "per_vm": int(raw.get("max_per_vm", 1 if is_exclusive else 16)),
        "units": raw.get("units", 1),
        "gi_profile": raw.get("gi_profile"),
        "max_per_gi": int(raw.get("max_per_gi", 1)),
        "description": description,
    }


@cache
def load_models() -> Mapping[str, Mapping[str, Any]]:
    """Return every known model by its short name."""
    file = Path(__file__).parent / "data" / "models.json"
    models: Mapping[str, Mapping[str, Any]] = json.loads(file.read_text())
    return models


def model_names() -> tuple[str, ...]:
    """Return the short names of the known models."""
    return tuple(load_models())


def find_model(name: str) -> Mapping[str, Any] | None:
    """Return a model by short name, full name or product name, ignoring case."""
    folded_name = name.casefold()
    for short, entry in load_models().items():
        if folded_name in {short.casefold(), entry["model"].casefold(), *(n.casefold() for n in entry["names"])}:
            return entry
    return None
