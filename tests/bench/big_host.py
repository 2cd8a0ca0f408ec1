"""A /sys with many mdev parents, laid out as on an NVIDIA host: directories below devices/, links from the buses.

16 cards of 48 GiB, 32 VFs each, 40 types on each VF: 20,480 type directories. It has no mdevs. So a
card has room for the smaller of its number of VFs and the type's own maximum.
"""

from __future__ import annotations

import os
from pathlib import Path

GPUS, VFS, GROUPS = 16, 32, 100
FRAMEBUFFER_GIB = 48
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 48)
HEADS = {"B": 4, "Q": 4, "A": 1, "C": 1}
RESOLUTION = {"B": "5120x2880", "Q": "7680x4320", "A": "1280x1024", "C": "4096x2400"}
FIRST_TYPE = 556
TYPES = {
    f"nvidia-{FIRST_TYPE + number}": (series, size)
    for number, (series, size) in enumerate((s, g) for s in HEADS for g in SIZES)
}
DIRECTORIES = GPUS * VFS * len(TYPES)


def largest(size: int) -> int:
    """Return how many vGPUs of one size fit on a card."""
    return min(VFS, FRAMEBUFFER_GIB // size)


def expected_free() -> dict[str, int]:
    """Return how many vGPUs of each profile fit on the whole host."""
    return {f"A40-{size}{series}": GPUS * largest(size) for series, size in TYPES.values()}


def type_files(series: str, size: int) -> dict[str, str]:
    """Return the names and contents of the files in one type directory."""
    description = (
        f"num_heads={HEADS[series]}, frl_config={45 if series == 'B' else 60}, framebuffer={size * 1024}M, "
        f"max_resolution={RESOLUTION[series]}, max_instance={largest(size)}"
    )
    return {
        "available_instances": "1\n",
        "create": "",
        "description": f"{description}\n",
        "device_api": "vfio-pci\n",
        "name": f"NVIDIA A40-{size}{series}\n",
    }


def build(sys: Path) -> None:
    """Build the whole tree. This takes a few seconds on a tmpfs."""
    for name in ("bus/pci/devices", "bus/pci/drivers/nvidia", "bus/mdev/devices", "class/mdev_bus"):
        (sys / name).mkdir(parents=True)
    (sys / "kernel/iommu_groups").mkdir(parents=True)
    for gpu in range(GPUS):
        _card(sys, gpu)


def _card(sys: Path, gpu: int) -> None:
    bus = 0x10 + gpu * 8
    root = f"devices/pci{0:04x}:{bus - 1:02x}/0000:{bus - 1:02x}:01.0"
    card = f"0000:{bus:02x}:00.0"
    files = {"class": "0x030200", "device": "0x2235", "sriov_totalvfs": str(VFS), "sriov_numvfs": str(VFS)}
    _function(sys, root, card, gpu * GROUPS, files | {"boot_vga": "0"})
    for vf in range(VFS):
        number = vf + 4
        address = f"0000:{bus:02x}:{number >> 3:02x}.{number & 7}"
        path = _function(sys, root, address, gpu * GROUPS + vf + 1, {"class": "0x030200", "device": "0x2235"})
        os.symlink(f"../{card}", path / "physfn")
        os.symlink(f"../{address}", sys / root / card / f"virtfn{vf}")
        os.symlink(f"../../{root}/{address}", sys / "class/mdev_bus" / address)
        _types(path)


def _function(sys: Path, root: str, address: str, group: int, files: dict[str, str]) -> Path:
    path = sys / root / address
    path.mkdir(parents=True)
    for name, text in {"vendor": "0x10de", "numa_node": "0", **files}.items():
        (path / name).write_text(f"{text}\n")
    up = "../" * (len(path.relative_to(sys).parts))
    os.symlink(f"{up}bus/pci/drivers/nvidia", path / "driver")
    os.symlink(f"{up}kernel/iommu_groups/{group}", path / "iommu_group")
    members = sys / f"kernel/iommu_groups/{group}/devices"
    members.mkdir(parents=True)
    os.symlink(f"../../../../{root}/{address}", members / address)
    os.symlink(f"../../../{root}/{address}", sys / "bus/pci/devices" / address)
    return path


def _types(function: Path) -> None:
    for type_id, (series, size) in TYPES.items():
        base = f"{function}/mdev_supported_types/{type_id}"
        os.makedirs(f"{base}/devices")
        for name, text in type_files(series, size).items():
            with open(f"{base}/{name}", "w") as file:
                file.write(text)
