"""set-scheduler on the lab's module: through both NVML API versions, after a boot, and what a modprobe.d file does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lab.console import guest_devices
from tests.lab.machine import Lab
from tests.lab.nvidia_host import OLD, put_nvml
from tests.lab.test_after_boot import INSTALLED
from tests.lab.vgpuctl_in import IGB, must, put_gpu, use_defaults, wait_for_restore

STATE = f"/proc/driver/nvidia/gpus/{IGB}/vgpulab"


def in_driver(lab: Lab) -> list[int]:
    """Return the module's scheduler state: policy, ARR mode, averaging factor, time slice in ns."""
    lines = lab.read(STATE).splitlines()
    return next([int(word) for word in line.split()[1:]] for line in lines if line.startswith("scheduler "))


def running(lab: Lab) -> tuple[Any, ...]:
    """Return the running scheduler from show-gpu: policy, time slice in microseconds, and source."""
    result = must(lab, "show-gpu", IGB)["scheduler"]["running"]
    return result["policy"], result["time_slice_us"], result["source"]


@pytest.mark.deadline(900)
def test_it_is_set_refused_while_a_vgpu_exists_drained_and_restored_after_a_boot(lab: Lab) -> None:
    lab.run(INSTALLED)
    lab.run("echo vgpulab > /etc/modules-load.d/vgpulab.conf; cat > /etc/modprobe.d/vgpulab.conf",
            stdin=f"options vgpulab pf={IGB} form=vendor-vf vfs=7\n")  # fmt: skip
    put_gpu(lab, "vendor-vf")
    put_nvml(lab)
    use_defaults(lab)
    must(lab, "install-host", "--restart-libvirt")
    assert in_driver(lab) == [1, 0, 0, 0]
    must(lab, "set-scheduler", IGB, "--policy", "equal_share")
    assert in_driver(lab) == [2, 2, 33, 1041666]
    assert running(lab) == ("equal_share", 1041.666, "NVML")
    assert must(lab, "set-scheduler", IGB, "--policy", "equal_share")["steps"] == []
    made = must(lab, "create-vm", "vm-1", "--profile", "A100-4C")
    guest_devices(lab, "vm-1")  # wait: only a booted guest reacts to the power button
    fixed = ("set-scheduler", IGB, "--policy", "fixed_share", "--time-slice", "4")
    assert must(lab, *fixed, status=3)["facts"]["vms"] == ["vm-1"]
    assert in_driver(lab) == [2, 2, 33, 1041666]
    must(lab, *fixed, "--drain")
    assert in_driver(lab) == [3, 1, 0, 4_000_000]
    now = must(lab, "show-vm", "vm-1")
    assert (now["state"], [v["carrier"] for v in now["vgpus"]]) == ("running", [v["carrier"] for v in made["vgpus"]])
    lab.reboot()
    wait_for_restore(lab)
    assert in_driver(lab) == [3, 1, 0, 4_000_000]
    assert running(lab) == ("fixed_share", 4000.0, "NVML")
    assert [v["present"] for v in must(lab, "show-vm", "vm-1")["vgpus"]] == [True]
    must(lab, "start-vm", "vm-1")
    must(lab, "stop-vm", "vm-1", "--force")  # the guest has not booted yet, so it ignores the power button
    must(lab, "delete-vm", "vm-1")
    assert must(lab, "reconcile-host")["findings"] == []


@pytest.mark.quick
@pytest.mark.deadline(600)
def test_an_old_library_sets_it_through_version_1_and_a_driver_unbind_loses_it(lab: Lab) -> None:
    build, option = OLD
    put_gpu(lab, "mdev-pf", option)
    put_nvml(lab, build)
    use_defaults(lab)
    must(lab, "set-scheduler", IGB, "--policy", "fixed_share", "--frequency", "480", "--averaging-factor", "20")
    assert in_driver(lab) == [3, 2, 20, 2083333]
    assert running(lab) == ("fixed_share", 2083.333, "NVML")
    refused = must(lab, "set-scheduler", IGB, "--policy", "fixed_share", "--time-slice", "31", status=6)
    assert "30" in refused["message"]
    lab.run(f"cd /sys/bus/pci/drivers/nvidia; echo {IGB} > unbind; echo {IGB} > bind")
    assert in_driver(lab) == [1, 0, 0, 0]


@pytest.mark.deadline(600)
def test_the_line_that_is_shown_without_nvml_takes_effect_at_the_next_driver_load(lab: Lab) -> None:
    lab.run("cat > /etc/modprobe.d/vgpulab.conf", stdin=f"options vgpulab pf={IGB} form=mdev-pf\n")
    lab.run("modprobe nvidia")
    use_defaults(lab)
    command = ("set-scheduler", IGB, "--policy", "fixed_share")
    refused = must(lab, *command, status=6)
    assert "/etc/modprobe.d/vgpuctl-nvidia.conf" in refused["hint"]
    assert in_driver(lab) == [1, 0, 0, 0]
    lab.run("cat > /etc/modprobe.d/vgpuctl-nvidia.conf", stdin=f"{refused['facts']['line']}\n")
    lab.run("rmmod vgpulab; modprobe nvidia")
    assert "RmPVMRL=0x" in lab.read("/proc/driver/nvidia/params")
    assert in_driver(lab) == [3, 2, 33, 1041666]
    assert running(lab)[::2] == ("fixed_share", "kernel log")
    assert must(lab, *command)["steps"] == []
    put_nvml(lab)
    assert running(lab) == ("fixed_share", 1041.666, "NVML")
