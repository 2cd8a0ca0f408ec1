# SPDX-License-Identifier: Apache-2.0
"""The makers of GPUs: a file for each, and a line in `MAKERS`. Nothing else in the program knows a vendor's id.

CONTRIBUTING.md says how to add one.

`PCI_MODELS` is for GPUs whose driver is vfio-pci or that have none: names are those
that NVML or the maker's data sheet has; memory is the data sheet's, in GiB. Ids are those of pci.ids
(https://pci-ids.ucw.cz). A GPU that is missing there is named by the host's own pci.ids, where that is installed.
pci.ids does not have these: Hygon's (device codes in the installation guides of DCU drivers, and lspci of hosts, in
public repositories), MetaX's 40xx (MetaX's extension of vLLM), 1d22:3688 (zstack-utility; lspci of hosts), and
Ascend's (dvt.h of Huawei's driver).
"""

from __future__ import annotations

from collections.abc import Iterable

from vgpuctl.makers.amd import Amd
from vgpuctl.makers.ascend import Ascend
from vgpuctl.makers.cambricon import Cambricon
from vgpuctl.makers.intel import Intel
from vgpuctl.makers.kernel_samples import KernelSamples
from vgpuctl.makers.maker import Maker
from vgpuctl.makers.moore_threads import MooreThreads
from vgpuctl.makers.nvidia import Nvidia
from vgpuctl.makers.whole_cards import WHOLE_CARD_MAKERS
from vgpuctl.model.gpu import Gpu, GpuMode
from vgpuctl.model.usage import NVML_SOURCE

MAKERS: tuple[Maker, ...] = (
    Nvidia(),
    Amd(),
    Intel(),
    Ascend(),
    KernelSamples(),
    MooreThreads(),
    Cambricon(),
    *WHOLE_CARD_MAKERS,
)
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
    "1002:73a1": ("AMD Radeon PRO V620", 32),
    "1002:7460": ("AMD Radeon PRO V710", 28),
    "1002:74a1": ("AMD Instinct MI300X", 192),
    "1002:74a2": ("AMD Instinct MI308X", 192),
    "1002:74a5": ("AMD Instinct MI325X", 256),
    "1002:74a8": ("AMD Instinct MI308X", 192),
    "1002:74a9": ("AMD Instinct MI300X HF", 192),
    "1002:75a0": ("AMD Instinct MI350X", 288),
    "1002:75a3": ("AMD Instinct MI355X", 288),
    "19e5:d500": ("Huawei Ascend 310P", 24),
    "8086:3e92": ("Intel UHD Graphics 630", None),
    "8086:56c0": ("Intel Data Center GPU Flex 170", 16),
    "19e5:d801": ("Huawei Ascend 910", None),
    "19e5:d802": ("Huawei Ascend 910B", None),
    "19e5:d803": ("Huawei Ascend 910_93", None),
    "19e5:d806": ("Huawei Ascend 950", None),
    "19e5:d808": ("Huawei Ascend 350", None),
    "1d22:3684": ("Kunlunxin Kunlun", None),
    "1d22:3688": ("Kunlunxin P800", 96),
    "2057:3686": ("Kunlunxin P800", 96),
    "1d94:54b7": ("Hygon Z100", None),
    "1d94:55b7": ("Hygon Z100L", None),
    "1d94:6210": ("Hygon K100_AI", 64),
    "1d94:6211": ("Hygon K100_AI", 64),
    "1d94:62b7": ("Hygon K100", None),
    "1d94:6320": ("Hygon BW1000", 64),
    "1d94:6370": ("Hygon BW100", None),
    "1e36:0001": ("Enflame T10", None),
    "1e36:0002": ("Enflame T11", None),
    "1e36:0021": ("Enflame T20 32GB", 32),
    "1e36:0022": ("Enflame T20 64GB", 64),
    "1e36:0023": ("Enflame T21 32GB", 32),
    "1e36:0024": ("Enflame T21 64GB", 64),
    "1e36:8001": ("Enflame I20", None),
    "1e36:8011": ("Enflame I10", None),
    "1e36:8032": ("Enflame S6", 24),
    "1e36:c032": ("Enflame S90", 48),
    "1e36:c033": ("Enflame S60G", 48),
    "1e36:c035": ("Enflame S60", 48),
    "1e36:c041": ("Enflame L300", None),
    "1e36:c042": ("Enflame L600", None),
    "1ec6:0100": ("Vastai SV100", None),
    "1ec6:0200": ("Vastai SG100", None),
    "1ec6:0300": ("Vastai SR100", None),
    "1ed5:0211": ("MTT X300", None),
    "1ed5:0222": ("MTT S3000", 32),
    "1ed5:0225": ("MTT S3000E", None),
    "1ed5:0323": ("MTT S4000", None),
    "1ed5:0327": ("MTT S4000", None),
    "1ed5:0328": ("MTT S4000", None),
    "9999:0a01": ("MetaX C500", 64),
    "9999:4000": ("MetaX C550", 64),
    "9999:4001": ("MetaX C500", 64),
    "9999:4081": ("MetaX C280", 64),
    "9999:4083": ("MetaX N260", 64),
    "cabc:0270": ("Cambricon MLU270-S4", None),
    "cabc:0370": ("Cambricon MLU370-S4", None),
    "8086:e211": ("Intel Arc Pro B60", 24),
    "8086:e212": ("Intel Arc Pro B50", 16),
}
"""`VENDOR:DEVICE` -> the model's name, and its memory in GiB.

None: it uses the host's memory, or the size is not published or not one for all of its cards.
"""


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


