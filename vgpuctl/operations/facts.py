# SPDX-License-Identifier: Apache-2.0
"""Gather the facts of the host that a VM depends on; `plans.facts` and `plans.guest_devices` check them."""

from __future__ import annotations

import errno
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from vgpuctl.config.arguments import NONE, RENDERING_MODE
from vgpuctl.config.vm_request import VmRequest
from vgpuctl.errors import FileFailed, NotFound
from vgpuctl.model.numbers import parse_integer, parse_meminfo_mib, parse_ranges
from vgpuctl.model.port_values import PoolInfo
from vgpuctl.model.request import ExistingDisk
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu
from vgpuctl.observe.guest_drivers import read_guest_driver
from vgpuctl.operations.images import find_backing_chains, image_hints
from vgpuctl.operations.plans.chains import NO_BACKING_CHAINS
from vgpuctl.operations.plans.facts import DEFAULT_POOL_PATH, GpuHolders, HostFacts, is_logical
from vgpuctl.operations.plans.guest_devices import BridgeInfo, GuestHost, HostTopology, HugepagePool
from vgpuctl.operations.plans.pci_window import bars_mib
from vgpuctl.operations.render_node import read_render_links

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

TEMPLATE_DIRECTORY = "/etc/vgpuctl/templates"


def gather_host_facts(host: Host, snapshot: Snapshot, request: VmRequest, vgpus: tuple[AssignedVgpu, ...]) -> HostFacts:
    """Query libvirt, storage and files once each for what the request names."""
    from vgpuctl.domain import render

    paths = [p for p in (request.image, request.cdrom) if p is not None]
    paths += [d.path for d in request.disks if isinstance(d, ExistingDisk)]
    pool = host.storage.pool(request.storage_pool)
    files = {p: host.storage.image(p) for p in paths}
    return HostFacts(
        capabilities=host.hypervisor.capabilities(),
        pool=pool,
        template=render.compile_once(read_template(host, request.template), f"{request.template}.xml.j2", host.scratch),
        files=files,
        image_hints=image_hints(host, files),
        holders=find_gpu_holders(host, vgpus) if request.mode == "passthrough" else {},
        bars_mib=read_bars_mib(host, vgpus) if request.mode == "passthrough" else {},
        chains=find_backing_chains(host, snapshot, *paths) if paths else NO_BACKING_CHAINS,
        host_memory_mib=host_memory_mib(host),
        file_system_bytes=_file_system_bytes(host, pool),
        guest=read_guest_host(host, request),
        driver=None if request.guest_driver is None else read_guest_driver(host, request.guest_driver),
        render_links=read_render_links(host) if request.mode == RENDERING_MODE else frozenset(),
    )


def _file_system_bytes(host: Host, pool: PoolInfo | None) -> int | None:
    """Return the size of a pool's file system, also of a pool yet to be created; None if it is not mounted."""
    if pool is None:
        return host.storage.file_system_bytes(DEFAULT_POOL_PATH)
    if is_logical(pool):
        return None  # no file system: its free space is checked
    if pool.capacity_bytes is None and pool.kind == "dir" and pool.path is not None:
        return host.storage.file_system_bytes(pool.path)
    return pool.capacity_bytes


def host_memory_mib(host: Host) -> int | None:
    """Return how much memory the host has; None if that is unknown."""
    try:
        return parse_meminfo_mib(host.sysfs.read("/proc/meminfo"), "MemTotal")
    except OSError:
        return None


