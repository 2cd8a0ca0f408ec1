# SPDX-License-Identifier: Apache-2.0
"""The simulated host's bridges, CPUs and huge pages, and what a domain's start takes of them."""

from __future__ import annotations

import pytest

from tests.unit.sim.hosts import MakeHost, domain_xml, libvirt_refused
from vgpuctl.sim.host import SimHost

SCENARIO = """libvirt: {{version: "{}", qemu: "10.0.2"}}
bridges: [{{name: br0, vlan_filtering: true}}, {{name: ovs0, linux: false}}]
cpus: 8
hugepages: [{{node: 0, size: 2MiB, count: 600}}, {{node: 1, size: 2MiB, count: 600}}]
gpus: [{{model: T4, numa_node: 1}}]
"""
PAGES = "<memoryBacking><hugepages><page size='2' unit='MiB'/></hugepages></memoryBacking>"
NODE_1 = "<numatune><memory mode='strict' nodeset='1'/></numatune>"
NODES = "/sys/devices/system/node"


def host_with(make: MakeHost, version: str = "11.3.0", name: str = "sim") -> SimHost:
    return make(SCENARIO.format(version), name)


def free(host: SimHost) -> list[int]:
    paths = (f"{NODES}/node{n}/hugepages/hugepages-2048kB/free_hugepages" for n in (0, 1))
    return [int(host.sysfs.read(path)) for path in paths]


def define(host: SimHost, number: int, *devices: str, extra: str = "") -> str:
    return host.hypervisor.define(domain_xml(f"vm-{number}", number, *devices, extra=extra)).uuid


def test_sysfs_shows_the_cpus_of_each_node_and_the_bridges(make: MakeHost) -> None:
    host = host_with(make)
    assert host.sysfs.read("/sys/devices/system/cpu/online") == "0-7\n"
    assert [host.sysfs.read(f"{NODES}/node{n}/cpulist") for n in (0, 1)] == ["0-3\n", "4-7\n"]
    assert host.sysfs.listdir("/sys/class/net") == ("br0", "lo", "ovs0")
    assert host.sysfs.read("/sys/class/net/br0/bridge/vlan_filtering") == "1\n"
    assert host.sysfs.listdir("/sys/class/net/ovs0") == ()


def test_running_vms_take_huge_pages_and_give_them_back(make: MakeHost) -> None:
    host = host_with(make)
    anywhere, bound, third = (define(host, n, extra=PAGES + NODE_1 * (n == 2)) for n in (1, 2, 3))
    assert free(host) == [600, 600]
    host.hypervisor.start(bound)
    assert free(host) == [600, 88]
    host.hypervisor.start(anywhere)
    assert free(host) == [88, 88]
    assert "Cannot allocate memory" in libvirt_refused(1, lambda: host.hypervisor.start(third))
    host.hypervisor.destroy(bound)
    host.hypervisor.start(third)
    host.hypervisor.destroy(anywhere)
    assert sum(free(host)) == 1200 - 512


def test_a_bridge_or_a_cpu_that_is_missing_fails_the_start(make: MakeHost) -> None:
    host = host_with(make)
    card = "<interface type='bridge'><source bridge='{}'/></interface>"
    host.hypervisor.start(define(host, 1, card.format("br0")))
    missing = define(host, 2, card.format("br1"))
    libvirt_refused(38, lambda: host.hypervisor.start(missing))
    pinned = define(host, 3, extra="<cputune><vcpupin vcpu='0' cpuset='8-9'/></cputune>")
    libvirt_refused(38, lambda: host.hypervisor.start(pinned))


@pytest.mark.parametrize(("version", "starts"), [("10.10.0", False), ("11.0.0", True)])
def test_a_vlan_on_a_linux_bridge_needs_libvirt_11(make: MakeHost, version: str, starts: bool) -> None:
    host = host_with(make, version)
    card = "<interface type='bridge'><source bridge='br0'/><vlan><tag id='30'/></vlan></interface>"
    uuid = define(host, 1, card)
    if starts:
        host.hypervisor.start(uuid)
    else:
        libvirt_refused(67, lambda: host.hypervisor.start(uuid))
