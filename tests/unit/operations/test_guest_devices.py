# SPDX-License-Identifier: Apache-2.0
"""Network cards, huge pages, pinned CPUs and the display: created, shown, changed while off, refused with reasons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.hosts import SimulatedHost, context, create, open_sim_host, request, stop
from tests.meanwhile import unchanged
from tests.unit.operations.test_change import ensure
from vgpuctl.config.vm_request import VmRequest
from vgpuctl.errors import HostCannot, InUse, InvalidInput, SpecDiffers, VgpuctlError
from vgpuctl.model.vm import Nic
from vgpuctl.operations.attach import detach
from vgpuctl.operations.ensure_vms import ensure_vms
from vgpuctl.value import replace

HOST = """version: 1
libvirt: {version: "11.3.0", qemu: "10.0.2"}
networks: [{name: default}, {name: lab}, {name: down, active: false}]
bridges: [{name: br0, vlan_filtering: true}, {name: br1}, {name: ovs0, linux: false}]
cpus: 32
hugepages: [{node: 0, size: 2MiB, count: 1024}, {node: 1, size: 2MiB, count: 512}]
gpus:
  - {model: L40S, address: "0000:3b:00.0", numa_node: 0, vfs: {total: 4, enabled: 4}}
  - {model: L40S, address: "0000:af:00.0", numa_node: 1, vfs: {total: 4, enabled: 4}}
  - {model: A100, address: "0000:5e:00.0", numa_node: 0}
  - {model: RTX 4090, address: "0000:d8:00.0"}