def name_unknown_model(gpu: Gpu) -> str:
    """Return a GPU's PCI id, after its maker's name where the id alone says little to people."""
    maker = maker_of(gpu)
    return f"{maker.name} {gpu.pci_id}" if maker.slicing is not None else gpu.model


def slicing_notes(gpus: Iterable[Gpu]) -> tuple[str, ...]:
    """Return, for each model without profiles for VMs whose maker's facts explain that, why it has none."""
    addresses: dict[tuple[str, str], list[str]] = {}
    for gpu in gpus:
        slicing = maker_of(gpu).slicing
        if slicing is not None and not gpu.types:
            addresses.setdefault((gpu.model, slicing), []).append(gpu.address)
    return tuple(f"{', '.join(on)} ({model}): no profiles: {why}" for (model, why), on in addresses.items())


def support_warnings(gpus: Iterable[Gpu]) -> tuple[str, ...]:
    """Return what people must know before they use the vGPUs of these GPUs."""
    warnings = ((gpu, maker_of(gpu).support_warning(gpu)) for gpu in gpus)
    return tuple(f"{gpu.address} ({gpu.model}): {warning}" for gpu, warning in warnings if warning is not None)


def maker_of_type(type_id: str) -> Maker:
    """Return the maker whose driver names an mdev type like this; one without any special facts if it is unknown."""
    return next((m for m in MAKERS if m.type_prefix is not None and type_id.startswith(m.type_prefix)), _UNKNOWN)


def maker_of_vgpus(gpu: Gpu) -> Maker:
    """Return the maker of a GPU's vGPUs: also that of a parent that is no PCI device, by the types of its mdevs."""
    if gpu.vendor_id is not None:
        return maker_of(gpu)
    types = (*(t.type_id for t in gpu.types), *(m.type_id for f in gpu.functions for m in f.mdevs))
    return maker_of_type(types[0]) if types else _UNKNOWN


def usage_source(gpu: Gpu) -> str | None:
    """Return who reports how much of a GPU is used; None while its own driver does not have it, as in passthrough."""
    if uses_nvml(gpu):
        return NVML_SOURCE
    if gpu.driver is None or "vfio" in gpu.driver:
        return None
    return maker_of(gpu).usage_source(gpu.driver)


def uses_nvml(gpu: Gpu) -> bool:
    """Return whether a GPU has the driver that NVML speaks to."""
    maker = maker_of(gpu)
    return maker.has_nvml and gpu.driver == maker.vgpu_driver


def offers_profiles_with_vfs(gpu: Gpu) -> bool:
    """Return whether a GPU's driver offers vGPU profiles once its VFs are on; others give VMs the VFs as they are."""
    return vfs_are_for_vgpus(gpu) or maker_of(gpu).vgpus_take_vfs


def vfs_are_for_vgpus(gpu: Gpu) -> bool:
    """Return whether a GPU's driver turns all its VFs on by a command of its own, and they carry nothing but vGPUs."""
    maker = maker_of(gpu)
    return maker.vfs_are_for_vgpus and gpu.driver == maker.vgpu_driver


def vgpus_take_vfs(gpu: Gpu) -> bool:
    """Return whether each mdev on a GPU's own function takes a VF, whose number an administrator chooses."""
    return maker_of(gpu).vgpus_take_vfs and gpu.mode is GpuMode.VGPU and gpu.vfs_total > 0


def sets_vfs_at_load(gpu: Gpu) -> bool:
    """Return whether a GPU's driver reads the number of VFs from a file of its own, only when it is loaded."""
    maker = maker_of(gpu)
    return maker.sets_vfs_at_load and gpu.driver == maker.vgpu_driver


def breaks_at_reset(gpu: Gpu) -> bool:
    """Return whether a GPU is lost until the host boots, once a VM had all of it."""
    return gpu.device_id in maker_of(gpu).breaks_at_reset


def enable_vfs_hint(gpu: Gpu) -> str:
    """Return the command that turns a GPU's VFs on."""
    mode = "vgpu" if vfs_are_for_vgpus(gpu) else "sriov"
    return f"vgpuctl set-mode {gpu.address} {mode}"


def vgpu_driver_hint(gpu: Gpu) -> str:
    """Return what gives a GPU the driver that makes vGPUs; vfio-pci may have it, and then the driver may be there."""
    maker = maker_of(gpu)
    driver = maker.vgpu_driver
    if maker.slicing is not None:
        return maker.slicing
    if gpu.driver != "vfio-pci" or driver is None:
        usual = "install the vendor's vGPU host driver; what each GPU offers: vgpuctl list-gpus"
        return maker.offers_nothing_fix(gpu) or usual
    node = f"pci_{gpu.address.replace(':', '_').replace('.', '_')}"
    return (
        f"vfio-pci has it; give it to {driver} now: virsh nodedev-reattach {node}; at the next boot vfio-pci takes it "
        f"again where vfio-pci.ids (kernel command line, /etc/modprobe.d) has {gpu.pci_id}, or where a udev rule or "
        "driverctl sets its driver_override"
    )


def disable_vfs_hint(gpu: Gpu) -> str:
    """Return the command that turns a GPU's VFs off, or makes one VF of all of it where the driver keeps one."""
    if sets_vfs_at_load(gpu):
        return f"vgpuctl set-mode {gpu.address} sriov --vfs 1; then that VF is the whole GPU"
    return f"vgpuctl set-mode {gpu.address} passthrough"
