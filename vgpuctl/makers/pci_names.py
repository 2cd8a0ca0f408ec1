# SPDX-License-Identifier: Apache-2.0
"""Names and memory of GPUs by their PCI ids, for GPUs whose driver is vfio-pci or that has none.

Names are those that NVML or the maker's data sheet has; memory is the data sheet's, in GiB. Ids are those of pci.ids
(https://pci-ids.ucw.cz). A GPU that is missing here is named by the host's own pci.ids, where that is installed.
"""

from __future__ import annotations

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
}
"""`VENDOR:DEVICE` -> the model's name, and its memory in GiB; None: it uses the host's memory."""
