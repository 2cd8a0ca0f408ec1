# SPDX-License-Identifier: Apache-2.0
"""The simulated host's /sys, /proc and /dev as one virtual tree, built from the state."""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

from vgpuctl.sim import binding, drm, gim, guest_host, mdev, mtgpu, sriov, vendor_vf, vgpu_scheduler, xe_sriov
from vgpuctl.sim.host_key import KEY_PATH, host_key_text
from vgpuctl.sim.machine import PORT_CLASS, SimFunction, SimGpu
from vgpuctl.sim.state import State
from vgpuctl.sim.tree import DirectoryNode, FileNode, LinkNode, Node, fixed_directory, text_file

VFIO_DEV_SINCE = (6, 1)
MEMORY_KIB = 512 << 20
"""The host's memory. VMs take nothing from it here."""


def build_root(state: State, machine_id: str) -> DirectoryNode:
    """Return the root directory of a host in this state."""
    return fixed_directory(
        {
            "sys": fixed_directory(
                {
                    "bus": DirectoryNode(partial(_bus_nodes, state)),
                    "class": DirectoryNode(partial(_class_nodes, state)),
                    "devices": DirectoryNode(partial(_device_nodes, state)),
                    "fs": fixed_directory(
                        {
                            "cgroup": fixed_directory(
                                {"system.slice": DirectoryNode(partial(_service_directories, state))}
                            )
                        }
                    ),
                    "kernel": fixed_directory({"iommu_groups": DirectoryNode(partial(_iommu_group_nodes, state))}),
                    "module": DirectoryNode(partial(_module_nodes, state)),
                }
            ),
            "proc": DirectoryNode(partial(_proc_nodes, state)),
            "dev": DirectoryNode(partial(_dev_nodes, state)),
            "usr": fixed_directory(
                {
                    "share": fixed_directory(
                        {"misc": fixed_directory({"pci.ids": FileNode(show=partial(_pci_ids_text, state))})}
                    )
                }
            ),
            "etc": fixed_directory(
                {
                    "machine-id": text_file(machine_id),
                    **({"gim_config": FileNode(show=lambda: state.gim_config)} if state.gim_config else {}),
                    "libvirt": fixed_directory({"qemu": DirectoryNode(partial(_domain_files, state))}),
                    "ssh": fixed_directory(
                        {posixpath.basename(KEY_PATH): FileNode(show=partial(host_key_text, machine_id))}
                    ),
                }
            ),
        }
    )


def _iommu_words(scenario: Mapping[str, Any]) -> str:
    """Return what the kernel's command line says of the IOMMU: Arm's SMMU is on by default."""
    return " intel_iommu=on iommu=pt" if scenario["iommu"] and scenario.get("arch") != "aarch64" else ""


def _pci_ids_text(state: State) -> str:
    """Return the part of the PCI database (pci.ids) for this host: NVIDIA's devices whose names are known here."""
    raws = (raw for raw in state.machine.scenario["gpus"] if raw.get("pci_name"))
    names = sorted({(raw["device"].removeprefix("0x"), raw["pci_name"]) for raw in raws})
    return "".join(["10de  NVIDIA Corporation\n", *(f"\t{device}  {name}\n" for device, name in names)])


def _domain_files(state: State) -> Mapping[str, Node]:
    """Return libvirt's own files of the defined domains (drvqemu: /etc/libvirt/qemu/NAME.xml)."""
    return {f"{domain.name}.xml": text_file(domain.xml) for domain in state.domains.values()}


def _service_directories(state: State) -> Mapping[str, Node]:
    """Return the running services: NVIDIA's vGPU driver has one that keeps running (cgroups(7): cgroup.procs)."""
    gpus = [g for g in state.machine.gpus.values() if g.nvml and g.types and state.driver(g.own_function) == "nvidia"]
    return {"nvidia-vgpu-mgr.service": fixed_directory({"cgroup.procs": text_file("1207")})} if gpus else {}


