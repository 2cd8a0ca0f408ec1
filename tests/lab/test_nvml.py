"""vgpuctl with NVIDIA's library on the lab's module: exact maxima, active vGPUs; and without it, or with an old one."""

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
"""What the module logs when it refuses a write; nobody writes where the numbers already say that nothing fits."""
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
    """What NVML says of the vGPUs that VMs have: type, VM, kind of its id, uuid; last what fits and what is taken."""
    lines = lab.run("PYTHONPATH=/opt/vgpuctl/lib python3 -", stdin=ACTIVE).stdout.splitlines()
    return [line.split() for line in lines]


def maxima(lab: Lab) -> dict[str, int | None]:
    """The most of each time-sliced profile on a GPU, as list-profiles has it."""
    known = profiles(lab)
    return {name: known[name]["max_per_gpu"] for name in MAXIMA}


def refused_writes(lab: Lab) -> int:
    """How often a write was refused for want of room."""
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
    *vgpus, rest = active(lab)
    assert [(kind, vm) for kind, vm, _, _ in vgpus] == [("468", made["uuid"])]
    assert rest == ["[468]", "4096"]
    if form == "mdev-pf":
        assert vgpus[0][3] == made["vgpus"][0]["carrier"]
    must(lab, "stop-vm", "vm-1")
    assert active(lab) == [["[468]", "4096"]]
    must(lab, "delete-vm", "vm-1")
    assert active(lab)[0][-1] == "0"


@pytest.mark.quick
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
