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
    lab.run("umask 077; cat > /root/user-data", stdin="#cloud-config\n{}\n")
    lab.run(["qemu-img", "create", "-q", "-f", "qcow2", "-b", TINY, "-F", "qcow2", NEWER])
    before = leftovers(lab)
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
    rows = {row["path"]: row for row in must(lab, "list-images", "--disks", "--pool", GROUP)}
    assert {path: row["role"] for path, row in rows.items()} == {now["disks"][0]["path"]: "disk", seed: "disk"}
    assert must(lab, "reconcile-host")["findings"] == []
    must(lab, "delete-vm", "vm-1")
    assert (leftovers(lab), volumes(lab)) == (before, {})


@pytest.mark.deadline(900)
@pytest.mark.parametrize("pool", ["default", GROUP])
def test_a_disk_grows_while_its_vm_runs_and_while_it_is_off(lab: Lab, pool: str) -> None:
    put_gpu(lab, "mdev-pf")
    use_defaults(lab)
    put_volume_group(lab)
    before = leftovers(lab)
    made = must(lab, "create-vm", "vm-1", "--profile", "A100-4C", "--storage-pool", pool)
    disk = made["disks"][0]["path"]
    size = made["disks"][0]["size_bytes"]
    assert device_sectors(lab) == whole_extents(size) // 512
    for step, state in ((1, "running"), (2, "stopped")):
        mib = (whole_extents(size) >> 20) + 16 * step
        grown = must(lab, "resize-disk", "vm-1", f"{mib}MiB", "--disk", "vda")
        assert (grown["state"], grown["disks"][0]["size_bytes"]) == (state, mib << 20)
        info = lab.run(["virsh", "domblkinfo", "vm-1", disk]).stdout
        assert f"{mib << 20}" in info.split()
        if state == "running":
            assert device_sectors(lab) == (mib << 20) // 512
            must(lab, "stop-vm", "vm-1", "--force")
    must(lab, "start-vm", "vm-1")
    assert device_sectors(lab) == (mib << 20) // 512
    error = must(lab, "resize-disk", "vm-1", "8MiB", "--disk", "vda", status=3)
    assert error["code"] == "refused"
    assert must(lab, "reconcile-host")["findings"] == []
    must(lab, "delete-vm", "vm-1")
    assert (leftovers(lab), volumes(lab)) == (before, {})


def device_sectors(lab: Lab) -> int:
    """Return the size of the VM's first disk as its QEMU shows it to the guest, which has no driver for it."""
    query = '{"execute": "query-block"}'
    answer = json.loads(lab.run(["virsh", "qemu-monitor-command", "vm-1", query]).stdout)
    size: int = answer["return"][0]["inserted"]["image"]["virtual-size"]
    return size // 512


# Starts create-vm, stops its qemu-img as soon as it runs, so that the copy is half done, and sends vgpuctl a signal.
DURING_COPY = r"""
import json, os, signal, subprocess, sys, time
words = ["vgpuctl", "--json", "--progress", "--yes", "create-vm", "vm-1", "--profile", "A100-4C", "--storage-pool",
         "vg0", "--image", sys.argv[2]]
child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
copying, end = "", time.monotonic() + 120
while not copying:
    copying = subprocess.run(["pgrep", "-f", "qemu-img convert"], capture_output=True, text=True).stdout.strip()
    if time.monotonic() > end or child.poll() is not None:
        sys.exit(f"no image was copied: {child.stdout.read()}")
os.kill(int(copying), signal.SIGSTOP)
child.send_signal(getattr(signal, sys.argv[1]))
output = child.stdout.read()
status = child.wait()
end = time.monotonic() + 30
while os.path.exists(f"/proc/{copying}") and time.monotonic() < end:
    time.sleep(0.1)
print(json.dumps([status, output, os.path.exists(f"/proc/{copying}")]))
"""


@pytest.mark.deadline(600)
def test_a_copy_that_is_interrupted_or_killed_leaves_nothing(lab: Lab) -> None:
    put_gpu(lab, "mdev-pf")
    use_defaults(lab)
    put_volume_group(lab)
    image = "/var/lib/libvirt/images/large.qcow2"
    lab.run(["qemu-img", "create", "-q", "-f", "qcow2", image, "512M"])
    lab.run(["qemu-io", "-f", "qcow2", "-c", "write -q -P 0x5a 0 256M", image])
    before = leftovers(lab)
    status, output, alive = json.loads(lab.run(["python3", "-c", DURING_COPY, "SIGINT", image], timeout=200).stdout)
    assert (status, alive) == (130, False), output
    assert json.loads(output)["error"]["left"] == []
    assert (leftovers(lab), volumes(lab)) == (before, {})
    status, output, alive = json.loads(lab.run(["python3", "-c", DURING_COPY, "SIGKILL", image], timeout=200).stdout)
    assert (status, alive) == (-9, False), output
    assert len(volumes(lab)) == 1
    findings = must(lab, "reconcile-host")["findings"]
    assert [finding["kind"] for finding in findings] == ["half-made"]
    assert (leftovers(lab), volumes(lab)) == (before, {})
    assert must(lab, "reconcile-host")["findings"] == []
