# SPDX-License-Identifier: Apache-2.0
"""The hardware and software of a simulated host: everything that does not change while it runs.

It is built from the compiled scenario, which is plain JSON in the journal's first line. So opening a host that
was used before needs neither the scenario's YAML nor the table of models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from vgpuctl.model.gpu import GiProfile, PlacementSpan
from vgpuctl.model.names import format_pci, split_pci
from vgpuctl.value import EMPTY_MAPPING, Value, replace

DEVICES_ROOT = "/sys/devices"
PORT_CLASS = "0x060400"
NVSWITCH_CLASS = "0x068000"
NVSWITCH_SERIALS = 1 << 19
"""The first serial number of an NVSwitch: above those of all GPUs that a scenario can have."""
_AMPERE, _BLACKWELL = 7, 10
_ARCHITECTURES = (
    (r"\bM\d", 3), (r"\bP\d", 4), (r"V100", 5), (r"T4|RTX [68]000\b", 6),
    (r"\bA\d", _AMPERE), (r"\bL\d", 8), (r"\bH\d", 9),
)  # fmt: skip


class SimType(Value):
    """A vGPU type. `key` is the mdev directory's name, `number` the id in vendor VFIO and NVML.

    `gi_profile`: the GPU instance profile of a MIG-backed type, or None for a time-sliced type. `max_per_gi`: how many
    vGPUs of the type one GPU instance takes.
    """

    key: str
    number: int
    name: str
    framebuffer_mib: int
    maximum: int
    per_vm: int = 16
    units: tuple[int, ...] = (1,)
    gi_profile: int | None = None
    max_per_gi: int = 1
    description: str | None = None

    @property
    def is_mig_backed(self) -> bool:
        """Whether the type is MIG-backed."""
        return self.gi_profile is not None


class SimFunction(Value):
    """A device function.

    `kind` is pf, vf, extra (another endpoint of the GPU's slot), port (a bridge above it), nvswitch (of the board, with
    the first GPU as its `gpu`), or parent (no PCI).
    """

    address: str
    kind: str
    gpu: str
    path: str
    vendor: str = ""
    device: str = ""
    device_class: str = ""
    driver: str | None = None
    group: int | None = None
    index: int = 0
    serial: int = 0


class SimGpu(Value):
    """A GPU and the rule its driver follows: `nvidia` (one size at a time) or `counter` (shared units of some kinds).

    `held_by`: a program that always has NVIDIA's driver open for this GPU. `largest_mib`: the framebuffer of its
    largest type without MIG, or 0. `bar_mib`: the size of its own function's large BAR, or 0.
    `xcc`: how many compute dies an AMD GPU with partition modes has, or 0. `nvlink`: the GPUs at the
    other ends of its NVLinks. `mdevs_take_vfs`: each mdev of its own function takes a VF, and their number changes only
    without mdevs.
    """

    address: str
    model: str
    backend: str
    rule: str | None
    types: Mapping[str, SimType]
    functions: tuple[SimFunction, ...]
    vfs_total: int = 0
    vfs_enabled: int = 0
    numa_node: int = -1
    framebuffer_mib: int = 0
    units: tuple[int, ...] = ()
    units_refusal: str = "no-units"
    console: bool = False
    header: bool = True
    configurable: bool = True
    nvml: bool = False
    held_by: str | None = None
    gi_profiles: Mapping[int, GiProfile] = EMPTY_MAPPING
    types_by_number: Mapping[int, SimType] = EMPTY_MAPPING
    largest_mib: int = 0
    bar_mib: int = 0
    mdevs_take_vfs: bool = False
    xcc: int = 0
    nvlink: tuple[str, ...] = ()

    @property
    def architecture(self) -> int:
        """NVML's number of the GPU's architecture: 7 Ampere, 9 Hopper, 10 Blackwell."""
        return _architecture(self.model)

    @property
    def keeps_mig(self) -> bool:
        """Whether MIG stays on when the driver is reloaded: Ampere keeps it in its InfoROM, later GPUs do not."""
        return self.architecture <= _AMPERE

    @property
    def own_function(self) -> SimFunction:
        """The GPU's own function."""
        return self.functions[0]

    @property
    def vfs(self) -> tuple[SimFunction, ...]:
        """Every VF that the GPU can have, enabled or not."""
        return tuple(f for f in self.functions if f.kind == "vf")


@cache
def _architecture(model: str) -> int:
    matches = (number for pattern, number in _ARCHITECTURES if re.search(pattern, model))
    return next(matches, _BLACKWELL)


