# SPDX-License-Identifier: Apache-2.0
"""Which disks of a VM another host may use, too: told from the pools, the mounts, and what block devices lie on."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import pytest

import vgpuctl
from vgpuctl import library
from vgpuctl.agent.shared_disks import find_shared_disk
from vgpuctl.host.files import HostFiles
from vgpuctl.model.port_values import ImageFile
from vgpuctl.model.vm import DiskRef, Vm
from vgpuctl.observe import ReadScope, observe
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

POOLS = "[{name: default}, {name: far, path: /far, kind: netfs}, {name: ceph, kind: rbd}]"
PCI = "devices/pci0000:00/0000:00:17.0"
FABRIC = "devices/virtual/nvme-subsystem/nvme-subsys0"


@pytest.fixture
def ports(tmp_path: Path) -> Host:
    """Return a host with a local pool and two others."""
    path = tmp_path / "host.yaml"
    path.write_text(f"version: 1\ngpus: [{{model: A100}}]\nstorage: {{pools: {POOLS}}}\n")
    return library.open_ports(f"sim:{path}")


def vm_with(ports: Host, *disks: DiskRef) -> Vm:
    with vgpuctl.open_host(ports.name) as host:
        host.create_vm("a", profile="A100-4C", start=False)
    (vm,) = observe(ports, ReadScope(models=False)).vms
    return replace(vm, disks=disks) if disks else vm


def test_files_of_a_local_pool_are_local_and_those_on_a_server_are_not(ports: Host) -> None:
    assert find_shared_disk(ports, vm_with(ports)) is None
    with vgpuctl.open_host(ports.name) as host:
        host.create_vm("b", profile="A100-4C", storage_pool="far", start=False)
    (far,) = [vm for vm in observe(ports, ReadScope(models=False)).vms if vm.name == "b"]
    assert str(find_shared_disk(ports, far)).startswith("/far/")


@pytest.mark.parametrize(
    ("disk", "shared"),
    [
        (DiskRef("disk", "vda", None, "raw"), "the disk vda"),
        (DiskRef("disk", "vda", None, "raw", ("ceph", "a")), "a of the pool ceph"),
        (DiskRef("disk", "vda", None, "raw", ("gone", "a")), "a of the pool gone"),
        (DiskRef("disk", "vda", "/missing.qcow2", "qcow2"), "/missing.qcow2"),
        (DiskRef("cdrom", "sda", None, "raw"), None),
    ],
    ids=["a network protocol", "a pool on a network", "no pool", "a file that is missing", "an empty drive"],
)
def test_what_is_not_provably_local_counts_as_shared(ports: Host, disk: DiskRef, shared: str | None) -> None:
    assert find_shared_disk(ports, vm_with(ports, disk)) == shared


class BlockDevices:
    """A host's storage on which every path is the block device 8:0."""

    def image_files(self, paths: Collection[str], *, reachable: Collection[str] | None = None) -> dict[str, ImageFile]:
        return {path: ImageFile(path, f"device {os.makedev(8, 0)}", None, "") for path in paths}


def make_device(root: Path, path: str, *slaves: str) -> None:
    """Add a disk or a partition to a /sys, as the kernel has it."""
    folder = root / "sys" / path
    (folder / "slaves").mkdir(parents=True)
    (root / "sys/class/block").mkdir(parents=True, exist_ok=True)
    link = root / "sys/class/block" / folder.name
    link.symlink_to(f"../../{path}")
    for slave in slaves:
        (folder / "slaves" / slave).symlink_to(root / "sys/class/block" / slave)


DEVICES: dict[str, tuple[bool, dict[str, tuple[str, ...]]]] = {
    "a SATA disk": (True, {f"{PCI}/ata1/host0/target0:0:0/0:0:0:0/block/sda": ()}),
    "an NVMe disk": (True, {f"{PCI}/nvme/nvme0/nvme0n1": ()}),
    "LVM on a partition": (
        True,
        {"devices/virtual/block/dm-0": ("sda3",), f"{PCI}/ata1/host0/target0:0:0/0:0:0:0/block/sda/sda3": ()},
    ),
    "LVM on RAID": (
        True,
        {
            "devices/virtual/block/dm-0": ("md0",),
            "devices/virtual/block/md0": ("sda", "sdb"),
            f"{PCI}/ata1/host0/target0:0:0/0:0:0:0/block/sda": (),
            f"{PCI}/ata2/host1/target1:0:0/1:0:0:0/block/sdb": (),
        },
    ),
    "iSCSI": (False, {"devices/platform/host3/session1/target3:0:0/3:0:0:1/block/sdc": ()}),
    "multipath of Fibre Channel": (
        False,
        {
            "devices/virtual/block/dm-0": ("sda", "sdb"),
            f"{PCI}/ata1/host0/target0:0:0/0:0:0:0/block/sda": (),
            f"{PCI}/host7/rport-7:0-2/target7:0:0/7:0:0:1/block/sdb": (),
        },
    ),
    "DRBD": (False, {"devices/virtual/block/drbd0": ()}),
    "RBD": (False, {"devices/rbd/0/block/rbd0": ()}),
    "device mapper without anything below": (False, {"devices/virtual/block/dm-0": ()}),
    "NVMe by multipath, PCI Express": (True, {f"{FABRIC}/nvme0n1": ()}),
    "NVMe by multipath, TCP": (False, {f"{FABRIC}/nvme0n1": ()}),
}


@pytest.mark.parametrize("name", DEVICES)
def test_a_block_device_is_local_if_all_disks_below_it_are(ports: Host, tmp_path: Path, name: str) -> None:
    is_local, devices = DEVICES[name]
    for path, slaves in devices.items():
        make_device(tmp_path, path, *slaves)
    if "NVMe by" in name:
        (tmp_path / "sys" / FABRIC / "nvme0").mkdir()
        (tmp_path / "sys" / FABRIC / "nvme0/transport").write_text("tcp\n" if "TCP" in name else "pcie\n")
    (tmp_path / "sys/dev/block").mkdir(parents=True)
    (tmp_path / "sys/dev/block/8:0").symlink_to(f"../../{next(iter(devices))}")
    host = replace(ports, storage=BlockDevices(), sysfs=HostFiles(str(tmp_path), lock_held=lambda: False))
    vm = vm_with(ports, DiskRef("disk", "vda", "/dev/vg/a", "raw"))
    assert find_shared_disk(host, vm) == (None if is_local else "/dev/vg/a")


def test_a_device_that_cannot_be_found_counts_as_shared(ports: Host, tmp_path: Path) -> None:
    host = replace(ports, storage=BlockDevices(), sysfs=HostFiles(str(tmp_path), lock_held=lambda: False))
    assert find_shared_disk(host, vm_with(ports, DiskRef("disk", "vda", "/dev/sda", "raw"))) == "/dev/sda"
