# SPDX-License-Identifier: Apache-2.0
"""From a scenario file to the plain JSON that the journal keeps: checked, with every default filled in.

The format is documented in docs/scenarios.md. Files are made to be short: a model that the simulator knows
needs its name and nothing else.
"""

from __future__ import annotations

import re
from typing import Any

from vgpuctl.sim import faults
from vgpuctl.sim.found import found_records
from vgpuctl.sim.machine import addresses
from vgpuctl.sim.reading import Table, Value, read
from vgpuctl.sim.scenario_gpu import GPU_KEYS, expand

KERNEL = "6.8.0-45-generic"
DRIVER = "550.90.05"
KEYS = (
    "version",
    "title",
    "kernel",
    "iommu",
    "libvirt",
    "nvidia",
    "networks",
    "storage",
    "images",
    "gpus",
    "faults",
)
NVML = ("present", "absent", "too-old")
_GIB = 1 << 30
_VERSION = re.compile(r"\d+\.\d+(\.\d+)?", re.ASCII)


def compile_scenario(text: str, file: str) -> dict[str, Any]:
    """Check a scenario's text and return it as plain JSON.

    Raises:
        InvalidInput: with file and line.
    """
    top = read(text, file).table(KEYS)
    version = top.need("version").number()
    if version != 1:
        top.need("version").wrong(f"this vgpuctl reads version 1, not {version}")
    compiled: dict[str, Any] = {
        "title": top.text("title", ""),
        "kernel": _kernel(top),
        "iommu": top.flag("iommu", True),
        "libvirt": _libvirt(top.get("libvirt")),
        "nvidia": _nvidia(top.get("nvidia")),
        "networks": _networks(top),
        "storage": _storage(top.get("storage")),
        "faults": [_fault(value) for value in top.items("faults")],
        "gpus": [],
    }
    entries = top.items("gpus")
    kernel = compiled["kernel"]
    whose: dict[str, str] = {}
    for value in entries:
        table = value.table(GPU_KEYS)
        for raw in expand(table, kernel, compiled["gpus"]):
            _take(value, raw, whose)
            compiled["gpus"].append(raw)
    compiled["found"] = [
        *_pools(top.get("storage")),
        *(_image(value) for value in top.items("images")),
        *found_records(compiled, entries),
    ]
    return compiled


def _take(value: Value, raw: dict[str, Any], whose: dict[str, str]) -> None:
    """Refuse a GPU of which a function has the address of another GPU's: one would hide the other."""
    for name in addresses(raw):
        if name in whose:
            value.wrong(f"{raw['address']} would have a function at {name}, where one of {whose[name]} is")
        whose[name] = raw["address"]


def _kernel(top: Table) -> str:
    value = top.get("kernel")
    if value is None:
        return KERNEL
    text = value.text()
    if not re.match(r"\d+\.\d+", text):
        value.wrong(f"'{text}' is not a kernel version; write it like {KERNEL}")
    return text


def _version(table: Table, name: str, default: str) -> str:
    value = table.get(name)
    if value is None:
        return default
    text = value.text()
    if not _VERSION.fullmatch(text):
        value.wrong(f"'{text}' is not a version; write it like '{default}', in quotes")
    return text


def _libvirt(value: Value | None) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "version": "10.0.0",
        "qemu": "8.2.2",
        "running": True,
        "kvm": True,
        "uefi": True,
        "secure_boot": True,
        "tpm": True,
    }
    if value is None:
        return defaults
    table = value.table(defaults)
    return {
        "version": _version(table, "version", defaults["version"]),
        "qemu": _version(table, "qemu", defaults["qemu"]),
        **{name: table.flag(name, True) for name in ("running", "kvm", "uefi", "secure_boot", "tpm")},
    }


def _nvidia(value: Value | None) -> dict[str, Any]:
    if value is None:
        return {"driver": DRIVER, "nvml": NVML[0], "guest_driver": None}
    table = value.table(("driver", "nvml", "guest_driver"))
    driver, guest = _driver(table, "driver", DRIVER), _driver(table, "guest_driver", None)
    return {"driver": driver, "nvml": table.text("nvml", NVML[0]), "guest_driver": guest}


