# SPDX-License-Identifier: Apache-2.0
"""The simulated host's /sys, /proc and /dev as one virtual tree, made from the state."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from functools import partial

from vgpuctl.sim import binding, mdev, scheduler, sriov, vendor
from vgpuctl.sim.machine import PORT_CLASS, SimFunction, SimGpu
from vgpuctl.sim.state import State
from vgpuctl.sim.tree import Dir, File, Link, Node, fixed, text

VFIO_DEV_SINCE = (6, 1)
MEMORY_KIB = 512 << 20
"""The host's memory; what VMs use of it is not counted."""


def root(state: State, machine_id: str) -> Dir:
    """Return the root directory of the host as it is in this state."""
    return fixed(
        {
            "sys": fixed(
                {
                    "bus": Dir(partial(_buses, state)),
                    "class": Dir(partial(_classes, state)),
                    "devices": Dir(partial(_devices, state)),
                    "fs": fixed({"cgroup": fixed({"system.slice": Dir(partial(_services, state))})}),
                    "kernel": fixed({"iommu_groups": Dir(partial(_groups, state))}),
                    "module": Dir(partial(_modules, state)),
                }
            ),
            "proc": Dir(partial(_proc, state)),
            "dev": Dir(partial(_dev, state)),
            "etc": fixed({"machine-id": text(machine_id), "libvirt": fixed({"qemu": Dir(partial(_domains, state))})}),
        }
    )


def _domains(state: State) -> Mapping[str, Node]:
    """Return libvirt's own files of the defined domains (drvqemu: /etc/libvirt/qemu/NAME.xml)."""
    return {f"{domain.name}.xml": text(domain.xml) for domain in state.domains.values()}


def _services(state: State) -> Mapping[str, Node]:
    """Return the running services: NVIDIA's driver for vGPUs brings one that stays (cgroups(7): cgroup.procs)."""
    served = [g for g in state.machine.gpus.values() if g.nvml and g.types and state.driver(g.own) == "nvidia"]
    return {"nvidia-vgpu-mgr.service": fixed({"cgroup.procs": text("1207")})} if served else {}


def vfio_name(state: State, function: SimFunction) -> str | None:
    """Return the function's VFIO device (vfio12) while a VFIO driver provides one."""
    gpu = state.machine.gpus[function.gpu]
    provided = state.driver(function) == "vfio-pci" or vendor.is_carrier(state, gpu, function)
    return f"vfio{function.serial}" if provided and state.machine.iommu else None


def nvidia_node(state: State, gpu: SimGpu) -> str:
    """Return the name in /dev of a GPU that NVIDIA's driver has."""
    return f"nvidia{list(state.machine.gpus).index(gpu.address)}"


def _present(state: State) -> list[SimFunction]:
    return [f for f in state.machine.functions.values() if state.exists(f.address)]


# ------------------------------------------------------------------------- /sys


def _buses(state: State) -> Mapping[str, Node]:
    made: dict[str, Node] = {
        "pci": fixed(
            {
                "devices": Dir(
                    lambda: {f.address: Link(f.path) for f in _present(state) if f.kind != "parent"},
                    partial(_pci_device, state),
                ),
                "drivers": Dir(partial(binding.drivers, state)),
                "drivers_probe": binding.probe_node(state),
            }
        )
    }
    if _has_mdev(state):
        made["mdev"] = fixed(
            {
                "devices": Dir(lambda: {m.uuid: Link(mdev.path_of(state, m)) for m in state.mdevs.values()}),
                "drivers": fixed({"nvidia-vgpu-vfio": fixed({})}),
            }
        )
    return made


def _has_mdev(state: State) -> bool:
    return any(gpu.backend.startswith("mdev") for gpu in state.machine.gpus.values())


def _classes(state: State) -> Mapping[str, Node]:
    made: dict[str, Node] = {
        "iommu": fixed({"dmar0": fixed({})} if state.machine.iommu else {}),
    }
    if _has_mdev(state):
        made["mdev_bus"] = Dir(
            lambda: {
                f.address: Link(f.path) for f in _present(state) if mdev.is_parent(state, state.machine.gpus[f.gpu], f)
            }
        )
    return made


