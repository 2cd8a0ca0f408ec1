"""vgpuctl with NVML on the lab's module: exact maxima and active vGPUs; also with an old library, or without one."""

from __future__ import annotations

import pytest

from tests.lab.console import guest_devices
from tests.lab.machine import Lab
from tests.lab.nvidia_host import OLD, drop_nvml, put_nvml
from tests.lab.vgpuctl_in import (
    A100,
    IGB,
    leftovers,
    must,
    profiles,
    put_gpu,
    put_gpu_with_16_vfs,
    use_defaults,
)

MAXIMA = {"A100-4C": 10, "A100-5C": 8, "A100-8C": 5, "A100-10C": 4, "A100-20C": 2, "A100-40C": 1}
REFUSED = "no room for GRID A100-4C"
"""The module's log message when it refuses a write. vgpuctl skips the write if NVML's maxima leave no room."""
ACTIVE = """
import pynvml as nvml
nvml.nvmlInit()
gpu = nvml.nvmlDeviceGetHandleByPciBusId("00000000:01:00.0")
for vgpu in nvml.nvmlDeviceGetActiveVgpus(gpu):
    vm, kind = nvml.nvmlVgpuInstanceGetVmID(vgpu)  # pynvml leaves this one text as bytes
    print(nvml.nvmlVgpuInstanceGetType(vgpu), vm.decode(), kind, nvml.nvmlVgpuInstanceGetUUID(vgpu))
print(nvml.nvmlDeviceGetCreatableVgpus(gpu), nvml.nvmlDeviceGetMemoryInfo(gpu).used >> 20)
nvml.nvmlShutdown()
"""


def active(lab: Lab) -> list[list[str]]:
    """Return NVML's active vGPUs: type, VM, kind of VM ID, UUID; then the creatable types and the used MiB."""
    lines = lab.run("PYTHONPATH=/opt/vgpuctl/lib python3 -", stdin=ACTIVE).stdout.splitlines()
    return [line.split() for line in lines]


def maxima(lab: Lab) -> dict[str, int | None]:
    """Return the maximum number per GPU of each time-sliced profile, as list-profiles reports it."""
    known = profiles(lab)
    return {name: known[name]["max_per_gpu"] for name in MAXIMA}


def refused_writes(lab: Lab) -> int:
    """Return how often the module refused a write because nothing more fits."""
    return lab.run("dmesg").stdout.count(REFUSED)


@pytest.mark.quick
@pytest.mark.deadline(600)
def test_the_eleventh_is_refused_before_any_write_with_the_library_and_by_the_driver_without_it(lab: Lab) -> None:
    gpu = put_gpu_with_16_vfs(lab, "vendor-vf")
    put_nvml(lab)
    use_defaults(lab)
    assert maxima(lab) == MAXIMA
    before = leftovers(lab)
    made = must(lab, "create-vm", "vm-1", "--profile", "A100-4C", "--no-start")
    carrier = made["vgpus"][0]["carrier"]
    lab.run(f"""for vf in /sys/bus/pci/devices/{gpu}/virtfn?; do
        grep -qx 0 $vf/nvidia/current_vgpu_type && echo 468 > $vf/nvidia/current_vgpu_type; done; true""")
    assert profiles(lab)["A100-4C"]["free"] == 0
    assert must(lab, "show-gpu", gpu)["vfs"]["used"] == 10
    refused = must(lab, "create-vm", "vm-2", "--profile", "A100-4C", "--no-start", status=4)
    assert refused["code"] == "no-capacity"
    assert refused_writes(lab) == 0
    drop_nvml(lab)
    refused = must(lab, "create-vm", "vm-2", "--profile", "A100-4C", "--no-start", status=4)
    assert refused["code"] == "no-capacity"
    must(lab, "delete-vm", "vm-1")
    lab.run(f"""for vf in /sys/bus/pci/devices/{gpu}/virtfn?; do
        grep -qx 0 $vf/nvidia/current_vgpu_type || echo 0 > $vf/nvidia/current_vgpu_type; done""")
    assert set(maxima(lab).values()) == {None}
    assert (leftovers(lab), carrier in lab.run("ls /run/vgpuctl/claims").stdout) == (before, False)


@pytest.mark.deadline(600)
@pytest.mark.parametrize("form", ["mdev-pf", "vendor-vf"])
def test_nvml_names_the_vm_that_has_a_vgpu(lab: Lab, form: str) -> None:
    put_gpu(lab, form)
    put_nvml(lab)
    use_defaults(lab)
    made = must(lab, "create-vm", "vm-1", "--profile", "A100-4C")
    assert A100 in guest_devices(lab, "vm-1")
    *vgpus, capacity = active(lab)
    assert [(kind, vm) for kind, vm, _, _ in vgpus] == [("468", made["uuid"])]
    assert capacity == ["[468]", "4096"]
    if form == "mdev-pf":
        assert vgpus[0][3] == made["vgpus"][0]["carrier"]
    must(lab, "stop-vm", "vm-1")
    assert active(lab) == [["[468]", "4096"]]
    must(lab, "delete-vm", "vm-1")
    assert active(lab)[0][-1] == "0"


@pytest.mark.deadline(600)
def test_a_library_of_another_version_is_too_old_and_an_old_one_of_the_same_is_not(lab: Lab) -> None:
    build, option = OLD
    put_gpu(lab, "vendor-vf")
    put_nvml(lab, build)
    assert set(maxima(lab).values()) == {None}
    lab.run("rmmod vgpulab")
    put_gpu(lab, "vendor-vf", option)
    assert maxima(lab) == MAXIMA
    lab.run("rmmod vgpulab")
    put_gpu(lab, "mdev-vf", option)
    assert maxima(lab) == MAXIMA
    assert must(lab, "show-gpu", IGB)["model"] == "NVIDIA A100-PCIE-40GB"
