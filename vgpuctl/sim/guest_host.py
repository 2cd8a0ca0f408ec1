# SPDX-License-Identifier: Apache-2.0
"""The simulated host's CPUs, NUMA nodes, huge pages and bridges, and what a domain's start needs of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vgpuctl.sim import domain_xml
from vgpuctl.sim.refusals import VirError, VirErrorNumber
from vgpuctl.sim.tree import DirectoryNode, FileNode, Node, fixed_directory, text_file

if TYPE_CHECKING:
    from lxml.etree import _Element

    from vgpuctl.sim.state import State

DEFAULT_CPUS = 64
PAGE_SIZES_KIB = (2048, 1048576)
BRIDGE_VLAN_SINCE = 11_000_000

Pools = dict[tuple[int, int], int]
"""How many huge pages: by NUMA node and size in KiB."""


def node_cpus(scenario: Mapping[str, Any]) -> dict[int, range]:
    """Return the NUMA nodes, those of the GPUs and node 0, with an equal part of the CPUs each."""
    nodes = sorted({0, *(gpu["numa_node"] for gpu in scenario["gpus"] if gpu["numa_node"] >= 0)})
    cpus = scenario.get("cpus", DEFAULT_CPUS)
    bounds = [cpus * number // len(nodes) for number in range(len(nodes) + 1)]
    return {node: range(bounds[n], bounds[n + 1]) for n, node in enumerate(nodes)}


def all_pages(scenario: Mapping[str, Any]) -> Pools:
    """Return the reserved huge pages."""
    pools = {(node, size): 0 for node in node_cpus(scenario) for size in PAGE_SIZES_KIB}
    return pools | {(entry["node"], entry["size_kib"]): entry["count"] for entry in scenario.get("hugepages", ())}


def free_pages(state: State) -> Pools:
    """Return the huge pages that no running domain has."""
    pools = all_pages(state.machine.scenario)
    for running in state.running.values():
        if "<hugepages" in running.xml:
            _take(pools, domain_xml.parse(running.xml))
    return pools


def _take(pools: Pools, element: _Element) -> bool:
    """Take a domain's pages from the nodes that its memory is bound to, else from any; False if there are too few."""
    page = element.find("memoryBacking/hugepages/page")
    if page is None:
        return True
    size = domain_xml.size_kib(page.get("size", "0"), page.get("unit"))
    memory = element.find("memory")
    text, unit = ("0", None) if memory is None else (memory.text or "0", memory.get("unit"))
    needed = domain_xml.size_kib(text, unit) // max(size, 1)
    bound = element.find("numatune/memory[@mode='strict']")
    nodes = _ranges("" if bound is None else bound.get("nodeset", ""))
    for node, pool_size in sorted(pools):
        if pool_size == size and (not nodes or node in nodes):
            taken = min(needed, pools[node, pool_size])
            pools[node, pool_size] -= taken
            needed -= taken
    return needed == 0


def require_guest_host(state: State, element: _Element, libvirt_version: int) -> None:
    """Refuse a domain whose bridges, VLANs, CPUs or huge pages the host cannot give, as libvirt and QEMU do."""
    bridges = {bridge["name"]: bridge for bridge in state.machine.scenario.get("bridges", ())}
    for interface in element.findall("devices/interface"):
        source = interface.find("source")
        name = "" if source is None else source.get("bridge", "")
        if interface.get("type") == "bridge" and name not in bridges:
            raise VirError(VirErrorNumber.SYSTEM_ERROR, f"Cannot get interface MTU on '{name}': No such device")
        if interface.find("vlan") is not None and libvirt_version < BRIDGE_VLAN_SINCE:
            kind = interface.get("type")
            problem = f"an interface of type '{kind}' is requesting a vlan tag, but that is not supported for this type"
            raise VirError(VirErrorNumber.CONFIG_UNSUPPORTED, f"unsupported configuration: {problem} of connection")
    cpus = {cpu for members in node_cpus(state.machine.scenario).values() for cpu in members}
    for pin in element.findall("cputune/vcpupin"):
        if not _ranges(pin.get("cpuset", "")) & cpus:
            raise VirError(VirErrorNumber.SYSTEM_ERROR, "cannot set CPU affinity on process: Invalid argument")
    if not _take(free_pages(state), element):
        text = "unable to map backing store for guest RAM: Cannot allocate memory"
        raise VirError(VirErrorNumber.INTERNAL_ERROR, f"internal error: process exited while connecting: {text}")


def _ranges(text: str) -> set[int]:
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


# ------------------------------------------------------------------------------------------------------------ /sys


def system_nodes(state: State) -> Mapping[str, Node]:
    """Return /sys/devices/system: the CPUs and the NUMA nodes."""
    nodes = node_cpus(state.machine.scenario)
    cpus = sum(len(members) for members in nodes.values())
    return {
        "cpu": fixed_directory({"online": text_file(f"0-{cpus - 1}"), "present": text_file(f"0-{cpus - 1}")}),
        "node": fixed_directory({f"node{node}": _node_directory(state, node, m) for node, m in nodes.items()}),
    }


def _node_directory(state: State, node: int, members: range) -> DirectoryNode:
    cpulist = f"{members.start}-{members.stop - 1}" if members else ""
    pages = {f"hugepages-{size}kB": _pool_directory(state, node, size) for size in PAGE_SIZES_KIB}
    return fixed_directory({"cpulist": text_file(cpulist), "hugepages": fixed_directory(pages)})


def _pool_directory(state: State, node: int, size: int) -> DirectoryNode:
    return fixed_directory(
        {
            "nr_hugepages": text_file(all_pages(state.machine.scenario)[node, size]),
            "free_hugepages": FileNode(show=lambda: f"{free_pages(state)[node, size]}\n"),
        }
    )


NETWORK_BRIDGE = "virbr0"
"""The bridge of each libvirt network."""


def interface_nodes(state: State) -> Mapping[str, Node]:
    """Return /sys/class/net: the loopback device, and the bridges with their settings."""
    children: dict[str, Node] = {"lo": fixed_directory({})}
    for bridge in state.machine.scenario.get("bridges", ()):
        files = {"vlan_filtering": text_file(int(bridge["vlan_filtering"]))}
        children[bridge["name"]] = fixed_directory({"bridge": fixed_directory(files)} if bridge["linux"] else {})
    return children


def network_tables(state: State) -> Mapping[str, Node]:
    """Return /proc/net: the bridge of libvirt's network with its subnet, where the host exchanged no packets so far."""
    bridge = NETWORK_BRIDGE if state.machine.scenario["networks"] else None
    route = "" if bridge is None else f"\n{bridge}\t007AA8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0"
    own = "" if bridge is None else "           |-- 192.168.122.1\n              /32 host LOCAL\n"
    return {
        "arp": text_file("IP address       HW type     Flags       HW address            Mask     Device"),
        "route": text_file(
            f"Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT{route}"
        ),
        "fib_trie": text_file(f"Main:\n           |-- 127.0.0.1\n              /32 host LOCAL\n{own}"),
        "if_inet6": text_file("00000000000000000000000000000001 01 80 10 80       lo"),
    }
