"""set-mode on a real kernel: enables and disables an NVIDIA GPU's VFs with sriov-manage, names blocking processes."""

from __future__ import annotations

import pytest

from tests.lab.console import guest_devices
from tests.lab.machine import Lab
from tests.lab.nvidia_host import NODE, heard, nvml_opens, put_nvml, put_sriov_manage
from tests.lab.test_after_boot import INSTALLED
from tests.lab.vgpuctl_in import IGB, call, must, put_gpu, use_defaults, wait_for_restore

PLAIN = "0000:02:00.0"
VFS = 8
"""The maximum of the emulated device; its own driver uses one less."""


def vfs(lab: Lab, gpu: str = IGB) -> int:
    """Return how many VFs the GPU has in the kernel."""
    return int(lab.read(f"/sys/bus/pci/devices/{gpu}/sriov_numvfs"))


def at_boot(lab: Lab, form: str) -> None:
    """Load the driver at each boot, as its packages do; its VFs stay disabled."""
    lab.run("echo vgpulab > /etc/modules-load.d/vgpulab.conf; cat > /etc/modprobe.d/vgpulab.conf",
            stdin=f"options vgpulab pf={IGB} form={form} vfs=0\n")  # fmt: skip


@pytest.mark.deadline(900)
@pytest.mark.parametrize("form", ["vendor-vf", "mdev-vf"])
def test_vfs_are_enabled_and_disabled_and_restored_after_a_boot(lab: Lab, form: str) -> None:
    lab.run(INSTALLED)
    at_boot(lab, form)
    put_gpu(lab, form, vfs=0)
    use_defaults(lab)
    refused = must(lab, "set-mode", IGB, "vgpu", status=6)
    assert "sriov-manage is not installed" in refused["message"]
    put_sriov_manage(lab)
    must(lab, "install-host", "--restart-libvirt")
    assert must(lab, "set-mode", IGB, "vgpu")["vfs"] == {"total": VFS, "enabled": VFS, "used": 0}
    assert must(lab, "set-mode", IGB, "vgpu")["steps"] == []
    assert heard(lab) == [f"-e {IGB} ran"]
    assert "mode: vgpu" in lab.read("/etc/vgpuctl/host.yaml")
    made = must(lab, "create-vm", "vm-1", "--profile", "A100-4C", "--no-start")
    lab.reboot()
    wait_for_restore(lab)
    assert vfs(lab) == VFS
    assert [v["present"] for v in must(lab, "show-vm", "vm-1")["vgpus"]] == [True]
    must(lab, "start-vm", "vm-1")
    assert must(lab, "show-vm", "vm-1")["vgpus"][0]["carrier"] == made["vgpus"][0]["carrier"]
    for drain in ((), ("--drain",)):
        refused = must(lab, "set-mode", IGB, "passthrough", *drain, status=3)
        assert refused["facts"]["vms"] == ["vm-1"]
    assert vfs(lab) == VFS
    assert must(lab, "show-vm", "vm-1")["state"] == "running"
    must(lab, "delete-vm", "vm-1")
    must(lab, "set-mode", IGB, "unmanaged")
    assert "mode: unmanaged" in lab.read("/etc/vgpuctl/host.yaml")
    assert vfs(lab) == VFS
    assert call(lab, "create-vm", "vm-2", "--profile", "A100-4C", "--no-start")[0] != 0
    assert must(lab, "set-mode", IGB, "passthrough")["vfs"]["enabled"] == vfs(lab) == 0
    assert "mode: passthrough" in lab.read("/etc/vgpuctl/host.yaml")
    assert must(lab, "reconcile-host")["findings"] == []


@pytest.mark.deadline(600)
def test_vgpuctl_closes_the_driver_and_names_other_openers(lab: Lab) -> None:
    put_gpu(lab, "vendor-vf", vfs=0)
    use_defaults(lab)
    put_sriov_manage(lab)
    put_nvml(lab)
    before = nvml_opens(lab)
    assert must(lab, "set-mode", IGB, "vgpu")["vfs"]["enabled"] == VFS
    assert nvml_opens(lab) > before, "NVML was not asked, so this proves nothing"
    assert heard(lab) == [f"-e {IGB} ran"]
    lab.run(f"exec 9<{NODE}; sleep 600 >/dev/null 2>&1 & echo $! > /run/monitor.pid")
    refused = must(lab, "set-mode", IGB, "passthrough", status=3)
    assert "sleep 600" in refused["message"]
    # vgpuctl retries, because a monitor might close the driver in the meantime. Each try sees the same holder.
    held = [line.split()[-2:] for line in heard(lab)[2:] if not line.endswith(" ran")]
    assert held == [["sleep", "600"]] * 6
    assert (vfs(lab), "passthrough" in lab.read("/etc/vgpuctl/host.yaml")) == (VFS, False)
    lab.run("kill $(cat /run/monitor.pid)")
    assert must(lab, "set-mode", IGB, "passthrough")["vfs"]["enabled"] == vfs(lab) == 0


@pytest.mark.deadline(600)
def test_a_running_vm_blocks_its_vfs_until_drained_and_then_runs_again(lab: Lab) -> None:
    lab.run("modprobe igb")
    use_defaults(lab)
    must(lab, "set-mode", PLAIN, "sriov", "--vfs", "2")
    made = must(lab, "create-vm", "vm-1", "--mode", "sriov", "--gpu", PLAIN)
    guest_devices(lab, "vm-1")  # wait: only a booted guest reacts to the power button
    refused = must(lab, "set-mode", PLAIN, "sriov", "--vfs", "4", status=3)
    assert "vm-1" in refused["message"]
    assert vfs(lab, PLAIN) == 2
    must(lab, "set-mode", PLAIN, "sriov", "--vfs", "4", "--drain")
    now = must(lab, "show-vm", "vm-1")
    assert (vfs(lab, PLAIN), now["state"]) == (4, "running")
    assert [v["carrier"] for v in now["vgpus"]] == [v["carrier"] for v in made["vgpus"]]
    must(lab, "delete-vm", "vm-1")
