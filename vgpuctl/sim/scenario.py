# SPDX-License-Identifier: Apache-2.0
"""Compiles a scenario file to the plain JSON that the journal stores: checked, with every default filled in.

The format is documented in docs/reference/scenarios.md. Files are meant to be short: for a model that the simulator
knows, the name is enough.
"""

from __future__ import annotations

import re
from typing import Any

from vgpuctl.model.names import normalize_pci
from vgpuctl.sim import faults
from vgpuctl.sim.guest_host import DEFAULT_CPUS, PAGE_SIZES_KIB
from vgpuctl.sim.initial_state import initial_records
from vgpuctl.sim.machine import function_addresses
from vgpuctl.sim.scenario_gpu import (
    FIRST_BRIDGE_GROUP,
    GPU_KEYS,
    MAX_BRIDGES,
    MAX_COUNT,
    expand_gpus,
    read_bridges,
)
from vgpuctl.sim.scenario_reader import YamlMapping, YamlValue, read_scenario

DEFAULT_KERNEL = "6.8.0-45-generic"
DEFAULT_DRIVER = "550.90.05"
SCENARIO_KEYS = (
    "version",
    "title",
    "arch",
    "kernel",
    "iommu",
    "libvirt",
    "nvidia",
    "networks",
    "bridges",
    "cpus",
    "hugepages",
    "storage",
    "images",
    "gpus",
    "nvswitches",
    "faults",
)
ARCHITECTURES = ("x86_64", "aarch64")
NVML_STATES = ("present", "absent", "too-old")
_GIB = 1 << 30
_VERSION = re.compile(r"\d+\.\d+(\.\d+)?", re.ASCII)


def compile_scenario(text: str, file: str) -> dict[str, Any]:
    """Check a scenario's text and return it as plain JSON.

    Raises:
        InvalidInput: with file and line.
    """
    root = read_scenario(text, file).mapping(SCENARIO_KEYS)
    version = root.require("version").number()
    if version != 1:
        root.require("version").reject(f"this vgpuctl reads version 1, not {version}")
    compiled: dict[str, Any] = {
        "title": root.text("title", ""),
        "kernel": _read_kernel(root),
        "arch": _read_arch(root.get("arch")),
        "iommu": root.flag("iommu", True),
        "libvirt": _read_libvirt(root.get("libvirt")),
        "nvidia": _read_nvidia(root.get("nvidia")),
        "networks": _read_networks(root),
        "bridges": [_read_bridge(value) for value in root.items("bridges")],
        "cpus": root.number("cpus", DEFAULT_CPUS, 1, 4096),
        "hugepages": [_read_hugepages(value) for value in root.items("hugepages")],
        "storage": _read_storage(root.get("storage")),
        "faults": [_read_fault(value) for value in root.items("faults")],
        "gpus": [],
        "nvswitches": [],
    }
    entries = root.items("gpus")
    kernel = compiled["kernel"]
    owners: dict[str, str] = {}
    for value in entries:
        mapping = value.mapping(GPU_KEYS)
        for gpu in expand_gpus(mapping, kernel, compiled["gpus"]):
            _check_addresses(value, gpu, owners)
            compiled["gpus"].append(gpu)
    for value in root.items("nvswitches"):
        if not compiled["gpus"]:
            value.reject("an NVSwitch connects GPUs, and the host has none")
        compiled["nvswitches"].append(_read_nvswitch(value, len(compiled["nvswitches"]), owners))
    compiled["found"] = [
        *_read_pools(root.get("storage")),
        *(_read_image(value) for value in root.items("images")),
        *initial_records(compiled, entries),
    ]
    return compiled


def _check_addresses(value: YamlValue, raw: dict[str, Any], owners: dict[str, str]) -> None:
    """Refuse a GPU with a function at the address of another GPU's function: one would hide the other."""
    for name in function_addresses(raw):
        if name in owners:
            value.reject(f"{raw['address']} would have a function at {name}, where one of {owners[name]} is")
        owners[name] = raw["address"]


