# SPDX-License-Identifier: Apache-2.0
"""create-vm's options for network cards, huge pages, CPUs and the display, from the command line to show-vm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.unit.cli.conftest import Ran

Run = Callable[..., Ran]
IMAGE = "/srv/images/ubuntu-24.04.qcow2"
HOST = "l40s-x4"


def test_a_vm_has_what_was_asked_for(sim: Run) -> None:
    line = "create-vm cad-1 --profile L40S-8Q --display --network default --network bridge=br0,vlan=30"
    assert sim(f"{line} --cpu-pin 0-3 --hugepages 2MiB", HOST).status == 0
    data = sim("show-vm cad-1 --json", HOST).document["data"]
    assert [(n["network"], n["bridge"], n["vlan"]) for n in data["networks"]] == [
        ("default", None, None),
        (None, "br0", 30),
    ]
    assert (data["display"], data["hugepages"], data["pinned_cpus"]) == (True, "2MiB", "0-3")
    page = sim("show-vm cad-1", HOST).out
    assert "0-3" in page
    assert "the first vGPU's screen is in the console" in page


def test_a_network_configuration_is_on_the_seed(sim: Run, tmp_path: Path) -> None:
    config = tmp_path / "network-config"
    config.write_text("version: 2\nethernets:\n  enp1s0:\n    addresses: [192.0.2.7/24]\n")
    ran = sim(f"create-vm ci-1 --profile L40S-8Q --image {IMAGE} --network-config {config} --dry-run", HOST)
    assert (ran.status, "create cloud-init seed /var/lib/libvirt/images/ci-1" in ran.out) == (0, True)
    assert str(config) in ran.out
    config.write_text("ethernets: {}\n")
    ran = sim(f"create-vm ci-1 --profile L40S-8Q --image {IMAGE} --network-config {config}", HOST)
    assert (ran.status, str(config) in ran.err) == (2, True)


def test_several_vms_reboot_wait_and_get_larger_disks_in_one_command(sim: Run) -> None:
    assert sim(f"create-vm 'vdi-{{:03}}' --count 3 --profile A100-4C --image {IMAGE} --label team=cad").status == 0
    ran = sim("reboot-vm 'vdi-{001..003}' --force")
    assert (ran.status, ran.out.splitlines()[-1]) == (0, "3 rebooted")
    assert sim("wait 'vdi-*' --for running").status == 0
    ran = sim("resize-disk --label team=cad 40GiB --json")
    assert ran.document["data"]["tally"] == {"changed": 3, "unchanged": 0, "failed": 0}
    assert sim("resize-disk 'vdi-*' 40GiB").out.splitlines()[-1] == "3 already as large"
    ran = sim("wait vdi-001 vdi-009 --for running")
    assert (ran.status, "vdi-009" in ran.err) == (2, True)
