"""Hosts with faults: a read-only /etc, no free inodes, and a vGPU that fails while its VM uses it."""

from __future__ import annotations

import pytest

from tests.lab.bystanders import SECOND_IGB, bystanders
from tests.lab.machine import Lab
from tests.lab.vgpuctl_in import IGB, call, leftovers, must, put_gpu, use_defaults

INODES = "mount -o remount,nr_inodes={} {}"
KNOB = "/sys/module/vgpulab/parameters/clear_in_use"


@pytest.mark.deadline(400)
def test_a_read_only_etc_blocks_only_writes_there(lab: Lab) -> None:
    put_gpu(lab, "vendor-vf")
    lab.run("modprobe igb")
    use_defaults(lab)
    with bystanders(lab, plain_vfs=False):
        must(lab, "create-vm", "vm-1", "--profile", "A100-4C", "--no-start")
        made = must(lab, "show-vm", "vm-1")
        before, etc = leftovers(lab), lab.run("find /etc -newer /proc/1 -type f | sort | xargs md5sum").stdout
        lab.run("mount --bind /etc /etc && mount -o remount,bind,ro /etc")
        for words in (
            ("cordon", IGB),
            ("set-mode", SECOND_IGB, "sriov", "--vfs", "2"),
            ("install-host",),
            ("create-vm", "vm-2", "--profile", "A100-4C", "--no-start"),
        ):
            status, document = call(lab, *words)
            assert status in (1, 6), document
            assert "Read-only file system" in document["error"]["message"], document
            assert not document["error"]["left"], document
            assert leftovers(lab) == before, words
        assert lab.read(f"/sys/bus/pci/devices/{SECOND_IGB}/sriov_numvfs").strip() == "0"
        assert must(lab, "show-vm", "vm-1")["vgpus"] == made["vgpus"]
        assert not next(g for g in must(lab, "list-gpus") if g["address"] == IGB)["cordoned"]
        assert call(lab, "doctor")[0] in (0, 6)
        assert must(lab, "start-vm", "vm-1")["state"] == "running"
        must(lab, "stop-vm", "vm-1", "--force")
        lab.run("umount /etc")
        assert lab.run("find /etc -newer /proc/1 -type f | sort | xargs md5sum").stdout == etc
        must(lab, "delete-vm", "vm-1")


@pytest.mark.deadline(400)
def test_without_inodes_in_pool_or_run_it_fails_cleanly(lab: Lab) -> None:
    put_gpu(lab, "vendor-vf")
    use_defaults(lab)
    with bystanders(lab, plain_vfs=False):
        before = leftovers(lab)
        lab.run(
            """mkdir /mnt/small && mount -t tmpfs -o size=64M,nr_inodes=8 small /mnt/small
            virsh pool-define-as small dir --target /mnt/small && virsh pool-start small
            for n in 1 2 3 4 5 6 7 8; do touch /mnt/small/$n; done; true"""
        )
        words = ("create-vm", "vm-1", "--profile", "A100-4C", "--no-start")
        status, full = call(lab, *words, "--storage-pool", "small")
        assert (status, full["error"]["code"]) == (4, "no-space"), full
        assert leftovers(lab) == before
        lab.run(INODES.format("$(($(df --output=iused /run | tail -1)))", "/run"))
        status, document = call(lab, *words)
        assert status in (1, 6), document
        assert "No space left on device" in document["error"]["message"]
        assert "df -i" in str(document["error"]["hint"])
        assert call(lab, "list-gpus")[0] == call(lab, "list-vms")[0] == 0
        lab.run(INODES.format("100000", "/run"))
        assert leftovers(lab) == before
        must(lab, *words)


@pytest.mark.deadline(400)
def test_a_vgpu_that_fails_in_a_running_vm_is_shown_and_the_vm_keeps_running(lab: Lab) -> None:
    put_gpu(lab, "vendor-vf")
    use_defaults(lab)
    with bystanders(lab, plain_vfs=False):
        before = leftovers(lab)
        (vgpu,) = must(lab, "create-vm", "vm-1", "--profile", "A100-4C")["vgpus"]
        vf = vgpu["carrier"]
        lab.run(f"echo Y > {KNOB}; echo 0 > /sys/bus/pci/devices/{vf}/nvidia/current_vgpu_type; echo N > {KNOB}")
        (row,) = [vm for vm in must(lab, "list-vms") if vm["name"] == "vm-1"]
        assert (row["state"], [v["present"] for v in row["vgpus"]]) == ("running", [False])
        gpu = next(g for g in must(lab, "list-gpus") if g["address"] == IGB)
        assert [(v["vm"], v["present"]) for v in gpu["vgpus"] if v["carrier"] == vf] == [("vm-1", False)]
        checks = {c["id"]: c for c in must(lab, "doctor", status=6)["checks"]}
        assert "VM vm-1 runs" in checks["lost-vgpus"]["evidence"][0]
        assert must(lab, "reconcile-host")["steps"] == []
        assert must(lab, "show-vm", "vm-1")["state"] == "running"
        refused = must(lab, "create-vm", "vm-2", "--profile", "A100-4C", "--no-start", status=4)
        assert "lost-vgpus" in [c["id"] for c in refused["facts"]["doctor"]], refused
        must(lab, "stop-vm", "vm-1", "--force")
        must(lab, "start-vm", "vm-1")
        assert must(lab, "show-vm", "vm-1")["vgpus"][0]["present"]
        lab.run(f"echo Y > {KNOB}; echo 0 > /sys/bus/pci/devices/{vf}/nvidia/current_vgpu_type; echo N > {KNOB}")
        must(lab, "delete-vm", "vm-1")
        assert leftovers(lab) == before