"""
TYPED = dict.fromkeys(("networks", "hugepages", "cpu_pin", "display", "profile", "vcpus", "memory"), "given")
CARD = Nic(bridge="br0", vlan=30, model="e1000e", mac="52:54:00:00:00:77")


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return open_sim_host(tmp_path, text=HOST)


def wanted(profile: str = "L40S-8Q", **changes: Any) -> VmRequest:
    return request(profile, **{"name": "vm", "sources": TYPED, **changes})


def test_a_vm_gets_what_it_was_asked_for_and_does_not_differ_afterwards(host: SimulatedHost) -> None:
    asked = wanted(nics=(Nic(network="lab"), CARD), hugepages="2MiB", cpu_pin="auto", display=True)
    made = create(host.ports, asked).data
    first, second = made.networks
    assert (first.network, first.model) == ("lab", "virtio")
    assert (second.bridge, second.vlan, second.model, second.mac) == ("br0", 30, "e1000e", CARD.mac)
    node = made.memory_nodes
    assert (made.hugepages, made.pinned_cpus, made.display) == ("2MiB", {"0": "0-15", "1": "16-31"}[node], True)
    assert not ensure(host, asked).changed
    assert create(host.ports, wanted(name="bare", nics=())).data.networks == ()


def test_a_vm_that_is_off_is_changed_and_the_second_time_nothing(host: SimulatedHost) -> None:
    create(host.ports, wanted())
    other = wanted(nics=(CARD,), hugepages="2MiB", cpu_pin="4-7", display=True, vcpus=3)
    with pytest.raises(SpecDiffers, match="cpu_pin: none -> 4-7"):
        ensure(host, other)
    stop(host.ports, "vm")
    after = ensure(host, other).data.after
    assert [(n.bridge, n.mac) for n in after.networks] == [("br0", CARD.mac)]
    assert (after.hugepages, after.pinned_cpus, after.memory_nodes, after.display) == ("2MiB", "4-7", "0", True)
    assert not ensure(host, other).changed
    assert ensure(host, replace(other, cpu_pin="auto"), "started").changed
    stop(host.ports, "vm")
    assert not ensure(host, replace(other, cpu_pin="auto")).changed
    two = ensure(host, wanted(nics=(Nic(network="lab"), Nic(network="default")), vcpus=3)).data.after.networks
    assert [(n.network, n.model) for n in two] == [("lab", "e1000e"), ("default", "virtio")]
    assert all(n.mac for n in two)
    plain = wanted(nics=(), hugepages="none", cpu_pin="none", vcpus=3)
    back = ensure(host, plain).data.after
    assert (back.networks, back.hugepages, back.pinned_cpus, back.memory_nodes, back.display) == (
        (), "none", None, None, False,
    )  # fmt: skip
    assert not ensure(host, plain).changed


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"nics": (Nic(network="nothing"),)}, HostCannot, "no network 'nothing'"),
        ({"nics": (Nic(network="down"),)}, HostCannot, "not active"),
        ({"nics": (Nic(bridge="br9"),)}, HostCannot, "no bridge 'br9'"),
        ({"nics": (Nic(bridge="ovs0"),)}, HostCannot, "not a Linux bridge"),
        ({"nics": (Nic(bridge="br1", vlan=3),)}, HostCannot, "the bridge does not filter VLANs"),
        ({"nics": (Nic(network="lab", mac="52:54:00:00:00:77"),)}, InUse, "network card of VM other"),
        ({"cpu_pin": "30-40"}, InvalidInput, "CPU 32-40"),
        ({"hugepages": "2MiB", "memory_mib": 4096}, HostCannot, "2048 huge pages of 2MiB, and 1536 are free"),
        ({"hugepages": "2MiB", "memory_mib": 2048, "cpu_pin": "16"}, HostCannot, "(node 1: 512 of 512 free)"),
        ({"hugepages": "1GiB", "memory_mib": 1500}, InvalidInput, "not a multiple"),
        ({"hugepages": "1GiB", "memory_mib": 1024}, HostCannot, "0 are free"),
        ({"display": True, "profiles": (("A100-4C", 1),)}, InvalidInput, "A100-4C has no display"),
        ({"display": True, "mode": "passthrough", "profiles": ()}, InvalidInput, "whose screen only its own outputs"),
    ],
)
def test_what_the_host_cannot_give_is_refused_and_nothing_is_written(
    host: SimulatedHost, changes: dict[str, Any], error: type[VgpuctlError], words: str
) -> None:
    create(host.ports, wanted(name="other", nics=(CARD,)))
    if changes.get("mode") == "passthrough":
        changes = {**changes, "gpu": ("0000:d8:00.0",)}
    with unchanged(host), pytest.raises(error) as caught:
        create(host.ports, wanted(**changes))
    assert words in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("version", "changes", "message", "hint"),
    [
        ("10.0.0", {"display": True}, "needs libvirt 10.2", ""),
        (
            "10.2.0",
            {"nics": (CARD,)},
            r"VLAN 30 does not work on the Linux bridge 'br0' here: libvirt is 10\.2\.0 \(11\.0 is needed\)",
            "br0.30",
        ),
        (
            "10.2.0",
            {"nics": (Nic(bridge="br1", vlan=3),)},
            r"^VLAN 3 does not work on the Linux bridge 'br1' here: libvirt is 10\.2\.0 \(11\.0 is needed\), and the"
            r" bridge does not filter VLANs$",
            "br1.3",
        ),
    ],
)
def test_what_an_older_libvirt_lacks_is_one_error_with_what_the_bridge_lacks(
    tmp_path: Path, version: str, changes: dict[str, Any], message: str, hint: str
) -> None:
    ports = open_sim_host(tmp_path, text=HOST.replace("11.3.0", version)).ports
    with pytest.raises(HostCannot, match=message) as caught:
        create(ports, wanted(**changes))
    assert hint in str(caught.value.hint)


def test_the_command_that_reserves_huge_pages_names_the_node_and_the_number(host: SimulatedHost) -> None:
    with pytest.raises(HostCannot) as caught:
        create(host.ports, wanted(hugepages="2MiB", memory_mib=2048, cpu_pin="16-20"))
    path = "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages"
    assert caught.value.hint == f"echo 1024 | sudo tee {path}"


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"hugepages": "2MiB", "memory_mib": 1024}, HostCannot, "4 VMs need 2048 huge pages"),
        ({"nics": (CARD,)}, InvalidInput, "MAC address of one VM only"),
    ],
)
def test_several_vms_need_pages_for_all_and_no_common_mac_address(host, changes, error, words) -> None:
    with pytest.raises(error, match=words):
        ensure_vms(host.ports, context(), wanted(name=None, **changes), ("a", "b", "c", "d"), start=True, parallel=1)


def test_the_node_of_a_gpu_that_the_kernel_does_not_know_is_asked_for(tmp_path: Path) -> None:
    text = HOST.replace(", numa_node: 0", "")
    gpu = ("0000:3b:00.0",)
    with pytest.raises(HostCannot, match="does not report the NUMA node"):
        create(open_sim_host(tmp_path / "two", text=text).ports, wanted(cpu_pin="auto", gpu=gpu))
    one = open_sim_host(tmp_path / "one", text=text.replace(", numa_node: 1", ""))
    assert create(one.ports, wanted(cpu_pin="auto", gpu=gpu)).data.pinned_cpus == "0-31"


def test_a_running_vms_display_cannot_be_unplugged(host: SimulatedHost) -> None:
    create(host.ports, wanted(display=True))
    with pytest.raises(InUse, match="QEMU cannot unplug"):
        detach(host.ports, context(), "vm")
    stop(host.ports, "vm")
    assert detach(host.ports, context(), "vm").changed


def test_another_profile_keeps_the_display_unless_it_has_none(host: SimulatedHost) -> None:
    create(host.ports, wanted(display=True))
    stop(host.ports, "vm")
    assert ensure(host, wanted("L40S-4Q", display=True)).data.after.display
    with pytest.raises(InvalidInput, match="A100-4C has no display"):
        ensure(host, wanted("A100-4C", display=True))