def _read_nvswitch(value: YamlValue, number: int, owners: dict[str, str]) -> dict[str, Any]:
    """Return an NVSwitch: a PCI device of NVIDIA of the class "bridge, other"; 22a3 is the one of HGX H100."""
    table = value.mapping(("address", "device_id", "driver", "behind"))
    address = normalize_pci(table.require("address").text())
    if address is None or address in owners:
        table.require("address").reject("it is not the PCI address of a device of its own")
    owners[address] = address
    driver = table.text("driver", "nvidia-nvswitch")
    return {
        "address": address,
        "device_id": table.text("device_id", "22a3").removeprefix("0x"),
        "driver": None if driver == "none" else driver,
        "behind": read_bridges(table),
        "bridge_group": FIRST_BRIDGE_GROUP + (MAX_COUNT + number) * (MAX_BRIDGES + 1),
    }


def _read_kernel(top: YamlMapping) -> str:
    value = top.get("kernel")
    if value is None:
        return DEFAULT_KERNEL
    text = value.text()
    if not re.match(r"\d+\.\d+", text):
        value.reject(f"'{text}' is not a kernel version; write it like {DEFAULT_KERNEL}")
    return text


def _read_arch(value: YamlValue | None) -> str:
    if value is None:
        return ARCHITECTURES[0]
    text = value.text()
    if text not in ARCHITECTURES:
        value.reject(f"'{text}' is not known; one of: {', '.join(ARCHITECTURES)}")
    return text


def _read_version(table: YamlMapping, name: str, default: str) -> str:
    value = table.get(name)
    if value is None:
        return default
    text = value.text()
    if not _VERSION.fullmatch(text):
        value.reject(f"'{text}' is not a version; write it like '{default}', in quotes")
    return text


def _read_libvirt(value: YamlValue | None) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "version": "10.0.0",
        "qemu": "8.2.2",
        "running": True,
        "kvm": True,
        "uefi": True,
        "secure_boot": True,
        "tpm": True,
        "opengl": True,
    }
    if value is None:
        return defaults
    table = value.mapping(defaults)
    return {
        "version": _read_version(table, "version", defaults["version"]),
        "qemu": _read_version(table, "qemu", defaults["qemu"]),
        **{name: table.flag(name, True) for name in ("running", "kvm", "uefi", "secure_boot", "tpm", "opengl")},
    }


def _read_nvidia(value: YamlValue | None) -> dict[str, Any]:
    if value is None:
        return {"driver": DEFAULT_DRIVER, "nvml": NVML_STATES[0], "guest_driver": None}
    table = value.mapping(("driver", "nvml", "guest_driver"))
    driver, guest = _read_driver(table, "driver", DEFAULT_DRIVER), _read_driver(table, "guest_driver", None)
    return {"driver": driver, "nvml": table.text("nvml", NVML_STATES[0]), "guest_driver": guest}


def _read_driver(table: YamlMapping, key: str, default: str | None) -> str | None:
    driver = table.get(key)
    text = driver.text() if driver is not None else default
    if driver is not None and not re.fullmatch(r"\d+(\.\d+)*", text or ""):
        driver.reject(f"'{text}' is not a driver version; write it like '{DEFAULT_DRIVER}', in quotes")
    return text


def _read_networks(top: YamlMapping) -> list[dict[str, Any]]:
    if top.get("networks") is None:
        return [{"name": "default", "active": True}]
    tables = [value.mapping(("name", "active", "forward")) for value in top.items("networks")]
    return [_read_network(table) for table in tables]


def _read_network(table: YamlMapping) -> dict[str, Any]:
    forward = table.get("forward")
    mode = {} if forward is None else {"forward": forward.choice(("nat", "route", "open", "bridge"))}
    return {"name": table.require("name").text(), "active": table.flag("active", True), **mode}


def _read_bridge(value: YamlValue) -> dict[str, Any]:
    table = value.mapping(("name", "vlan_filtering", "linux"))
    return {
        "name": table.require("name").text(),
        "vlan_filtering": table.flag("vlan_filtering", False),
        "linux": table.flag("linux", True),
    }


