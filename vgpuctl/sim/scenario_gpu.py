# SPDX-License-Identifier: Apache-2.0
"""The `gpus:` part of a scenario: one entry becomes one or several GPUs with addresses, groups and types."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from vgpuctl.model.address import normal_pci
from vgpuctl.sim.models import known_names, model
from vgpuctl.sim.reading import Table, Value

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
)
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
FIRST_BUS, BUS_STEP, LAST_BUS = 0x3B, 4, 0xF8
LAST_DOMAIN = 0xFF
MOST_ALIKE = 4096
"""How many GPUs one entry may be: a fleet of hosts in one, for `simulate`."""
_VENDOR_VF_SINCE = (6, 8)
_UNKNOWN: dict[str, Any] = {"vendor_id": "10de", "device_id": "ffff", "class": "030200", "profiles": []}


def expand(table: Table, kernel: str, before: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the GPUs of one entry; `before` are those already there and grows as they are taken."""
    name = table.need("model")
    known = model(name.text())
    if known is None and table.get("backend") is None:
        name.wrong(f"'{name.text()}' is not known, so 'backend' is needed; known: {', '.join(known_names())}")
    given = table.get("address")
    count = table.number("count", 1, 1, MOST_ALIKE)
    if given is not None and count > 1:
        given.wrong("give either an address or a count")
    for _ in range(count):
        yield _one(table, known or {**_UNKNOWN, "model": name.text()}, kernel, before)


def _one(table: Table, known: Mapping[str, Any], kernel: str, before: list[dict[str, Any]]) -> dict[str, Any]:
    position = len(before)
    address = _address(table, known, before)
    driver = _driver(table, known)
    backend = _backend(table, known, kernel, driver)
    vendor = table.text("vendor_id", known.get("vendor_id", "ffff")).removeprefix("0x")
    own = vendor == "10de" and backend not in ("passthrough", "sriov-vf")
    units = table.number("units", known.get("units", 0))
    total, enabled = _vfs(table, known, backend)
    device = table.text("device_id", known.get("device_id", "ffff")).removeprefix("0x")
    group = table.get("iommu_group")
    node = table.get("numa_node")
    raw: dict[str, Any] = {
        "address": address,
        "model": known["model"],
        "backend": backend,
        "rule": "counter" if units else "nvidia" if own else None,
        "types": _types(table, known, own),
        "vendor": f"0x{vendor}",
        "device": f"0x{device}",
        "vf_device": f"0x{known.get('vf_device_id', device)}",
        "class": f"0x{table.text('class', known.get('class', '030200')).removeprefix('0x')}",
        "driver": driver,
        "vf_driver": "nvidia" if own else None,
        "vfs_total": total,
        "vfs_enabled": enabled,
        "numa_node": node.number(-1, 63) if node is not None else -1,
        "iommu_group": group.number() if group is not None else 20 + position,
        "vf_group": 100 + 64 * position,
        "port_group": 1000 + position,
        "framebuffer_mib": table.number("framebuffer_mib", known.get("framebuffer_mib", 0)),
        "bar_mib": int(known.get("bar_mib", 0)),
        "units": units,
        "units_refusal": _refusal(table),
        "console": table.flag("console", False),
        "header": table.flag("types_header", True),
        "configurable": table.flag("configurable", bool(known.get("configurable", not own))),
        "companions": _companions(table, known),
        "nvml": vendor == "10de" and driver == "nvidia",
        "held_by": table.get("held_by") and table.need("held_by").text(),
        "gi_profiles": known.get("gi_profiles", []) if own else [],
    }
    if driver == "gim":
        raw["configurable"] = False
    return raw


def _address(table: Table, known: Mapping[str, Any], before: list[dict[str, Any]]) -> str:
    taken = {raw["address"] for raw in before}
    given = table.get("address")
    if given is None and "address" in known and known["address"] not in taken:
        return str(known["address"])
    if given is None:
        return _next_address(taken)
    address = normal_pci(given.text()) or given.text()
    if address in taken:
        given.wrong(f"{address} is there twice")
    if ":" in address and normal_pci(address) is None:
        given.wrong(f"'{address}' is not a PCI address; write it like 0000:3b:00.0")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:-]*", address):
        given.wrong(f"'{address}' is neither a PCI address nor a kernel name")
    return address


def _next_address(taken: set[str]) -> str:
    for domain in range(LAST_DOMAIN + 1):
        for bus in range(FIRST_BUS, LAST_BUS, BUS_STEP):
            address = f"{domain:04x}:{bus:02x}:00.0"
            if address not in taken:
                return address
    raise AssertionError("more GPUs than a scenario may have")


