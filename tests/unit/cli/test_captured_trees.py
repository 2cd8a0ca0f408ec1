# SPDX-License-Identifier: Apache-2.0
"""What a captured tree may contain: one bad device never ends a command for the others, and no file blocks it."""

from __future__ import annotations

import os
import shutil
from itertools import product

import pytest

from tests.faults import sampled

DEVICES = ("0000:3b:00.0", "0000:5e:00.0")
COMMANDS = ("list-gpus", "list-vgpus", "list-profiles", "export", "diff", "doctor", "list-vms", "fits --profile A16-1B")


def device(root, address, group=7):
    """One NVIDIA GPU whose driver offers an mdev type."""
    top = root / "sys/devices/pci0000:00" / address
    kind = top / "mdev_supported_types/nvidia-588"
    kind.mkdir(parents=True)
    (top / "driver").symlink_to("../../../bus/pci/drivers/nvidia")
    (top / "iommu_group").symlink_to(f"../../../kernel/iommu_groups/{group}")
    values = {"class": "0x030200", "vendor": "0x10de", "device": "0x20b0", "numa_node": "0", "boot_vga": "0"}
    for name, text in values.items():
        (top / name).write_text(f"{text}\n")
    for name, text in {
        "name": "NVIDIA A16-1B",
        "description": "num_heads=4, framebuffer=1024M, max_instance=16",
        "available_instances": "16",
        "device_api": "vfio-pci",
    }.items():
        (kind / name).write_text(f"{text}\n")
    for where in (f"sys/bus/pci/devices/{address}", f"sys/class/mdev_bus/{address}"):
        (root / where).parent.mkdir(parents=True, exist_ok=True)
        (root / where).symlink_to(f"{'../' * where.count('/')}sys/devices/pci0000:00/{address}")
    members = root / f"sys/kernel/iommu_groups/{group}/devices"
    members.mkdir(parents=True)
    (members / address).symlink_to(f"../../../../devices/pci0000:00/{address}")
    return top


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "captured"
    for number, address in enumerate(DEVICES):
        device(root, address, 7 + number)
    return root


def path_in(tree, name):
    return tree / "sys/devices/pci0000:00" / DEVICES[0] / name


def instead(path):
    """Remove the existing file."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    return path


def a_fifo(path):
    os.mkfifo(instead(path))


def a_loop(path):
    instead(path).symlink_to(path.name)


def a_directory(path):
    instead(path).mkdir()


def huge(path):
    with open(instead(path), "wb") as file:
        file.truncate(3 << 30)


def garbage(path):
    instead(path).write_bytes(b"\xff\0nonsense\n")


def digits(path):
    instead(path).write_text("9" * 5000)


def nowhere(path):
    instead(path).symlink_to("../../nowhere")


def out(path):
    instead(path).symlink_to("/dev/zero")


NAMES = (
    "class",
    "vendor",
    "device",
    "numa_node",
    "driver",
    "iommu_group",
    "boot_vga",
    "sriov_totalvfs",
    "virtfn0",
    "mdev_supported_types",
    "mdev_supported_types/nvidia-588",
    "mdev_supported_types/nvidia-588/name",
    "mdev_supported_types/nvidia-588/description",
    "mdev_supported_types/nvidia-588/available_instances",
    "11111111-2222-3333-4444-555555555555",
)


BAD = (a_fifo, a_loop, a_directory, huge, garbage, digits, nowhere, out)


@pytest.mark.parametrize(("name", "put"), sampled(product(NAMES, BAD)))
def test_one_bad_attribute_never_hides_the_other_gpu(vgpuctl, tree, name, put):
    put(path_in(tree, name))
    assert vgpuctl("--root", str(tree), "--json", "export").status == 0
    listed = vgpuctl("--root", str(tree), "--json", "list-gpus").document
    assert DEVICES[1] in [gpu["address"] for gpu in listed["data"]]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_group_that_is_no_number_leaves_that_device_out_and_names_it(vgpuctl, tree, command):
    instead(path_in(tree, "iommu_group")).symlink_to("../../../kernel/iommu_groups/none")
    ran = vgpuctl("--root", str(tree), "--json", *command.split())
    assert ran.status in (0, 6, 7), ran.out
    if command == "list-gpus":
        assert [gpu["address"] for gpu in ran.document["data"]] == [DEVICES[1]]
        assert any(DEVICES[0] in warning and "iommu_group" in warning for warning in ran.document["warnings"])
    if command == "doctor":
        assert DEVICES[0] in ran.out


def test_a_link_out_of_the_tree_reads_nothing_of_this_machine(vgpuctl, tree, tmp_path):
    outside = tmp_path / "outside"
    (outside / "claims").mkdir(parents=True)
    (outside / "claims" / DEVICES[0]).write_text("{}")
    (tree / "run").mkdir()
    (tree / "run/vgpuctl").symlink_to(outside)
    (tree / "proc").symlink_to("../../../../../../../../proc")
    ran = vgpuctl("--root", str(tree), "--json", "list-gpus")
    assert ran.status == 0, ran.out
    assert len(ran.document["data"]) == 2
    assert not any(DEVICES[0] in warning for warning in ran.document["warnings"])
