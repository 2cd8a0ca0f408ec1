"""Mixed-size vGPUs on one GPU through vgpuctl, on the lab's module: their placements, also after a boot."""

from __future__ import annotations

import pytest

from tests.lab.console import guest_devices
from tests.lab.machine import Lab
from tests.lab.partitioned import cycle_vfs, driver_lines, partitioned_host, vf_says, wait_for_vm
from tests.lab.vgpuctl_in import A100, IGB, leftovers, must, wait_for_restore


@pytest.mark.deadline(900)
def test_mixed_size_vms_leave_room_for_larger_ones_also_after_a_boot(lab: Lab) -> None:
    partitioned_host(lab, "vendor-vf")
    must(lab, "set-mode", IGB, "vgpu")
    before = leftovers(lab)
    must(lab, "create-vm", "vm-0", "--profile", "A100-20C", "--no-start")
    must(lab, "set-mixed-size", IGB, "on", status=3)
    must(lab, "delete-vm", "vm-0")
    must(lab, "set-mixed-size", IGB, "on")
    assert driver_lines(lab, "mixed") == ["1 1"]
    must(lab, "set-scheduler", IGB, "--policy", "fixed_share", status=6)
    must(lab, "set-scheduler", IGB, "--policy", "equal_share")
    must(lab, "create-vm", "vm-0", "--profile", "A100-20C", "--no-start")
    made = {"vm-1": must(lab, "create-vm", "vm-1", "--profile", "A100-4C")}
    assert A100 in guest_devices(lab, "vm-1")
    must(lab, "delete-vm", "vm-0")
    # The driver itself would choose placement 0 for vm-2; then no 20 GiB vGPU would fit any more.
    made["vm-2"] = must(lab, "create-vm", "vm-2", "--profile", "A100-8C", "--no-start")
    made["vm-3"] = must(lab, "create-vm", "vm-3", "--profile", "A100-20C", "--no-start")
    carriers = {name: vm["vgpus"][0]["carrier"] for name, vm in made.items()}
    wanted = {"vm-1": 20, "vm-2": 32, "vm-3": 0}
    assert {name: vf_says(lab, carrier, "placement_id") for name, carrier in carriers.items()} == wanted
    assert {name: must(lab, "show-vm", name)["vgpus"][0]["placement_id"] for name in carriers} == wanted
    must(lab, "set-mixed-size", IGB, "off", status=3)
    lab.run("virsh autostart vm-1")
    lab.reboot()
    wait_for_restore(lab)
    wait_for_vm(lab, "vm-1")
    assert (driver_lines(lab, "mixed"), driver_lines(lab, "scheduler")) == (["1 1"], ["2 2 33 1041666"])
    assert {name: vf_says(lab, carrier, "placement_id") for name, carrier in carriers.items()} == wanted
    assert must(lab, "reconcile-host")["findings"] == []
    must(lab, "stop-vm", "vm-1", "--force")  # the guest has not booted yet, so it ignores the power button
    for name in carriers:
        must(lab, "delete-vm", name)
    assert leftovers(lab) == before
    cycle_vfs(lab)
    assert driver_lines(lab, "mixed") == ["1 0"]
    must(lab, "diff", "--quiet", status=7)
    must(lab, "apply")
    assert driver_lines(lab, "mixed") == ["1 1"]
    must(lab, "set-mixed-size", IGB, "off")
    assert driver_lines(lab, "mixed") == ["1 0"]