def read_template(host: Host, name: str) -> str:
    """Return a domain template: the admin's of that name, else the built-in one.

    Raises:
        NotFound: there is neither.
    """
    from vgpuctl.domain import render

    path = f"{TEMPLATE_DIRECTORY}/{name}.xml.j2"
    try:
        return host.sysfs.read(path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise FileFailed(
                f"the domain template {path} cannot be read: {error.strerror or error}",
                hint=f"ls -l {path}",
                errno=error.errno,
                path=path,
            ) from error
    text = render.read_builtin_template(name)
    if text is None:
        raise NotFound(
            f"unknown domain template '{name}'",
            hint=f"create {path}, or use a built-in template: {', '.join(render.list_builtin_templates())}",
            template=name,
        )
    return text


def _display_nodes(host: Host, function: str) -> list[str]:
    try:
        names = host.sysfs.listdir(f"/sys/bus/pci/devices/{function}/drm")
    except OSError:
        return []
    return [f"/dev/dri/{n}" for n in names if n.startswith(("card", "render"))]


def _nvidia_nodes(host: Host, function: str) -> list[str]:
    """Return /dev/nvidiaN; the driver reports N as "Device Minor"."""
    try:
        text = host.sysfs.read(f"/proc/driver/nvidia/gpus/{function}/information")
    except OSError:
        return []
    match = re.search(r"^Device Minor:\s*(\d+)", text, re.MULTILINE)
    return [f"/dev/nvidia{match.group(1)}"] if match else []


def find_gpu_holders(host: Host, vgpus: tuple[AssignedVgpu, ...]) -> dict[str, GpuHolders]:
    """Return who has a display or compute node of these functions open, by GPU; usually nobody has one."""
    display: dict[str, list[str]] = {}
    compute: dict[str, list[str]] = {}
    for vgpu in vgpus:
        display.setdefault(vgpu.gpu, []).extend(_display_nodes(host, vgpu.function))
        compute.setdefault(vgpu.gpu, []).extend(_nvidia_nodes(host, vgpu.function))
    if not _name_holders(host, [n for nodes in (*display.values(), *compute.values()) for n in nodes]):
        return {}
    return {gpu: GpuHolders(_name_holders(host, display[gpu]), _name_holders(host, compute[gpu])) for gpu in display}


def read_bars_mib(host: Host, vgpus: tuple[AssignedVgpu, ...]) -> dict[str, int]:
    """Return the total size of the BARs of each function; one that cannot be read is left out."""
    sizes: dict[str, int] = {}
    for vgpu in vgpus:
        with suppress(OSError):
            sizes[vgpu.function] = bars_mib(host.sysfs.read(f"/sys/bus/pci/devices/{vgpu.function}/resource"))
    return sizes


def _name_holders(host: Host, nodes: list[str]) -> tuple[str, ...]:
    if not nodes:
        return ()
    try:
        return tuple(f"{h.command} (pid {h.pid})" for h in host.processes.find_holders(tuple(nodes)))
    except PermissionError:
        return ("an unknown process without root",)


NODES = "/sys/devices/system/node"
ONLINE_CPUS = "/sys/devices/system/cpu/online"
INTERFACES = "/sys/class/net"
_CPU_LIMIT = 8192
_NODE = re.compile(r"node([0-9]{1,4})", re.ASCII)
_PAGES = re.compile(r"hugepages-([0-9]{1,9})kB", re.ASCII)


def read_guest_host(host: Host, request: VmRequest) -> GuestHost:
    """Ask libvirt and the kernel for what a request names; nothing for what it does not name."""
    networks = {nic.network for nic in request.nics if nic.network is not None}
    bridges = {nic.bridge for nic in request.nics if nic.bridge is not None}
    needs_topology = request.cpu_pin != NONE or request.hugepages != NONE
    return GuestHost(
        networks={name: host.hypervisor.network(name) for name in sorted(networks)},
        bridges={name: _read_bridge(host, name) for name in sorted(bridges)},
        topology=read_topology(host) if needs_topology else HostTopology(),
    )


def _read_bridge(host: Host, name: str) -> BridgeInfo | None:
    """Return a network interface as a bridge; None when there is no interface of this name."""
    if name not in _list(host, INTERFACES):
        return None
    filtering = _text(host, f"{INTERFACES}/{name}/bridge/vlan_filtering")
    is_bridge = "bridge" in _list(host, f"{INTERFACES}/{name}")
    return BridgeInfo(name, is_bridge, filters_vlans=filtering == "1")


def read_topology(host: Host) -> HostTopology:
    """Return the CPUs, NUMA nodes and huge pages of the host; what cannot be read is left out."""
    node_cpus: dict[int, frozenset[int]] = {}
    pools: list[HugepagePool] = []
    for name in _list(host, NODES):
        match = _NODE.fullmatch(name)
        if match is not None:
            node = int(match[1])
            node_cpus[node] = parse_ranges(_text(host, f"{NODES}/{name}/cpulist"), _CPU_LIMIT)
            pools += _read_pools(host, node)
    return HostTopology(parse_ranges(_text(host, ONLINE_CPUS), _CPU_LIMIT), node_cpus, tuple(pools))


def _read_pools(host: Host, node: int) -> list[HugepagePool]:
    directory = f"{NODES}/node{node}/hugepages"
    pools = []
    for name in _list(host, directory):
        match = _PAGES.fullmatch(name)
        free = parse_integer(_text(host, f"{directory}/{name}/free_hugepages"))
        total = parse_integer(_text(host, f"{directory}/{name}/nr_hugepages"))
        if match is not None and free is not None and total is not None:
            pools.append(HugepagePool(node, int(match[1]), free, total))
    return pools


def _list(host: Host, directory: str) -> tuple[str, ...]:
    try:
        return host.sysfs.listdir(directory)
    except OSError:
        return ()


def _text(host: Host, path: str) -> str:
    try:
        return host.sysfs.read(path).strip()
    except OSError:
        return ""