def _devices(state: State) -> Mapping[str, Node]:
    """Return /sys/devices: each function below its port, and parents without PCI below `virtual`."""
    return {
        top: fixed({name: _slot(state, f"/sys/devices/{top}/{name}") for name in slots})
        for top, slots in state.machine.slots.items()
    }


def _slot(state: State, path: str) -> Dir:
    """Return a port with the functions behind it, or a lone function."""
    top, name = path.removeprefix("/sys/devices/").split("/")
    members = state.machine.slots[top][name]
    own: Mapping[str, SimFunction] = {f.path: f for f in members}

    def make() -> Mapping[str, Node]:
        made: dict[str, Node] = {
            posixpath.basename(f.path): Dir(partial(_function, state, f))
            for f in members
            if f.path != path and state.exists(f.address)
        }
        if path in own:
            made.update(_function(state, own[path]))
        return made

    def pick(name: str) -> Node | None:
        function = own.get(f"{path}/{name}")
        if function is not None:
            return Dir(partial(_function, state, function)) if state.exists(function.address) else None
        return _function(state, own[path]).get(name) if path in own else None

    return Dir(make, pick)


def _pci_device(state: State, address: str) -> Node | None:
    function = state.machine.functions.get(address)
    if function is None or function.kind == "parent" or not state.exists(address):
        return None
    return Link(function.path)


def _function(state: State, function: SimFunction) -> Mapping[str, Node]:
    gpu = state.machine.gpus[function.gpu]
    made: dict[str, Node] = {}
    if function.kind == "parent":
        made["subsystem"] = Link("/sys/class/mdev_bus")
    else:
        made.update(_pci_files(gpu, function))
        made.update(binding.nodes(state, function))
        made.update(sriov.nodes(state, gpu, function))
        made.update(_driver_files(state, gpu, function))
    if function.group is not None:
        made["iommu_group"] = Link(f"/sys/kernel/iommu_groups/{function.group}")
    if mdev.is_parent(state, gpu, function):
        made.update(mdev.parent_nodes(state, gpu, function))
    if vendor.is_carrier(state, gpu, function):
        made.update(vendor.nodes(state, gpu, function))
    name = vfio_name(state, function)
    if name is not None and state.machine.kernel >= VFIO_DEV_SINCE:
        made["vfio-dev"] = fixed({name: fixed({})})
    return made


def _pci_files(gpu: SimGpu, function: SimFunction) -> dict[str, Node]:
    made: dict[str, Node] = {
        "vendor": text(function.vendor),
        "device": text(function.device),
        "class": text(function.device_class),
        "revision": text("0xa1"),
        "subsystem_vendor": text(function.vendor),
        "subsystem_device": text("0x0000"),
        "numa_node": text(gpu.numa_node),
        "enable": text(1),
        "resource": File(show=partial(_resource, function, gpu.bar_mib)),
        "subsystem": Link("/sys/bus/pci"),
    }
    if function.device_class.startswith("0x0300"):
        made["boot_vga"] = text(1 if gpu.console and function.kind == "pf" else 0)
    return made


def _resource(function: SimFunction, bar_mib: int) -> str:
    """Return start, end and flags of 6 BARs, the ROM and 6 VF BARs: one of 16 MiB, and a GPU's large one."""

    def bar(start: int, size: int) -> str:
        return f"0x{start:016x} 0x{start + size - 1:016x} 0x{0x14220C:016x}"

    none = f"0x{0:016x} 0x{0:016x} 0x{0:016x}"
    small = bar((0x38 << 40) + (function.serial << 24), 1 << 24)
    large = bar((0x40 << 40) + (function.serial << 40), bar_mib << 20) if bar_mib and function.kind == "pf" else none
    return "\n".join([small, none, large, *[none] * 10, ""])


