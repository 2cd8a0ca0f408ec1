"""vGPUs for VMs that are there already, on a real libvirt and QEMU: plugged in while they run, taken away again."""

from __future__ import annotations

import re

import pytest

from tests.lab.machine import Lab
from tests.lab.vgpuctl_in import IGB, call, leftovers, must, put_gpu, use_defaults


@pytest.mark.quick
@pytest.mark.deadline(600)
def test_a_vm_of_somebody_else_gets_a_vgpu_while_it_runs_and_stays_its_owners(lab: Lab) -> None:
    put_gpu(lab, "mdev-pf")
    use_defaults(lab)
    before = leftovers(lab)
    xml = lab.run(["vgpuctl", "create-vm", "theirs", "--profile", "A100-4C", "--print-xml"]).stdout
    xml = re.sub(r"<metadata>.*?</metadata>|<hostdev.*?</hostdev>|<disk .*?</disk>", "", xml, flags=re.DOTALL)
    lab.run("cat > /root/theirs.xml", stdin=xml)
    lab.run("virsh define /root/theirs.xml && virsh start theirs", timeout=120)
    given = must(lab, "attach", "theirs", "--profile", "A100-4C")
    (vgpu,) = given["vgpus"]
    assert vgpu["present"]
    assert vgpu["carrier"] in lab.run("virsh dumpxml theirs").stdout
    assert call(lab, "delete-vm", "theirs")[0] == 3
    lab.run("virsh destroy theirs")
    assert must(lab, "detach", "theirs")["vgpus"] == []
    assert must(lab, "reconcile")["findings"] == []
    lab.run("virsh undefine theirs")
    assert leftovers(lab) == before


@pytest.mark.quick
@pytest.mark.deadline(600)
def test_a_stopped_vm_gets_another_profile_and_a_gpu_another_number_of_vfs(lab: Lab) -> None:
    put_gpu(lab, "mdev-pf")
    use_defaults(lab)
    made = must(lab, "create-vm", "vm-1", "--profile", "A100-4C", "--no-start")
    changed = must(lab, "set-profile", "vm-1", "--profile", "A100-5C")
    assert [v["profile"] for v in changed["vgpus"]] == ["A100-5C"]
    assert changed["mac_addresses"] == must(lab, "show-vm", "vm-1")["mac_addresses"]
    assert changed["uuid"] == made["uuid"]
    must(lab, "start-vm", "vm-1")
    assert call(lab, "set-mode", IGB, "passthrough")[0] == 3
    must(lab, "cordon", IGB)
    assert call(lab, "create-vm", "vm-2", "--profile", "A100-5C", "--no-start")[0] == 4
    must(lab, "delete-vm", "vm-1")
    must(lab, "uncordon", IGB)


@pytest.mark.quick
@pytest.mark.deadline(600)
def test_plain_vfs_are_turned_on_and_off_and_written_down(lab: Lab) -> None:
    lab.run("modprobe igb")
    use_defaults(lab)
    must(lab, "set-mode", IGB, "sriov", "--vfs", "3")
    assert lab.run(f"cat /sys/bus/pci/devices/{IGB}/sriov_numvfs").stdout.strip() == "3"
    assert f'"{IGB}"' in lab.run("cat /etc/vgpuctl/host.yaml").stdout
    assert must(lab, "set-mode", IGB, "sriov", "--vfs", "3")["steps"] == []
    made = must(lab, "create-vm", "vm-1", "--mode", "sriov", "--gpu", IGB)
    refused = must(lab, "set-mode", IGB, "sriov", "--vfs", "5", status=3)
    assert "vm-1" in refused["message"]
    assert made["state"] == "running"
    must(lab, "delete-vm", "vm-1")
    must(lab, "set-mode", IGB, "passthrough")
    assert lab.run(f"cat /sys/bus/pci/devices/{IGB}/sriov_numvfs").stdout.strip() == "0"