def vfio_device_name(state: State, function: SimFunction) -> str | None:
    """Return the name of the function's VFIO device (vfio12) while a VFIO driver provides one."""
    gpu = state.machine.gpus[function.gpu]
    has_vfio_driver = state.driver(function) == "vfio-pci" or vendor_vf.is_carrier(state, gpu, function)
    return f"vfio{function.serial}" if has_vfio_driver and state.machine.has_iommu else None


def nvidia_node_name(state: State, gpu: SimGpu) -> str:
    """Return the name in /dev of a GPU that is bound to NVIDIA's driver."""
    return f"nvidia{list(state.machine.gpus).index(gpu.address)}"


def _present_functions(state: State) -> list[SimFunction]:
    return [f for f in state.machine.functions.values() if state.exists(f.address)]


# ------------------------------------------------------------------------- /sys


def _bus_nodes(state: State) -> Mapping[str, Node]:
    children: dict[str, Node] = {
        "pci": fixed_directory(
            {
                "devices": DirectoryNode(
                    lambda: {f.address: LinkNode(f.path) for f in _present_functions(state) if f.kind != "parent"},
                    partial(_pci_device_link, state),
                ),
                "drivers": DirectoryNode(partial(binding.driver_directories, state)),
                "drivers_probe": binding.probe_node(state),
            }
        )
    }
    if _has_mdev(state):
        children["mdev"] = fixed_directory(
            {
                "devices": DirectoryNode(
                    lambda: {m.uuid: LinkNode(mdev.device_path(state, m)) for m in state.mdevs.values()}
                ),
                "drivers": fixed_directory({"nvidia-vgpu-vfio": fixed_directory({})}),
            }
        )
    return children


def _has_mdev(state: State) -> bool:
    return any(gpu.backend.startswith("mdev") for gpu in state.machine.gpus.values())


def _class_nodes(state: State) -> Mapping[str, Node]:
    children: dict[str, Node] = {
        "net": DirectoryNode(partial(guest_host.interface_nodes, state)),
        "iommu": fixed_directory({"dmar0": fixed_directory({})} if state.machine.has_iommu else {}),
    }
    if _has_mdev(state):
        children["mdev_bus"] = DirectoryNode(
            lambda: {
                f.address: LinkNode(f.path)
                for f in _present_functions(state)
                if mdev.is_parent(state, state.machine.gpus[f.gpu], f)
            }
        )
    return children


def _device_nodes(state: State) -> Mapping[str, Node]:
    """Return /sys/devices: functions below their bridges, mdev parents without PCI below `virtual`, and `system`."""
    return {
        **{
            top: fixed_directory(
                {name: _slot_directory(state, f"/sys/devices/{top}/{name}", tuple(slots[name])) for name in slots}
            )
            for top, slots in state.machine.slots.items()
        },
        "system": DirectoryNode(partial(guest_host.system_nodes, state)),
    }


def _slot_directory(state: State, path: str, members: Sequence[SimFunction]) -> DirectoryNode:
    """Return a function with those behind it. `members`: all of them, whose paths begin with `path`."""

    @cache
    def members_by_name() -> Mapping[str, tuple[SimFunction, ...]]:
        names: dict[str, list[SimFunction]] = {}
        for function in members:
            if function.path != path:
                names.setdefault(function.path[len(path) + 1 :].partition("/")[0], []).append(function)
        return {name: tuple(behind) for name, behind in names.items()}

    own = next((f for f in members if f.path == path), None)

    def behind(name: str) -> Node | None:
        below = members_by_name().get(name, ())
        is_hidden = len(below) == 1 and not state.exists(below[0].address)
        return _slot_directory(state, f"{path}/{name}", below) if below and not is_hidden else None

    def build() -> Mapping[str, Node]:
        children = {name: node for name in members_by_name() if (node := behind(name)) is not None}
        return children if own is None else {**children, **_function_nodes(state, own)}

    def find_child(name: str) -> Node | None:
        return behind(name) or (None if own is None else _function_nodes(state, own).get(name))

    return DirectoryNode(build, find_child)


