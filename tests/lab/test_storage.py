"""Disks in an LVM volume group and in a directory: full copies, linked clones, their growth, on a real libvirt."""

from __future__ import annotations

import json

import pytest

from tests.lab.console import guest_devices
from tests.lab.machine import Lab
from tests.lab.vgpuctl_in import A100, TINY, leftovers, must, put_gpu, use_defaults
from tests.lab.volume_groups import EXTENT, GROUP, put_volume_group, volumes

NEWER = "/var/lib/libvirt/images/newer.qcow2"


def whole_extents(size: int) -> int:
    return -(-size // EXTENT) * EXTENT


def image_bytes(lab: Lab, path: str) -> int:
    size: int = json.loads(lab.run(["qemu-img", "info", "--output=json", path]).stdout)["virtual-size"]
    return size


def same_content(lab: Lab, image: str, device: str) -> bool:
    return lab.run(["qemu-img", "compare", "-f", "qcow2", "-F", "raw", image, device], check=False).returncode == 0


@pytest.mark.deadline(900)
def test_a_vm_boots_from_a_full_copy_in_a_volume_group_and_is_refreshed(lab: Lab) -> None:
    put_gpu(lab, "mdev-pf")
    use_defaults(lab)
    put_volume_group(lab)
    before = leftovers(lab)
    lab.run("umask 077; cat > /root/user-data", stdin="#cloud-config\n{}\n")
    lab.run(["qemu-img", "create", "-q", "-f", "qcow2", "-b", TINY, "-F", "qcow2", NEWER])
    words = ("--profile", "A100-4C", "--storage-pool", GROUP, "--cloud-init", "/root/user-data")
    error = must(lab, "create-vm", "vm-1", *words, "--disk", "4GiB", status=4)
    assert (error["code"], error["facts"]["pool"]) == ("no-space", GROUP)
    assert (leftovers(lab), volumes(lab)) == (before, {})
    made = must(lab, "create-vm", "vm-1", *words, "--no-start")
    disk, seed = (d["path"] for d in made["disks"])
    assert [d["copied_from"] for d in made["disks"]] == [TINY, None]
    assert same_content(lab, TINY, disk)
    assert volumes(lab) == {
        disk.rpartition("/")[2]: whole_extents(image_bytes(lab, TINY)),
        seed.rpartition("/")[2]: EXTENT,
    }
    assert lab.run(["blkid", "-p", "-o", "value", "-s", "LABEL", seed]).stdout.strip() == "cidata"
    xml = lab.run(["virsh", "dumpxml", "--inactive", "vm-1"]).stdout
    assert f"<source dev='{disk}'/>" in xml
    assert "type='raw'" in xml
    must(lab, "start-vm", "vm-1")
    assert A100 in guest_devices(lab, "vm-1")
    now = must(lab, "refresh-vm", "vm-1", "--image", NEWER, "--drain")
    assert [d["copied_from"] for d in now["disks"]] == [NEWER, None]
    assert now["state"] == "running"
    assert A100 in guest_devices(lab, "vm-1")
    rows = {row["path"]: row for row in must(lab, "list-images", "--pool", GROUP)}
    assert {path: row["role"] for path, row in rows.items()} == {now["disks"][0]["path"]: "disk", seed: "disk"}
    assert must(lab, "reconcile-host")["findings"] == []
    must(lab, "delete-vm", "vm-1")
    lab.run(["rm", NEWER])
    assert (leftovers(lab), volumes(lab)) == (before, {})
