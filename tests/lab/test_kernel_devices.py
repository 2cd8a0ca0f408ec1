"""create-vm with devices of stock kernel drivers: mdev samples, a plain VF, a whole function, a shared IOMMU group."""

from __future__ import annotations

import pytest

from tests.lab.console import guest_devices
from tests.lab.machine import Lab
from tests.lab.vgpuctl_in import IGB, leftovers, must, use_defaults

EDU_ALONE = "0000:03:00.0"
EDU_PAIR = ("0000:05:01.0", "0000:05:02.0")
IGB_VF_IDS = "8086:10ca"
EDU_IDS = "1234:11e8"


@pytest.mark.parametrize(
    ("module", "profile", "ids"),
    [
        pytest.param("mtty", "mtty-2", "4348:3253", marks=pytest.mark.quick),
        ("mdpy", "mdpy-vga", "1b36:000f"),
    ],
)
def test_a_guest_sees_a_sample_mdev_and_delete_vm_removes_it(lab: Lab, module: str, profile: str, ids: str) -> None:
    lab.run(["modprobe", module])
    use_defaults(lab)
    before = leftovers(lab)
    made = must(lab, "create-vm", "vm-1", "--profile", profile)
    assert made["vgpus"][0]["gpu"] == module
    assert ids in guest_devices(lab, "vm-1")
    must(lab, "delete-vm", "vm-1")
    assert leftovers(lab) == before


def test_a_guest_sees_a_plain_vf_and_delete_vm_frees_it(lab: Lab) -> None:
    lab.run(f"modprobe igb && echo 2 > /sys/bus/pci/devices/{IGB}/sriov_numvfs")
    use_defaults(lab)
    first = must(lab, "create-vm", "vm-1", "--mode", "sriov", "--gpu", IGB)
    assert IGB_VF_IDS in guest_devices(lab, "vm-1")
    second = must(lab, "create-vm", "vm-2", "--mode", "sriov", "--gpu", IGB, "--no-start")
    assert first["vgpus"][0]["carrier"] != second["vgpus"][0]["carrier"]
    full = must(lab, "create-vm", "vm-3", "--mode", "sriov", "--gpu", IGB, status=4)
    assert "vm-1" in full["message"]
    assert "vm-2" in full["message"]
    must(lab, "delete-vm", "vm-1")
    must(lab, "create-vm", "vm-3", "--mode", "sriov", "--gpu", IGB, "--no-start")


def test_a_whole_function_is_passed_through_and_refused_to_a_second_vm(lab: Lab) -> None:
    use_defaults(lab)
    made = must(lab, "create-vm", "vm-1", "--mode", "passthrough", "--gpu", EDU_ALONE)
    assert EDU_IDS in guest_devices(lab, made["name"])
    refused = must(lab, "create-vm", "vm-2", "--mode", "passthrough", "--gpu", EDU_ALONE, status=3)
    assert "vm-1" in refused["message"]


def test_an_iommu_group_goes_to_one_vm_only(lab: Lab) -> None:
    use_defaults(lab)
    first, second = EDU_PAIR
    must(lab, "create-vm", "vm-1", "--mode", "passthrough", "--gpu", first, "--no-start")
    refused = must(lab, "create-vm", "vm-2", "--mode", "passthrough", "--gpu", second, status=3)
    assert first in refused["message"]
    assert "vm-1" in refused["message"]
    must(lab, "start-vm", "vm-1")
    assert EDU_IDS in guest_devices(lab, "vm-1")


def test_passthrough_is_refused_while_vfs_are_on(lab: Lab) -> None:
    lab.run(f"modprobe igb && echo 2 > /sys/bus/pci/devices/{IGB}/sriov_numvfs")
    use_defaults(lab)
    refused = must(lab, "create-vm", "vm-1", "--mode", "passthrough", "--gpu", IGB, status=6)
    assert "2 VFs" in refused["message"]
    assert f"vgpuctl set-mode {IGB} passthrough" in refused["hint"]
