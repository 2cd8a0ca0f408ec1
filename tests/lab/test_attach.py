"""vGPUs for existing VMs, on a real libvirt and QEMU: attach and detach, also while the VM runs."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.lab.console import guest_devices
from tests.lab.machine import Lab
from tests.lab.vgpuctl_in import A100, IGB, call, leftovers, must, put_gpu, use_defaults


@pytest.mark.deadline(600)
def test_an_unmanaged_vm_gets_a_vgpu_live_and_stays_unmanaged(lab: Lab) -> None:
    put_gpu(lab, "mdev-pf")
    use_defaults(lab)
    before = leftovers(lab)
    xml = lab.run(["vgpuctl", "create-vm", "theirs", "--profile", "A100-4C", "--print-xml"]).stdout
    xml = re.sub(r"<metadata>.*?</metadata>|<hostdev.*?</hostdev>|<disk .*?</disk>", "", xml, flags=re.DOTALL)
    lab.run("cat > /root/theirs.xml", stdin=xml)
    lab.run("virsh define /root/theirs.xml && virsh start theirs", timeout=120)
    given = must(lab, "attach-vgpu", "theirs", "--profile", "A100-4C")
    (vgpu,) = given["vgpus"]
    assert vgpu["present"]
    assert vgpu["carrier"] in lab.run("virsh dumpxml theirs").stdout
    assert call(lab, "delete-vm", "theirs")[0] == 3
    lab.run("virsh destroy theirs")
    assert must(lab, "detach-vgpu", "theirs")["vgpus"] == []
    assert must(lab, "reconcile-host")["findings"] == []
    lab.run("virsh undefine theirs")
    assert leftovers(lab) == before


@pytest.mark.deadline(600)
def test_a_stopped_vm_gets_another_profile_and_a_gpu_another_number_of_vfs(lab: Lab) -> None:
    put_gpu(lab, "mdev-pf")
    use_defaults(lab)
    made = must(lab, "create-vm", "vm-1", "--profile", "A100-4C", "--no-start")
    changed = must(lab, "set-vm", "vm-1", "--profile", "A100-5C")
    assert [v["profile"] for v in changed["vgpus"]] == ["A100-5C"]
    assert changed["networks"] == must(lab, "show-vm", "vm-1")["networks"]
    assert changed["uuid"] == made["uuid"]
    must(lab, "start-vm", "vm-1")
    assert call(lab, "set-mode", IGB, "passthrough")[0] == 3
    must(lab, "cordon", IGB)
    assert call(lab, "create-vm", "vm-2", "--profile", "A100-5C", "--no-start")[0] == 4
    must(lab, "delete-vm", "vm-1")
    must(lab, "uncordon", IGB)


@pytest.mark.deadline(600)
def test_plain_vfs_are_enabled_and_disabled_and_recorded(lab: Lab) -> None:
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


@pytest.mark.deadline(600)
def test_a_running_guest_releases_a_vgpu_and_a_paused_one_does_so_after_it_resumes(lab: Lab) -> None:
    put_gpu(lab, "mdev-pf")
    use_defaults(lab)
    made = must(lab, "create-vm", "vm-1", "--profile", "A100-4C")
    assert guest_devices(lab, "vm-1").count(A100) == 1
    given = must(lab, "attach-vgpu", "vm-1", "--profile", "A100-4C")
    (new,) = {v["carrier"] for v in given["vgpus"]} - {v["carrier"] for v in made["vgpus"]}
    assert guest_devices(lab, "vm-1").count(A100) == 2
    left = must(lab, "--wait", "60", "detach-vgpu", "vm-1", "--vgpu", new)
    assert left["vgpus"] == made["vgpus"]
    assert guest_devices(lab, "vm-1").count(A100) == 1
    assert lab.run("ls /sys/bus/mdev/devices").stdout.split() == [v["carrier"] for v in made["vgpus"]]
    must(lab, "attach-vgpu", "vm-1", "--profile", "A100-4C")
    lab.run("virsh suspend vm-1")  # a paused guest does not answer
    busy = must(lab, "--wait", "5", "detach-vgpu", "vm-1", "--vgpu", extra_vgpu(lab, made), status=75)
    assert "vm-1" in busy["message"]
    assert len(must(lab, "show-vm", "vm-1")["vgpus"]) == 2
    lab.run("virsh resume vm-1")
    lab.wait_until("virsh dumpxml vm-1 | grep -c '<hostdev' | grep -qx 1", timeout=120)
    must(lab, "reconcile-host")
    assert must(lab, "show-vm", "vm-1")["vgpus"] == made["vgpus"]
    must(lab, "delete-vm", "vm-1")


def extra_vgpu(lab: Lab, made: dict[str, Any]) -> str:
    """Return the vGPU that vm-1 has in addition to its original ones."""
    now = must(lab, "show-vm", "vm-1")
    (carrier,) = {v["carrier"] for v in now["vgpus"]} - {v["carrier"] for v in made["vgpus"]}
    return str(carrier)