class Machine(Value):
    """The whole host. `slots` has all functions, by the first two directories of their paths."""

    scenario: Mapping[str, Any]
    gpus: Mapping[str, SimGpu]
    functions: Mapping[str, SimFunction]
    slots: Mapping[str, Mapping[str, Sequence[SimFunction]]]

    @property
    def kernel(self) -> tuple[int, int]:
        """The kernel's version as two numbers."""
        return _major_minor(self.scenario["kernel"])

    @property
    def driver_major(self) -> int:
        """The major version of NVIDIA's driver."""
        return _major_minor(self.scenario["nvidia"]["driver"])[0]

    @property
    def libvirt_version(self) -> int:
        """Libvirt's version as one number, as libvirt counts."""
        return version_number(self.scenario["libvirt"]["version"])

    @property
    def has_iommu(self) -> bool:
        """Whether the IOMMU is on."""
        return bool(self.scenario["iommu"])


def _major_minor(text: str) -> tuple[int, int]:
    parts = text.replace("-", ".").split(".")
    return int(parts[0]), int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 0


def version_number(text: str) -> int:
    """Return a dotted version as major * 1000000 + minor * 1000 + release."""
    major, minor, release = ([int(part) for part in text.split(".")] + [0, 0])[:3]
    return major * 1_000_000 + minor * 1000 + release


def build_machine(scenario: Mapping[str, Any]) -> Machine:
    """Build the machine that a compiled scenario describes."""
    gpus: dict[str, SimGpu] = {}
    functions: dict[str, SimFunction] = {}
    taken = {name for raw in scenario["gpus"] for name in function_addresses(raw)}
    for position, raw in enumerate(scenario["gpus"]):
        bridges = tuple(raw.get("behind", ()))
        port = None if bridges else _free_root_port(raw["address"], taken)
        gpu = _gpu(raw, position, bool(scenario["iommu"]), bridges or (() if port is None else (port,)))
        own = tuple(function for function in gpu.functions if function.address not in functions)  # bridges are shared
        gpus[gpu.address] = gpu if len(own) == len(gpu.functions) else replace(gpu, functions=own)
        functions.update((function.address, function) for function in own)
    for number, raw in enumerate(scenario.get("nvswitches", ())):
        for function in _nvswitch_functions(raw, number, next(iter(gpus)), bool(scenario["iommu"])):
            functions.setdefault(function.address, function)
    slots: dict[str, dict[str, list[SimFunction]]] = {}
    for function in functions.values():
        top, slot = function.path.removeprefix(f"{DEVICES_ROOT}/").split("/")[:2]
        slots.setdefault(top, {}).setdefault(slot, []).append(function)
    return Machine(scenario=scenario, gpus=gpus, functions=functions, slots=slots)