def _pci_device_link(state: State, address: str) -> Node | None:
    function = state.machine.functions.get(address)
    if function is None or function.kind == "parent" or not state.exists(address):
        return None
    return LinkNode(function.path)


def _function_nodes(state: State, function: SimFunction) -> Mapping[str, Node]:
    gpu = state.machine.gpus[function.gpu]
    children: dict[str, Node] = {}
    if function.kind == "parent":
        children["subsystem"] = LinkNode("/sys/class/mdev_bus")
    else:
        children.update(_pci_files(gpu, function))
        children.update(binding.nodes(state, function))
        children.update(sriov.nodes(state, gpu, function))
        children.update(xe_sriov.nodes(state, gpu, function))
        children.update(_driver_files(state, gpu, function))
    if function.group is not None:
        children["iommu_group"] = LinkNode(f"/sys/kernel/iommu_groups/{function.group}")
    if mdev.is_parent(state, gpu, function):
        children.update(mdev.parent_nodes(state, gpu, function))
    if vendor_vf.is_carrier(state, gpu, function):
        children.update(vendor_vf.nodes(state, gpu, function))
    name = vfio_device_name(state, function)
    if name is not None and state.machine.kernel >= VFIO_DEV_SINCE:
        children["vfio-dev"] = fixed_directory({name: fixed_directory({})})
    return children


def _pci_files(gpu: SimGpu, function: SimFunction) -> dict[str, Node]:
    files: dict[str, Node] = {
        "vendor": text_file(function.vendor),
        "device": text_file(function.device),
        "class": text_file(function.device_class),
        "revision": text_file("0xa1"),
        "subsystem_vendor": text_file(function.vendor),
        "subsystem_device": text_file("0x0000"),
        "numa_node": text_file(gpu.numa_node),
        "enable": text_file(1),
        "resource": FileNode(show=partial(_resource_text, function, gpu.bar_mib)),
        "subsystem": LinkNode("/sys/bus/pci"),
    }
    if function.device_class.startswith("0x0300"):
        files["boot_vga"] = text_file(1 if gpu.console and function.kind == "pf" else 0)
    return files


def _resource_text(function: SimFunction, bar_mib: int) -> str:
    """Return start, end and flags of 6 BARs, the ROM and 6 VF BARs: one BAR of 16 MiB, and a GPU's large one."""

    def bar(start: int, size: int) -> str:
        return f"0x{start:016x} 0x{start + size - 1:016x} 0x{0x14220C:016x}"

    none = f"0x{0:016x} 0x{0:016x} 0x{0:016x}"
    small = bar((0x38 << 40) + (function.serial << 24), 1 << 24)
    large = bar((0x40 << 40) + (function.serial << 40), bar_mib << 20) if bar_mib and function.kind == "pf" else none
    return "\n".join([small, none, large, *[none] * 10, ""])


def _driver_files(state: State, gpu: SimGpu, function: SimFunction) -> dict[str, Node]:
    """Return the files that a bound driver adds. Some are traps for code that must not read them."""
    driver = state.driver(function)
    files: dict[str, Node] = {}
    if function.kind != "pf" or driver is None:
        return files
    if drm.has_nodes(state, gpu):
        files["drm"] = fixed_directory({name: fixed_directory({}) for name in drm.names(state, gpu)})
    if driver == "gim":
        files.update(gim.nodes(state, gpu))
    return files


def _iommu_group_nodes(state: State) -> Mapping[str, Node]:
    members: dict[int, dict[str, Node]] = {}
    for function in _present_functions(state):
        if function.group is not None:
            members.setdefault(function.group, {})[function.address] = LinkNode(function.path)
    for device in state.mdevs.values():
        members.setdefault(device.group, {})[device.uuid] = LinkNode(mdev.device_path(state, device))
    return {
        str(group): fixed_directory({"devices": fixed_directory(devices), "type": text_file("DMA-FQ")})
        for group, devices in members.items()
    }