def _read_hugepages(value: YamlValue) -> dict[str, Any]:
    table = value.mapping(("node", "size", "count"))
    size = table.require("size").choice(("2MiB", "1GiB"))
    return {
        "node": table.number("node", 0, 0, 63),
        "size_kib": PAGE_SIZES_KIB[size == "1GiB"],
        "count": table.require("count").number(),
    }


STORAGE_KEYS = ("filesystem_gib", "used_gib", "pools")
POOL_KEYS = ("name", "path", "active", "kind", "capacity_gib", "used_gib")


def _read_storage(value: YamlValue | None) -> dict[str, Any]:
    if value is None:
        return {"capacity": 1000 * _GIB, "used": 100 * _GIB}
    mapping = value.mapping(STORAGE_KEYS)
    return {
        "capacity": mapping.number("filesystem_gib", 1000) * _GIB,
        "used": mapping.number("used_gib", 100) * _GIB,
    }


def _read_pools(value: YamlValue | None) -> list[list[Any]]:
    if value is None:
        return []
    records: list[list[Any]] = []
    for entry in value.mapping(STORAGE_KEYS).items("pools"):
        mapping = entry.mapping(POOL_KEYS)
        name = mapping.require("name").text()
        kind = mapping.text("kind", "dir")
        directory = "/dev" if kind == "logical" else "/var/lib/libvirt/images"
        path = mapping.text("path", f"{directory}/{name}" if name != "default" else "/var/lib/libvirt/images")
        capacity = mapping.get("capacity_gib")
        if kind == "logical" and capacity is None:
            entry.reject("a logical pool is a volume group of its own: give its size as capacity_gib")
        records.append(
            [
                "pool",
                name,
                path,
                mapping.flag("active", True),
                kind,
                capacity.number() * _GIB if capacity is not None else None,
                mapping.number("used_gib", 0) * _GIB,
            ]
        )
    return records


IMAGE_KEYS = ("path", "format", "size_gib", "firmware", "problem", "base", "link")
FIRMWARE = ("uefi", "bios", "both", "none", "unknown")


def _read_image(value: YamlValue) -> list[Any]:
    mapping = value.mapping(IMAGE_KEYS)
    path = mapping.require("path").text()
    if not path.startswith("/"):
        mapping.require("path").reject("must be an absolute path")
    size = mapping.number("size_gib", 20) * _GIB
    firmware = mapping.get("firmware")
    problem = mapping.get("problem")
    base = mapping.get("base")
    link = mapping.get("link")
    image_format = mapping.text("format", "raw" if path.endswith((".iso", ".img", ".raw")) else "qcow2")
    return [
        "file",
        path,
        size,
        image_format,
        base.text() if base is not None else None,
        0,
        firmware.choice(FIRMWARE) if firmware is not None else "both",
        problem.text() if problem is not None else None,
        None,
        link.text() if link is not None else None,
    ]


FAULT_KEYS = ("on", "match", "kind", "errno", "code", "message", "times", "nth")


def _read_fault(value: YamlValue) -> dict[str, Any]:
    mapping = value.mapping(FAULT_KEYS)
    call = mapping.require("on").choice(faults.CALLS)
    kind_value = mapping.get("kind")
    errno_value = mapping.get("errno")
    kind = kind_value.choice(faults.KINDS) if kind_value is not None else "error"
    if kind == "park" and call != "sysfs-write":
        value.reject("only a sysfs-write can be parked in the kernel")
    if kind == "pending" and call != "nvml-set-mig":
        value.reject("only an nvml-set-mig can be pending until the GPU is reset")
    if kind == "unknown" and call != "migrate":
        value.reject("only the outcome of a migrate can be unknown")
    if errno_value is not None and not call.startswith("sysfs"):
        errno_value.reject("only sysfs calls have an errno; libvirt's have a code")
    if mapping.get("times") is not None and mapping.get("nth") is not None:
        value.reject("times and nth cannot be combined")
    return {
        "on": call,
        "match": mapping.text("match", "*"),
        "kind": kind,
        "errno": errno_value.errno() if errno_value is not None else None,
        "code": mapping.number("code", faults.DEFAULT_CODE),
        "message": mapping.text("message", f"injected fault: {call} failed"),
        "times": mapping.number("times", 0),
        "nth": mapping.number("nth", 0),
    }
