# SPDX-License-Identifier: Apache-2.0
"""The makers of GPUs: a file for each, and a line in `MAKERS`. Nothing else in the program knows a vendor's id.

CONTRIBUTING.md says how to add one.
"""

from __future__ import annotations

from vgpuctl.makers.amd import Amd
from vgpuctl.makers.ascend import Ascend
from vgpuctl.makers.intel import Intel
from vgpuctl.makers.kernel_samples import KernelSamples
from vgpuctl.makers.maker import Maker
from vgpuctl.makers.nvidia import Nvidia
from vgpuctl.model.gpu import Gpu

MAKERS: tuple[Maker, ...] = (Nvidia(), Amd(), Intel(), Ascend(), KernelSamples())
_UNKNOWN = Maker()
_BY_VENDOR_ID = {maker.vendor_id: maker for maker in MAKERS if maker.vendor_id is not None}


def maker_of(gpu: Gpu) -> Maker:
    """Return the maker of a GPU; one without any special facts if it is unknown."""
    return _BY_VENDOR_ID.get(gpu.vendor_id or "", _UNKNOWN)


def maker_of_type(type_id: str) -> Maker:
    """Return the maker whose driver names an mdev type like this; one without any special facts if it is unknown."""
    return next((m for m in MAKERS if m.type_prefix is not None and type_id.startswith(m.type_prefix)), _UNKNOWN)


def uses_nvml(gpu: Gpu) -> bool:
    """Return whether a GPU has the driver that NVML speaks to."""
    maker = maker_of(gpu)
    return maker.has_nvml and gpu.driver == maker.vgpu_driver


def vfs_are_for_vgpus(gpu: Gpu) -> bool:
    """Return whether a GPU's driver turns all its VFs on by a command of its own, and they carry nothing but vGPUs."""
    maker = maker_of(gpu)
    return maker.vfs_are_for_vgpus and gpu.driver == maker.vgpu_driver


def own_vf_setting(driver: str | None) -> str | None:
    """Return how an administrator sets the number of VFs if this driver takes it from nobody else, else None."""
    return next((m.own_vf_setting for m in MAKERS if m.vgpu_driver is not None and m.vgpu_driver == driver), None)


def enable_vfs_hint(gpu: Gpu) -> str:
    """Return the command that turns a GPU's VFs on."""
    mode = "vgpu" if vfs_are_for_vgpus(gpu) else "sriov"
    return own_vf_setting(gpu.driver) or f"vgpuctl set-mode {gpu.address} {mode}"


def vgpu_driver_hint(gpu: Gpu) -> str:
    """Return what gives a GPU the driver that makes vGPUs; vfio-pci may have it, and then the driver may be there."""
    driver = maker_of(gpu).vgpu_driver
    if gpu.driver != "vfio-pci" or driver is None:
        return "install the vendor's vGPU host driver; what each GPU offers: vgpuctl list-gpus"
    node = f"pci_{gpu.address.replace(':', '_').replace('.', '_')}"
    return (
        f"vfio-pci has it; give it to {driver} now: virsh nodedev-reattach {node}; at the next boot vfio-pci takes it "
        f"again where vfio-pci.ids (kernel command line, /etc/modprobe.d) has {gpu.pci_id}, or where a udev rule or "
        "driverctl sets its driver_override"
    )


def disable_vfs_hint(gpu: Gpu) -> str:
    """Return the command that turns a GPU's VFs off."""
    return own_vf_setting(gpu.driver) or f"vgpuctl set-mode {gpu.address} passthrough"