def _module_nodes(state: State) -> Mapping[str, Node]:
    names = {state.driver(f) for f in _present_functions(state) if f.device_class != PORT_CLASS} - {None}
    children: dict[str, Node] = {str(name).replace("-", "_"): fixed_directory({}) for name in names}
    if mtgpu.MODULE in names:
        children[mtgpu.MODULE] = fixed_directory(mtgpu.nodes(state))
    children.update({"vfio": fixed_directory({}), "vfio_pci": fixed_directory({}), "kvm": fixed_directory({})})
    if "gim" in names:
        children["gim"] = fixed_directory({"parameters": fixed_directory({"enabled_devices": text_file("(null)")})})
    if "nvidia" in names:
        children["nvidia"] = fixed_directory({"version": text_file(state.machine.scenario["nvidia"]["driver"])})
    return children


# ---------------------------------------------------------------- /proc and /dev


def _proc_nodes(state: State) -> Mapping[str, Node]:
    scenario = state.machine.scenario
    children: dict[str, Node] = {
        "cmdline": text_file("BOOT_IMAGE=/vmlinuz ro" + _iommu_words(scenario)),
        "sys": fixed_directory({"kernel": fixed_directory(_kernel_nodes(state))}),
        "uptime": text_file("60.00 60.00"),
        "meminfo": text_file(
            f"MemTotal: {MEMORY_KIB:>14} kB\nMemFree: {MEMORY_KIB:>15} kB\nMemAvailable: {MEMORY_KIB:>10} kB"
        ),
        "driver": fixed_directory({}),
        "net": fixed_directory(guest_host.network_tables(state)),
    }
    bound_gpus = [gpu for gpu in state.machine.gpus.values() if gpu.nvml and state.driver(gpu.own_function) == "nvidia"]
    if any(gpu.nvml for gpu in state.machine.gpus.values()):
        version = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {scenario['nvidia']['driver']}"
        nodes: dict[str, Node] = {
            "version": text_file(version),
            "params": FileNode(show=partial(vgpu_scheduler.module_params_text, state)),
        }
        gpus = {gpu.address: fixed_directory({"information": _gpu_information(state, gpu)}) for gpu in bound_gpus}
        children["driver"] = fixed_directory({"nvidia": fixed_directory({**nodes, "gpus": fixed_directory(gpus)})})
    return children


def _kernel_nodes(state: State) -> Mapping[str, Node]:
    boot_id = uuid.uuid5(uuid.NAMESPACE_OID, f"boot {state.boots}")
    return {
        "osrelease": text_file(state.machine.scenario["kernel"]),
        "random": fixed_directory({"boot_id": text_file(boot_id)}),
    }


def _gpu_information(state: State, gpu: SimGpu) -> FileNode:
    minor = nvidia_node_name(state, gpu).removeprefix("nvidia")
    return text_file(
        f"Model: \t\t {gpu.model}\nBus Type: \t PCIe\nBus Location: \t {gpu.address}\nDevice Minor: \t {minor}"
    )


def _dev_nodes(state: State) -> Mapping[str, Node]:
    groups: dict[str, Node] = {"vfio": FileNode()}
    devices: dict[str, Node] = {}
    for function in _present_functions(state):
        name = vfio_device_name(state, function)
        if name is not None:
            groups[str(function.group)] = FileNode()
            if state.machine.kernel >= VFIO_DEV_SINCE:
                devices[name] = FileNode()
    groups.update({str(device.group): FileNode() for device in state.mdevs.values()})
    groups["devices"] = fixed_directory(devices)
    children: dict[str, Node] = {"vfio": fixed_directory(groups)}
    if drm.list_render_nodes(state):
        children["dri"] = drm.dri_directory(state)
    if state.machine.scenario["libvirt"]["kvm"]:
        children["kvm"] = FileNode()
    for gpu in state.machine.gpus.values():
        if gpu.nvml and state.driver(gpu.own_function) == "nvidia":
            children["nvidiactl"] = children[nvidia_node_name(state, gpu)] = FileNode()
    return children
