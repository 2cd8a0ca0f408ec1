"""refresh-vm rebuilds a VM with a cloud-init seed from another image; it boots on a real libvirt and QEMU."""

from __future__ import annotations

import pytest

from tests.lab.console import guest_devices
from tests.lab.machine import Lab
from tests.lab.vgpuctl_in import A100, TINY, leftovers, must, put_gpu, use_defaults

NEWER = "/var/lib/libvirt/images/newer.qcow2"
SECRET = "hunter2"
DRIVER = "/root/drivers/NVIDIA-Linux-x86_64-580.159.03-grid.run"


@pytest.mark.deadline(900)
def test_a_running_vm_with_a_seed_is_refreshed_and_boots_from_the_new_image(lab: Lab) -> None:
    put_gpu(lab, "mdev-pf")
    use_defaults(lab)
    lab.run("umask 077; cat > /root/user-data", stdin=f"#cloud-config\npassword: {SECRET}\n")
    lab.run(["cp", TINY, NEWER])
    before = leftovers(lab)
    lab.run(f"install -d /root/drivers && (echo '#!/bin/sh'; head -c 2M /dev/zero) >{DRIVER}")
    words = ("--profile", "A100-4C", "--cloud-init", "/root/user-data", "--guest-driver", DRIVER)
    made = must(lab, "create-vm", "vm-1", *words)
    seed, disc = [d["path"] for d in made["disks"] if d["device"] == "cdrom"]
    assert lab.run(["blkid", "-p", "-o", "value", "-s", "LABEL", disc]).stdout.strip() == "vgpudriver"
    assert lab.run(["stat", "-c", "%a", seed]).stdout.strip() == "600"
    assert lab.run(["blkid", "-p", "-o", "value", "-s", "LABEL", seed]).stdout.strip() == "cidata"
    assert lab.run(["grep", "-c", SECRET, seed]).stdout.strip() == "1"
    reported = lab.run(
        f"journalctl --no-pager | grep {SECRET}; grep -rl {SECRET} /var/log /etc /run", check=False
    ).stdout
    assert reported.split() == []
    assert A100 in guest_devices(lab, "vm-1")
    lab.run(["rm", disc])  # a VM needs the disc once, and starts without it
    now = must(lab, "refresh-vm", "vm-1", "--image", NEWER, "--drain")
    assert (now["state"], now["uuid"], now["networks"]) == ("running", made["uuid"], made["networks"])
    assert [d["base"] for d in now["disks"]] == [NEWER, None, None]
    assert [v["carrier"] for v in now["vgpus"]] == [v["carrier"] for v in made["vgpus"]]
    assert A100 in guest_devices(lab, "vm-1")
    images = {row["path"]: [c["vms"] for c in row["children"]] for row in must(lab, "list-images")}
    assert (images[TINY], images[NEWER]) == ([], [["vm-1"]])
    assert now["disks"][0]["path"] in lab.run("virsh domblklist vm-1").stdout
    assert made["disks"][0]["path"] not in images
    assert must(lab, "reconcile-host")["findings"] == []
    assert must(lab, "stop-vm", "vm-1")["state"] == "stopped"
    kept = must(lab, "prepare-vm", "vm-1")
    assert (kept["prepared"], kept["image"], kept["disks"][0]["base"]) == (True, NEWER, now["disks"][0]["path"])
    assert must(lab, "start-vm", "vm-1")["state"] == "running"
    assert A100 in guest_devices(lab, "vm-1")
    back = must(lab, "refresh-vm", "vm-1", "--drain")
    assert (back["prepared"], back["state"], back["disks"][0]["base"]) == (True, "running", now["disks"][0]["path"])
    assert kept["disks"][0]["path"] not in lab.run("ls /var/lib/libvirt/images/*").stdout.split()
    assert A100 in guest_devices(lab, "vm-1")
    now = must(lab, "refresh-vm", "vm-1", "--image", NEWER, "--drain")
    assert (now["prepared"], now["disks"][0]["base"]) == (False, NEWER)
    assert must(lab, "reconcile-host")["findings"] == []
    must(lab, "stop-vm", "vm-1", "--force")
    assert [d["path"] for d in must(lab, "set-vm", "vm-1", "--guest-driver", "none")["disks"]][1:] == [seed]
    assert must(lab, "set-vm", "vm-1", "--guest-driver", DRIVER)["disks"][2]["path"] == disc
    assert must(lab, "start-vm", "vm-1")["state"] == "running"
    assert disc in lab.run("virsh domblklist vm-1").stdout
    must(lab, "delete-vm", "vm-1", "--keep-disks")
    assert lab.run(["ls", seed], check=False).returncode != 0
    lab.run(["rm", now["disks"][0]["path"]])
    assert leftovers(lab) == before
