"""Network cards, network-config, huge pages, pinned CPUs and a vGPU's display, on a real libvirt, QEMU and kernel.

The vGPU is the kernel's sample mdpy, whose mdevs have a framebuffer that QEMU can show.
"""

from __future__ import annotations

import json

import pytest

from tests.lab.console import guest_devices
from tests.lab.machine import Lab
from tests.lab.vgpuctl_in import call, leftovers, must, use_defaults

PAGES = 100
FREE = "cat /sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"
PREPARE = f"""set -e
modprobe mdpy
ip link add br0 type bridge vlan_filtering 1
ip link set br0 up
echo {PAGES} > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
"""
CONFIG = "version: 2\nethernets: {lan: {match: {name: 'e*'}, addresses: [192.0.2.10/24]}}\n"
MAC = "52:54:00:00:00:30"
SPEC = {
    "name": "vm-1",
    "profile": "mdpy-vga",
    "networks": ["default", {"bridge": "br0", "vlan": 30, "mac": MAC}],
    "network_config": "/root/network-config",
    "hugepages": "2MiB",
    "cpu_pin": "auto",
    "display": True,
}


@pytest.mark.deadline(900)
def test_a_vm_with_two_cards_huge_pages_pinned_cpus_and_a_display(lab: Lab) -> None:
    use_defaults(lab)
    lab.run(PREPARE)
    lab.run("cat > /root/network-config", stdin=CONFIG)
    before = leftovers(lab)
    assert int(lab.run(FREE).stdout) == PAGES
    lab.run("cat > /root/spec.yaml", stdin=json.dumps(SPEC))
    must(lab, "ensure-vm", "-f", "/root/spec.yaml", "--state", "started")
    made = must(lab, "show-vm", "vm-1")
    first, second = made["networks"]
    assert (first["network"], first["model"]) == ("default", "virtio")
    assert (second["bridge"], second["vlan"], second["mac"]) == ("br0", 30, MAC)
    assert (made["hugepages"], made["pinned_cpus"], made["memory_nodes"], made["display"]) == ("2MiB", "0", "0", True)
    assert int(lab.run(FREE).stdout) == PAGES - 96
    (tap,) = lab.run("ls /sys/class/net/br0/brif").stdout.split()
    tags = json.loads(lab.run(f"bridge -j vlan show dev {tap}").stdout)[0]["vlans"]
    assert [tag["vlan"] for tag in tags if "PVID" in tag.get("flags", [])] == [30]
    live = lab.run("virsh dumpxml vm-1").stdout
    assert "display='on' ramfb='on'" in live
    assert "<model type='none'/>" in live
    assert len([words for words in guest_devices(lab, "vm-1") if "1af4:1041" in words or "1af4:1000" in words]) == 2
    (seed,) = [disk["path"] for disk in made["disks"] if disk["path"].endswith("-seed.iso")]
    assert lab.run(f"grep -ac 192.0.2.10/24 {seed}").stdout.strip() == "1"
    assert call(lab, "detach-vgpu", "vm-1")[1]["error"]["code"] == "in-use"
    assert call(lab, "ensure-vm", "-f", "/root/spec.yaml")[1]["changed"] is False
    _change_everything_back(lab)
    must(lab, "delete-vm", "vm-1")
    assert leftovers(lab) == before


def _change_everything_back(lab: Lab) -> None:
    """Change the VM while it is off; libvirt takes the definition, and the VM starts with it."""
    must(lab, "stop-vm", "vm-1", "--force")
    plain = SPEC | {"networks": [{"network": "default", "model": "e1000e"}], "display": False}
    lab.run("cat > /root/spec.yaml", stdin=json.dumps(plain | {"hugepages": "none", "cpu_pin": "none"}))
    after = must(lab, "ensure-vm", "-f", "/root/spec.yaml", "--state", "started")["after"]
    (card,) = after["networks"]
    assert (card["network"], card["model"]) == ("default", "e1000e")
    assert (after["hugepages"], after["pinned_cpus"], after["display"]) == ("none", None, False)
    assert int(lab.run(FREE).stdout) == PAGES
    assert call(lab, "ensure-vm", "-f", "/root/spec.yaml")[1]["changed"] is False