def _driver_files(state: State, gpu: SimGpu, function: SimFunction) -> dict[str, Node]:
    """Return files that a bound driver adds, traps included."""
    driver = state.driver(function)
    made: dict[str, Node] = {}
    if function.kind != "pf" or driver is None:
        return made
    if gpu.console and driver == function.driver:
        number = list(state.machine.gpus).index(gpu.address)
        made["drm"] = fixed({f"card{number}": fixed({}), f"renderD{128 + number}": fixed({})})
    if driver == "gim":
        made["reset_gpu"] = File(show=_reset)
    return made


def _reset() -> str:
    raise AssertionError("reading reset_gpu resets the card under its VMs: a PF's files are never read by glob")


def _groups(state: State) -> Mapping[str, Node]:
    members: dict[int, dict[str, Node]] = {}
    for function in _present(state):
        if function.group is not None:
            members.setdefault(function.group, {})[function.address] = Link(function.path)
    for device in state.mdevs.values():
        members.setdefault(device.group, {})[device.uuid] = Link(mdev.path_of(state, device))
    return {
        str(group): fixed({"devices": fixed(devices), "type": text("DMA-FQ")}) for group, devices in members.items()
    }


def _modules(state: State) -> Mapping[str, Node]:
    names = {state.driver(f) for f in _present(state) if f.device_class != PORT_CLASS} - {None}
    made: dict[str, Node] = {str(name).replace("-", "_"): fixed({}) for name in names}
    made.update({"vfio": fixed({}), "vfio_pci": fixed({}), "kvm": fixed({})})
    if "nvidia" in names:
        made["nvidia"] = fixed({"version": text(state.machine.scenario["nvidia"]["driver"])})
    return made


# ---------------------------------------------------------------- /proc and /dev


def _proc(state: State) -> Mapping[str, Node]:
    scenario = state.machine.scenario
    made: dict[str, Node] = {
        "cmdline": text("BOOT_IMAGE=/vmlinuz ro" + (" intel_iommu=on iommu=pt" if scenario["iommu"] else "")),
        "sys": fixed({"kernel": fixed({"osrelease": text(scenario["kernel"])})}),
        "meminfo": text(
            f"MemTotal: {MEMORY_KIB:>14} kB\nMemFree: {MEMORY_KIB:>15} kB\nMemAvailable: {MEMORY_KIB:>10} kB"
        ),
        "driver": fixed({}),
    }
    bound = [gpu for gpu in state.machine.gpus.values() if gpu.nvml and state.driver(gpu.own) == "nvidia"]
    if any(gpu.nvml for gpu in state.machine.gpus.values()):
        version = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {scenario['nvidia']['driver']}"
        nodes: dict[str, Node] = {"version": text(version), "params": File(show=partial(scheduler.params, state))}
        gpus = {gpu.address: fixed({"information": _information(state, gpu)}) for gpu in bound}
        made["driver"] = fixed({"nvidia": fixed({**nodes, "gpus": fixed(gpus)})})
    return made


def _information(state: State, gpu: SimGpu) -> File:
    minor = nvidia_node(state, gpu).removeprefix("nvidia")
    return text(f"Model: \t\t {gpu.model}\nBus Type: \t PCIe\nBus Location: \t {gpu.address}\nDevice Minor: \t {minor}")


def _dev(state: State) -> Mapping[str, Node]:
    groups: dict[str, Node] = {"vfio": File()}
    devices: dict[str, Node] = {}
    for function in _present(state):
        name = vfio_name(state, function)
        if name is not None:
            groups[str(function.group)] = File()
            if state.machine.kernel >= VFIO_DEV_SINCE:
                devices[name] = File()
    groups.update({str(device.group): File() for device in state.mdevs.values()})
    groups["devices"] = fixed(devices)
    made: dict[str, Node] = {"vfio": fixed(groups)}
    if state.machine.scenario["libvirt"]["kvm"]:
        made["kvm"] = File()
    for gpu in state.machine.gpus.values():
        if gpu.nvml and state.driver(gpu.own) == "nvidia":
            made["nvidiactl"] = made[nvidia_node(state, gpu)] = File()
    return made
