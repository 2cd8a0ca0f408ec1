"""A host with all NVIDIA software that MIG and mixed sizes need, and readers for the driver's MIG and vGPU state."""

from __future__ import annotations

from tests.lab.machine import Lab
from tests.lab.nvidia_host import put_nvidia_smi, put_nvml, put_sriov_manage
from tests.lab.test_after_boot import INSTALLED
from tests.lab.vgpuctl_in import IGB, must, put_gpu, use_defaults

STATE = f"/proc/driver/nvidia/gpus/{IGB}/vgpulab"


def partitioned_host(lab: Lab, form: str, *options: str) -> None:
    """Set up an A100. Each boot loads its driver with the module's `options`, without VFs and with MIG disabled."""
    lab.run(INSTALLED)
    lab.run("echo vgpulab > /etc/modules-load.d/vgpulab.conf; cat > /etc/modprobe.d/vgpulab.conf",
            stdin=f"options vgpulab pf={IGB} form={form} vfs=0 {' '.join(options)}\n")  # fmt: skip
    put_gpu(lab, form, *options, vfs=0)
    put_nvml(lab)
    put_sriov_manage(lab)
    put_nvidia_smi(lab)
    use_defaults(lab)
    must(lab, "install-host", "--restart-libvirt")


def driver_lines(lab: Lab, word: str) -> list[str]:
    """Return the driver's state lines that begin with this word, without the word."""
    return [line.removeprefix(f"{word} ") for line in lab.read(STATE).splitlines() if line.startswith(f"{word} ")]


def instances(lab: Lab) -> list[tuple[int, int]]:
    """Return the profile and the first memory slice of each GPU instance, sorted by slice."""
    lines = [line.split() for line in driver_lines(lab, "gi")]
    return sorted(((int(profile), int(start)) for _, profile, start in lines), key=lambda gi: gi[1])


def vf_says(lab: Lab, carrier: str, name: str) -> int:
    """Return the number in a sysfs file of a vendor-specific VF."""
    return int(lab.read(f"/sys/bus/pci/devices/{carrier}/nvidia/{name}"))


def cycle_vfs(lab: Lab) -> None:
    """Disable and enable the VFs without vgpuctl, as an administrator would."""
    lab.run(f"/usr/lib/nvidia/sriov-manage -d {IGB} && /usr/lib/nvidia/sriov-manage -e {IGB}")


def wait_for_vm(lab: Lab, name: str) -> None:
    """Wait until libvirt has started a VM."""
    lab.wait_until(f"virsh domstate {name} | grep -qx running", timeout=120)
