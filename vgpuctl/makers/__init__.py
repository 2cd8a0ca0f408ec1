# SPDX-License-Identifier: Apache-2.0
"""The makers of GPUs: a file for each, and a line in `MAKERS`. Nothing else in the program knows a vendor's id.

CONTRIBUTING.md says how to add one.

`PCI_MODELS` is for GPUs whose driver is vfio-pci or that have none: names are those
that NVML or the maker's data sheet has; memory is the data sheet's, in GiB. Ids are those of pci.ids
(https://pci-ids.ucw.cz). A GPU that is missing there is named by the host's own pci.ids, where that is installed.
"""

from __future__ import annotations

from vgpuctl.makers.amd import Amd
from vgpuctl.makers.ascend import Ascend
from vgpuctl.makers.intel import Intel
from vgpuctl.makers.kernel_samples import KernelSamples
from vgpuctl.makers.maker import Maker
from vgpuctl.makers.moore_threads import MooreThreads
from vgpuctl.makers.nvidia import Nvidia
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.usage import NVML_SOURCE, SYSFS_SOURCE

MAKERS: tuple[Maker, ...] = (Nvidia(), Amd(), Intel(), Ascend(), MooreThreads(), KernelSamples())
_UNKNOWN = Maker()
_BY_VENDOR_ID = {maker.vendor_id: maker for maker in MAKERS if maker.vendor_id is not None}

PCI_MODELS = {
    "10de:1db1": ("Tesla V100-SXM2-16GB", 16),
    "10de:1db4": ("Tesla V100-PCIE-16GB", 16),
    "10de:1db5": ("Tesla V100-SXM2-32GB", 32),
    "10de:1db6": ("Tesla V100-PCIE-32GB", 32),
    "10de:1eb8": ("Tesla T4", 16),
    "10de:20b0": ("NVIDIA A100-SXM4-40GB", 40),
    "10de:20b2": ("NVIDIA A100-SXM4-80GB", 80),
    "10de:20b5": ("NVIDIA A100 80GB PCIe", 80),
    "10de:20b7": ("NVIDIA A30", 24),
    "10de:20f1": ("NVIDIA A100-PCIE-40GB", 40),
    "10de:2204": ("NVIDIA GeForce RTX 3090", 24),
    "10de:2230": ("NVIDIA RTX A6000", 48),
    "10de:2231": ("NVIDIA RTX A5000", 24),
    "10de:2235": ("NVIDIA A40", 48),
    "10de:2236": ("NVIDIA A10", 24),
    "10de:2237": ("NVIDIA A10G", 24),
    "10de:2321": ("NVIDIA H100 NVL", 94),
    "10de:2330": ("NVIDIA H100 80GB HBM3", 80),
    "10de:2331": ("NVIDIA H100 PCIe", 80),
    "10de:2335": ("NVIDIA H200", 141),
    "10de:233b": ("NVIDIA H200 NVL", 141),
    "10de:25b6": ("NVIDIA A16", 16),
    "10de:2684": ("NVIDIA GeForce RTX 4090", 24),
    "10de:26b1": ("NVIDIA RTX 6000 Ada Generation", 48),
    "10de:26b5": ("NVIDIA L40", 48),
    "10de:26b9": ("NVIDIA L40S", 48),
    "10de:27b8": ("NVIDIA L4", 24),
    "10de:2b85": ("NVIDIA GeForce RTX 5090", 32),
    "10de:2bb1": ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 96),
    "10de:2bb5": ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 96),
    "1002:7460": ("AMD Radeon PRO V710", 28),
    "19e5:d500": ("Huawei Ascend 310P", 24),
    "8086:3e92": ("Intel UHD Graphics 630", None),
    "8086:56c0": ("Intel Data Center GPU Flex 170", 16),
    "8086:e211": ("Intel Arc Pro B60", 24),
    "8086:e212": ("Intel Arc Pro B50", 16),
}
"""`VENDOR:DEVICE` -> the model's name, and its memory in GiB; None: it uses the host's memory."""


def maker_of(gpu: Gpu) -> Maker:
    """Return the maker of a GPU; one without any special facts if it is unknown."""
    return _BY_VENDOR_ID.get(gpu.vendor_id or "", _UNKNOWN)


def is_makers_vendor_id(vendor_id: str) -> bool:
    """Return whether a PCI vendor id, such as 10de, is that of a known maker of GPUs."""
    return vendor_id in _BY_VENDOR_ID


def is_vendor_of_network_cards(vendor_id: str) -> bool:
    """Return whether a PCI vendor id is that of a maker of GPUs whose devices are rather network cards."""
    return _BY_VENDOR_ID.get(vendor_id, _UNKNOWN).has_network_cards


def is_gpu_model(pci_id: str) -> bool:
    """Return whether `VENDOR:DEVICE` is known to be a GPU, also of a maker that makes more network cards."""
    return pci_id in PCI_MODELS


def maker_of_type(type_id: str) -> Maker:
    """Return the maker whose driver names an mdev type like this; one without any special facts if it is unknown."""
    return next((m for m in MAKERS if m.type_prefix is not None and type_id.startswith(m.type_prefix)), _UNKNOWN)


def usage_source(gpu: Gpu) -> str | None:
    """Return who reports how much of a GPU is used; None while its own driver does not have it, as in passthrough."""
    if uses_nvml(gpu):
        return NVML_SOURCE
    return SYSFS_SOURCE if gpu.driver is not None and gpu.driver == maker_of(gpu).vgpu_driver else None


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
