"""A host with all of NVIDIA's that MIG and mixed sizes need, and what its driver says of them."""

from __future__ import annotations

from tests.lab.machine import Lab
from tests.lab.nvidia_host import put_nvidia_smi, put_nvml, put_sriov_manage
from tests.lab.test_after_boot import INSTALLED
from tests.lab.vgpuctl_in import IGB, must, put_gpu, use_defaults

STATE = f"/proc/driver/nvidia/gpus/{IGB}/vgpulab"


def partitioned_host(lab: Lab, form: str, *options: str) -> None:
    """An A100 whose driver, with more `options` of the module, comes at each boot with its VFs and MIG off."""
    lab.run(INSTALLED)
    lab.run("echo vgpulab > /etc/modules-load.d/vgpulab.conf; cat > /etc/modprobe.d/vgpulab.conf",
            stdin=f"options vgpulab pf={IGB} form={form} vfs=0 {' '.join(options)}\n")  # fmt: skip
    put_gpu(lab, form, *options, vfs=0)
    put_nvml(lab)
    put_sriov_manage(lab)
    put_nvidia_smi(lab)
    use_defaults(lab)
    must(lab, "install-host", "--restart-libvirt")


def told(lab: Lab, word: str) -> list[str]:
    """The driver's lines of a kind, without the word that they begin with."""
    return [line.removeprefix(f"{word} ") for line in lab.read(STATE).splitlines() if line.startswith(f"{word} ")]


def instances(lab: Lab) -> list[tuple[int, int]]:
    """The profile and the first memory slice of each GPU instance, in the order of the slices."""
    found = [line.split() for line in told(lab, "gi")]
    return sorted(((int(profile), int(start)) for _, profile, start in found), key=lambda one: one[1])


def vf_says(lab: Lab, carrier: str, name: str) -> int:
    """The number in a file of a vendor-specific VF."""
    return int(lab.read(f"/sys/bus/pci/devices/{carrier}/nvidia/{name}"))


def cycle_vfs(lab: Lab) -> None:
    """Turns the VFs off and on past vgpuctl, as an administrator would."""
    lab.run(f"/usr/lib/nvidia/sriov-manage -d {IGB} && /usr/lib/nvidia/sriov-manage -e {IGB}")


def wait_for_vm(lab: Lab, name: str) -> None:
    """Waits until libvirt has started a VM."""
    lab.wait_until(f"virsh domstate {name} | grep -qx running", timeout=120)