def _driver(table: Table, known: Mapping[str, Any]) -> str | None:
    given = table.get("driver")
    name = given.text() if given is not None else str(known.get("driver", "nvidia"))
    return None if name == "none" else name


def _backend(table: Table, known: Mapping[str, Any], kernel: str, driver: str | None) -> str:
    given = table.get("backend")
    if given is not None:
        return given.choice(BACKENDS)
    if driver in ("vfio-pci", None):
        return "passthrough"
    backend = str(known["backend"])
    if backend != "nvidia-sriov":
        return backend
    numbers = tuple(int(part) for part in re.findall(r"\d+", kernel)[:2])
    return "vendor-vf" if numbers >= _VENDOR_VF_SINCE else "mdev-vf"


def _vfs(table: Table, known: Mapping[str, Any], backend: str) -> tuple[int, int]:
    """Return total and enabled: on where the backend needs them, none for a whole GPU."""
    needs = backend in ("mdev-vf", "vendor-vf", "sriov-vf")
    total = int(known.get("vfs", 16)) if needs else 0
    given = table.get("vfs")
    if given is None:
        return total, total
    inside = given.table(("total", "enabled"))
    total = inside.number("total", total, 0, 63)
    return total, inside.number("enabled", total if needs else 0, 0, total)


def _refusal(table: Table) -> str:
    value = table.get("refusal")
    word = value.choice(("ENOSPC", "EUSERS")) if value is not None else "ENOSPC"
    return "no-units" if word == "ENOSPC" else "no-instances"


def _companions(table: Table, known: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the other endpoints of the slot: a display card's audio function, say."""
    raws: list[Mapping[str, Any]] = list(known.get("companions", []))
    if table.get("companions") is not None:
        raws = []
        for value in table.items("companions"):
            inside = value.table(("vendor_id", "device_id", "class", "driver"))
            raws.append(
                {
                    "vendor_id": inside.text("vendor_id", "10de"),
                    "device_id": inside.text("device_id", "ffff"),
                    "class": inside.text("class", "040300"),
                    "driver": inside.text("driver", "none"),
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


def _types(table: Table, known: Mapping[str, Any], own: bool) -> list[dict[str, Any]]:
    """Return the types: all of the model's, or those that the entry lists by name or in full."""
    catalogue = list(known["profiles"])
    given = table.get("profiles")
    if given is None:
        return [_type(raw, own) for raw in catalogue]
    return [_type(_profile(value, catalogue), own) for value in given.items()]


def _profile(value: Value, catalogue: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    if value.is_text():
        wanted = value.text()
        for raw in catalogue:
            if wanted in (raw["name"], raw["name"].split()[-1], raw.get("key")):
                return raw
        value.choice(raw["name"].split()[-1] for raw in catalogue)
    table = value.table(PROFILE_KEYS)
    made: dict[str, Any] = {"name": table.need("name").text()}
    for name in ("id", "framebuffer_mib", "max", "max_per_vm", "units", "max_per_gi", "gi_profile"):
        number = table.get(name)
        if number is not None:
            made[name] = number.number(0 if name == "gi_profile" else 1)
    for name in ("key", "description"):
        text = table.get(name)
        if text is not None:
            made[name] = text.text()
    if "id" not in made and "key" not in made:
        value.wrong("'id' is missing (or 'key', the type directory's name, for another maker's driver)")
    return made


def _type(raw: Mapping[str, Any], own: bool) -> dict[str, Any]:
    series = str(raw["name"])[-1:]
    exclusive = own and (series in "AB" or str(raw["name"]).endswith("ME"))
    framebuffer, most = int(raw.get("framebuffer_mib", 0)), int(raw.get("max", 1))
    description = raw.get("description")
    if own and description is None:
        description = (
            f"num_heads={raw.get('heads', 4)}, frl_config={45 if series == 'B' else 60}, "
            f"framebuffer={framebuffer}M, max_resolution={raw.get('resolution', '4096x2160')}, "
            f"max_instance={most}"
        )
    return {
        "key": raw.get("key") or f"nvidia-{raw['id']}",
        "number": int(raw.get("id", 0)),
        "name": raw["name"],
        "framebuffer_mib": framebuffer,
        "maximum": most,
        "per_vm": int(raw.get("max_per_vm", 1 if exclusive else 16)),
        "units": int(raw.get("units", 1)),
        "gi_profile": raw.get("gi_profile"),
        "max_per_gi": int(raw.get("max_per_gi", 1)),
        "description": description,
    }
