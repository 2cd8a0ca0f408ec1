# SPDX-License-Identifier: Apache-2.0
"""Read what the host offers for a VM's network cards, CPUs and huge pages; `plans.guest_devices` checks it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from vgpuctl.config.arguments import NONE
from vgpuctl.config.vm_request import VmRequest
from vgpuctl.model.numbers import parse_integer
from vgpuctl.model.ranges import parse_ranges
from vgpuctl.operations.plans.guest_devices import BridgeInfo, GuestHost, HostTopology, HugepagePool

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

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
        bridges={name: read_bridge(host, name) for name in sorted(bridges)},
        topology=read_topology(host) if needs_topology else HostTopology(),
    )


def read_bridge(host: Host, name: str) -> BridgeInfo | None:
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
