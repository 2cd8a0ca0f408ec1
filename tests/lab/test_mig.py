"""MIG through vgpuctl on the lab's module: VMs in GPU instances, and instances that get lost and restored."""

from __future__ import annotations

import pytest

from tests.lab.console import guest_devices
from tests.lab.machine import Lab
from tests.lab.nvidia_host import NODE
from tests.lab.partitioned import cycle_vfs, driver_lines, instances, partitioned_host, vf_says, wait_for_vm
from tests.lab.vgpuctl_in import A100, IGB, leftovers, must, wait_for_restore

ONE, THREE = 19, 9
"""The profile IDs of 1g.5gb and 3g.20gb."""
OFF, ON = ["1 0 0"], ["1 1 1"]


@pytest.mark.deadline(900)
@pytest.mark.parametrize("form", [pytest.param("vendor-vf", marks=pytest.mark.quick), "mdev-vf"])
def test_a_vm_runs_in_an_instance_and_apply_restores_a_vf_cycle(lab: Lab, form: str) -> None:
    partitioned_host(lab, form)
    must(lab, "set-mode", IGB, "vgpu")
    before = leftovers(lab)
    must(lab, "set-mig", IGB, "1g.5gb:2", "3g.20gb")
    assert driver_lines(lab, "mig") == ON
    wanted = instances(lab)
    assert sorted(profile for profile, _ in wanted) == [THREE, ONE, ONE]
    assert must(lab, "show-gpu", IGB)["mode"] == "mig-vgpu"
    made = must(lab, "create-vm", "vm-1", "--profile", "A100-3-20C")
    assert A100 in guest_devices(lab, "vm-1")
    (gi,) = [line.split()[0] for line in driver_lines(lab, "gi") if line.split()[1] == str(THREE)]
    assert [line.split()[5] for line in driver_lines(lab, "vgpu")] == [gi]
    if form == "vendor-vf":
        assert vf_says(lab, made["vgpus"][0]["carrier"], "gpu_instance_id") == int(gi)
    must(lab, "create-vm", "vm-2", "--profile", "A100-3-20C", "--no-start", status=4)
    refused = must(lab, "set-mig", IGB, "--off", status=3)
    assert "vm-1" in refused["message"]
    must(lab, "set-scheduler", IGB, "--policy", "equal_share", status=6)
    must(lab, "delete-vm", "vm-1")
    cycle_vfs(lab)
    assert (driver_lines(lab, "mig"), instances(lab)) == (ON, [])
    must(lab, "diff", "--quiet", status=7)
    must(lab, "apply")
    assert instances(lab) == wanted
    assert must(lab, "apply")["steps"] == []
    must(lab, "set-mig", IGB, "--off")
    assert driver_lines(lab, "mig") == OFF
    must(lab, "create-vm", "vm-3", "--profile", "A100-4C", "--no-start")
    must(lab, "delete-vm", "vm-3")
    assert leftovers(lab) == before


@pytest.mark.deadline(600)
def test_a_pending_mig_mode_gets_its_gpu_reset_once_no_process_has_the_driver_open(lab: Lab) -> None:
    partitioned_host(lab, "vendor-vf", "mig_at_reset=Y")
    lab.run(f"exec 9<{NODE}; sleep 600 >/dev/null 2>&1 & echo $! > /run/monitor.pid")
    refused = must(lab, "set-mig", IGB, "7g.40gb", status=75)
    assert "sleep 600" in refused["message"]
    assert refused["left"] == []
    assert driver_lines(lab, "mig") == OFF
    lab.run("kill $(cat /run/monitor.pid)")
    must(lab, "set-mig", IGB, "7g.40gb")
    assert (driver_lines(lab, "mig"), instances(lab)) == (ON, [(0, 0)])
    must(lab, "set-mig", IGB, "--off")
    assert (driver_lines(lab, "mig"), instances(lab)) == (OFF, [])


@pytest.mark.deadline(900)
def test_a_boot_that_loses_mig_mode_restores_all_and_passthrough_disables_it_until_vgpu_mode(
    lab: Lab,
) -> None:
    partitioned_host(lab, "vendor-vf")
    must(lab, "set-mig", IGB, "--for", "A100-3-20C:1", "--for", "A100-1-5C:2")
    wanted = instances(lab)
    carriers = [
        must(lab, "create-vm", name, "--profile", profile, "--no-start")["vgpus"][0]["carrier"]
        for name, profile in (("vm-1", "A100-1-5C"), ("vm-2", "A100-3-20C"))
    ]
    lab.run("virsh autostart vm-1")
    lab.reboot()
    wait_for_restore(lab)
    assert (driver_lines(lab, "mig"), instances(lab)) == (ON, wanted)
    wait_for_vm(lab, "vm-1")
    assert sorted(line.split()[1] for line in driver_lines(lab, "vgpu")) == ["474", "476"]
    vgpus = [must(lab, "show-vm", name)["vgpus"][0] for name in ("vm-1", "vm-2")]
    assert [(v["carrier"], v["present"]) for v in vgpus] == [(carrier, True) for carrier in carriers]
    assert must(lab, "reconcile-host")["findings"] == []
    must(lab, "stop-vm", "vm-1", "--force")
    for name in ("vm-1", "vm-2"):
        must(lab, "delete-vm", name)
    assert must(lab, "set-mode", IGB, "passthrough")["vfs"]["enabled"] == 0
    assert driver_lines(lab, "mig") == OFF
    must(lab, "set-mode", IGB, "vgpu")  # host.yaml still has the MIG layout, so vgpu mode restores it
    assert (driver_lines(lab, "mig"), instances(lab)) == (ON, wanted)