def _driver(table: Table, key: str, default: str | None) -> str | None:
    driver = table.get(key)
    text = driver.text() if driver is not None else default
    if driver is not None and not re.fullmatch(r"\d+(\.\d+)*", text or ""):
        driver.wrong(f"'{text}' is not a driver version; write it like '{DRIVER}', in quotes")
    return text


def _networks(top: Table) -> list[dict[str, Any]]:
    if top.get("networks") is None:
        return [{"name": "default", "active": True}]
    tables = [value.table(("name", "active")) for value in top.items("networks")]
    return [{"name": t.need("name").text(), "active": t.flag("active", True)} for t in tables]


STORAGE_KEYS = ("filesystem_gib", "used_gib", "pools")
POOL_KEYS = ("name", "path", "active", "kind", "capacity_gib", "used_gib")


def _storage(value: Value | None) -> dict[str, Any]:
    if value is None:
        return {"capacity": 1000 * _GIB, "used": 100 * _GIB}
    table = value.table(STORAGE_KEYS)
    return {
        "capacity": table.number("filesystem_gib", 1000) * _GIB,
        "used": table.number("used_gib", 100) * _GIB,
    }


def _pools(value: Value | None) -> list[list[Any]]:
    if value is None:
        return []
    made: list[list[Any]] = []
    for entry in value.table(STORAGE_KEYS).items("pools"):
        table = entry.table(POOL_KEYS)
        name = table.need("name").text()
        path = table.text("path", f"/var/lib/libvirt/images/{name}" if name != "default" else "/var/lib/libvirt/images")
        own = table.get("capacity_gib")
        made.append(
            [
                "pool",
                name,
                path,
                table.flag("active", True),
                table.text("kind", "dir"),
                own.number() * _GIB if own is not None else None,
                table.number("used_gib", 0) * _GIB,
            ]
        )
    return made


IMAGE_KEYS = ("path", "format", "size_gib", "firmware", "problem", "base", "link")
FIRMWARE = ("uefi", "bios", "both", "none", "unknown")


def _image(value: Value) -> list[Any]:
    table = value.table(IMAGE_KEYS)
    path = table.need("path").text()
    if not path.startswith("/"):
        table.need("path").wrong("must be an absolute path")
    size = table.number("size_gib", 20) * _GIB
    firmware = table.get("firmware")
    problem = table.get("problem")
    base = table.get("base")
    link = table.get("link")
    kind = table.text("format", "raw" if path.endswith((".iso", ".img", ".raw")) else "qcow2")
    return [
        "file",
        path,
        size,
        kind,
        base.text() if base is not None else None,
        0,
        firmware.choice(FIRMWARE) if firmware is not None else "both",
        problem.text() if problem is not None else None,
        None,
        link.text() if link is not None else None,
    ]


FAULT_KEYS = ("on", "match", "kind", "errno", "code", "message", "times", "nth")


def _fault(value: Value) -> dict[str, Any]:
    table = value.table(FAULT_KEYS)
    call = table.need("on").choice(faults.CALLS)
    kind = table.get("kind")
    number = table.get("errno")
    chosen = kind.choice(faults.KINDS) if kind is not None else "error"
    if chosen == "park" and call != "sysfs-write":
        value.wrong("only a sysfs-write can be parked in the kernel")
    if chosen == "pending" and call != "nvml-set-mig":
        value.wrong("only an nvml-set-mig can be pending until the GPU is reset")
    if number is not None and not call.startswith("sysfs"):
        number.wrong("only sysfs calls have an errno; libvirt's have a code")
    if table.get("times") is not None and table.get("nth") is not None:
        value.wrong("times and nth exclude each other")
    return {
        "on": call,
        "match": table.text("match", "*"),
        "kind": chosen,
        "errno": number.errno() if number is not None else None,
        "code": table.number("code", faults.DEFAULT_CODE),
        "message": table.text("message", f"injected fault: {call} failed"),
        "times": table.number("times", 0),
        "nth": table.number("nth", 0),
    }