def function_addresses(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the addresses of a GPU's functions: its own, its companions', and every possible VF's."""
    address = raw["address"]
    if ":" not in address:
        return (address,)
    others = (f"{address[:-1]}{number}" for number in range(1, len(raw["companions"]) + 1))
    return (address, *others, *(_vf_address(address, number) for number in range(raw["vfs_total"])))


def _free_root_port(address: str, taken: set[str]) -> str | None:
    """Return a free address for the root port above a GPU, on the previous bus: no function or port has it yet.

    A GPU on bus 0 has no root port.
    """
    if ":" not in address or split_pci(address)[1] == 0:
        return None
    domain, bus, _, _ = split_pci(address)
    port = next(name for slot in range(32) if (name := format_pci(domain, bus - 1, slot, 0)) not in taken)
    taken.add(port)
    return port


def _gpu(raw: Mapping[str, Any], position: int, iommu: bool, bridges: tuple[str, ...]) -> SimGpu:
    types = {entry["key"]: SimType(**{**entry, "units": _units(entry["units"])}) for entry in raw["types"]}
    return SimGpu(
        address=raw["address"],
        model=raw["model"],
        backend=raw["backend"],
        rule=raw["rule"],
        types=types,
        gi_profiles={entry["id"]: _gi_profile(entry) for entry in raw["gi_profiles"]},
        types_by_number={entry.number: entry for entry in types.values()},
        largest_mib=max((entry.framebuffer_mib for entry in types.values() if not entry.is_mig_backed), default=0),
        functions=tuple(_functions(raw, position, iommu, bridges)),
        units=_units(raw["units"]),
        nvlink=tuple(raw.get("nvlink", ())),
        xcc=raw.get("xcc", 0),
        **{
            name: raw[name]
            for name in (
                "vfs_total",
                "vfs_enabled",
                "numa_node",
                "framebuffer_mib",
                "units_refusal",
                "console",
                "header",
                "configurable",
                "nvml",
                "held_by",
                "bar_mib",
                "mdevs_take_vfs",
            )
        },
    )


def _units(raw: int | Sequence[int]) -> tuple[int, ...]:
    """Return the units of each counter: a number is one counter, 0 is none."""
    return tuple(raw) if not isinstance(raw, int) else (raw,) if raw else ()


def _gi_profile(raw: Mapping[str, Any]) -> GiProfile:
    spans = tuple(PlacementSpan(start, raw["size"]) for start in raw["starts"])
    return GiProfile(raw["id"], raw["name"], raw["slices"], raw["memory_mib"], raw["max"], spans)


def _functions(raw: Mapping[str, Any], position: int, iommu: bool, bridges: tuple[str, ...]) -> list[SimFunction]:
    """List the GPU's own function first, then its companions, then every possible VF, then the bridges above it."""
    address = raw["address"]
    if ":" not in address:
        path = f"{DEVICES_ROOT}/virtual/{raw['driver'] or address}/{address}"
        return [SimFunction(address, "parent", address, path, driver=raw["driver"])]
    slot = _bridge_paths(address, bridges)[-1]

    def build_function(name: str, kind: str, number: int, ids: Mapping[str, Any]) -> SimFunction:
        group = raw["iommu_group"] if kind != "vf" else raw["vf_group"] + number
        return SimFunction(
            address=name,
            kind=kind,
            gpu=address,
            path=f"{slot}/{name}",
            vendor=ids["vendor"],
            device=ids["device"],
            device_class=ids["class"],
            driver=ids["driver"],
            group=group if iommu else None,
            index=number,
            serial=position * 128 + number + (8 if kind == "vf" else 0),
        )

    addresses = function_addresses(raw)
    extra = len(raw["companions"])
    virtual = {**raw, "device": raw["vf_device"], "driver": raw["vf_driver"]}
    functions = [build_function(address, "pf", 0, raw)]
    functions += [build_function(addresses[1 + n], "extra", n + 1, other) for n, other in enumerate(raw["companions"])]
    functions += [build_function(addresses[1 + extra + n], "vf", n, virtual) for n in range(raw["vfs_total"])]
    first_group = raw["port_group"] if len(bridges) == 1 else raw.get("bridge_group", 0)
    functions += _bridges(address, address, bridges, first_group if iommu else None)
    return functions


def _bridge_paths(address: str, bridges: tuple[str, ...]) -> list[str]:
    """Return the paths in /sys/devices of the root bus above a function and of each bridge below that."""
    domain, bus, _, _ = split_pci(bridges[0] if bridges else address)
    paths = [f"{DEVICES_ROOT}/pci{domain:04x}:{bus:02x}"]
    for bridge in bridges:
        paths.append(f"{paths[-1]}/{bridge}")
    return paths


def _bridges(address: str, gpu: str, bridges: tuple[str, ...], first_group: int | None) -> list[SimFunction]:
    """Return the bridges above a function: a root port, then the ports of PCIe switches."""
    return [
        SimFunction(
            address=name,
            kind="port",
            gpu=gpu,
            path=path,
            vendor="0x8086" if number == 0 else "0x1000",
            device="0x347a" if number == 0 else "0xc030",
            device_class=PORT_CLASS,
            driver="pcieport",
            group=None if first_group is None else first_group + number,
        )
        for number, (name, path) in enumerate(zip(bridges, _bridge_paths(address, bridges)[1:], strict=True))
    ]


def _nvswitch_functions(raw: Mapping[str, Any], number: int, gpu: str, iommu: bool) -> list[SimFunction]:
    """Return an NVSwitch and the bridges above it."""
    bridges, first_group = tuple(raw["behind"]), raw["bridge_group"]
    switch = SimFunction(
        address=raw["address"],
        kind="nvswitch",
        gpu=gpu,
        path=f"{_bridge_paths(raw['address'], bridges)[-1]}/{raw['address']}",
        vendor="0x10de",
        device=f"0x{raw['device_id']}",
        device_class=NVSWITCH_CLASS,
        driver=raw["driver"],
        group=first_group + len(bridges) if iommu else None,
        serial=NVSWITCH_SERIALS + number,
    )
    return [switch, *_bridges(raw["address"], gpu, bridges, first_group if iommu else None)]


def _vf_address(address: str, number: int) -> str:
    """Return a VF's address: SR-IOV's routing ids start 4 after the PF and may continue on the next bus."""
    domain, bus, slot, function = split_pci(address)
    routing = (bus << 8) + (slot << 3) + function + 4 + number
    return format_pci(domain, routing >> 8, (routing >> 3) & 0x1F, routing & 7)
