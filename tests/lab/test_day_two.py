"""Day-two problems on a real host: other tools, restarts, full disks, kills."""

from __future__ import annotations

import json
import os
import random
import re

import pytest

from tests.lab.killing import OPERATIONS
from tests.lab.kills import kill_in
from tests.lab.machine import Lab
from tests.lab.vgpuctl_in import IGB, call, leftovers, must, put_gpu, use_defaults

KILLS = len(OPERATIONS)
# Restarts libvirtd while vgpuctl creates ten VMs one after the other.
RESTART = r"""
import json, subprocess, sys
answers = []
for number in range(10):
    child = subprocess.Popen(["vgpuctl", "--json", "create-vm", f"vm-{number}", "--profile", "A100-4C", "--no-start"],
                             stdout=subprocess.PIPE, text=True)
    if number in (1, 5):
        subprocess.run(["systemctl", "restart", "libvirtd"], check=True)
    out, _ = child.communicate()
    answers.append([child.returncode, json.loads(out)["ok"]])
print(json.dumps(answers))
"""


@pytest.mark.deadline(900)
def test_reconcile_cleans_up_after_a_kill_at_any_time(lab: Lab) -> None:
    seed = int(os.environ.get("VGPUCTL_SEED") or random.randrange(2**32))
    print(f"VGPUCTL_SEED={seed}")
    kills = kill_in(lab, "mdev-vf", seed, KILLS)
    assert [(k.operation, k.left) for k in kills if k.left] == [], f"seed {seed}"
    assert {k.operation for k in kills} == {o.name for o in OPERATIONS}
    assert len(kills) == KILLS
    assert any(k.killed for k in kills), "every command ended before its kill, so they prove nothing"


@pytest.mark.deadline(600)
def test_libvirtd_restarted_during_create_vm_leaves_complete_vms_and_nothing_else(lab: Lab) -> None:
    put_gpu(lab, "mdev-pf")
    use_defaults(lab)
    answers = json.loads(lab.run(["python3", "-c", RESTART], timeout=500).stdout)
    assert all(ok == (status == 0) for status, ok in answers)
    must(lab, "reconcile-host")
    vms = must(lab, "list-vms")
    assert len(vms) == sum(ok for _, ok in answers)
    assert all(len(vm["vgpus"]) == 1 and vm["vgpus"][0]["present"] for vm in vms)
    assert len(lab.run("ls /run/vgpuctl/claims").stdout.split()) == len(vms)
    disks = lab.run("ls /var/lib/libvirt/images").stdout.split()
    assert len(disks) == len(vms) + 1


@pytest.mark.deadline(600)
def test_a_vm_without_its_record_and_its_clone_are_recognized(lab: Lab) -> None:
    put_gpu(lab, "mdev-pf")
    use_defaults(lab)
    made = must(lab, "create-vm", "vm-1", "--profile", "A100-4C", "--no-start")
    xml = lab.run("virsh dumpxml --inactive vm-1").stdout
    other = re.sub(r"<uuid>.*?</uuid>", "", xml, count=1).replace("<name>vm-1</name>", "<name>copy</name>")
    lab.run("cat > /root/copy.xml", stdin=re.sub(r"<mac address=.*?/>", "", other))
    lab.run("virsh define /root/copy.xml")
    rows = {vm["name"]: vm for vm in must(lab, "list-vms")}
    assert (rows["vm-1"]["ownership"], rows["copy"]["ownership"]) == ("managed", "copy")
    assert call(lab, "delete-vm", "copy")[0] == 3
    lab.run("virsh undefine copy")
    lab.run("cat > /root/plain.xml", stdin=re.sub(r"<metadata>.*?</metadata>", "", xml, flags=re.DOTALL))
    lab.run("virsh undefine vm-1 && virsh define /root/plain.xml")
    (row,) = must(lab, "list-vms")
    assert [v["carrier"] for v in row["vgpus"]] == [made["vgpus"][0]["carrier"]]
    assert [f["kind"] for f in must(lab, "reconcile-host")["findings"]] == ["record-lost"]
    (row,) = must(lab, "list-vms")
    assert row["ownership"] == "managed"
    must(lab, "start-vm", "vm-1")
    must(lab, "delete-vm", "vm-1")
    assert lab.run("ls /run/vgpuctl/claims /sys/bus/mdev/devices", check=False).stdout.split("\n")[1] == ""


@pytest.mark.deadline(600)
def test_a_full_pool_or_run_directory_fails_cleanly(lab: Lab) -> None:
    put_gpu(lab, "vendor-vf")
    use_defaults(lab)
    before = leftovers(lab)
    lab.run(
        """mkdir /mnt/small && mount -t tmpfs -o size=1M small /mnt/small
        virsh pool-define-as small dir --target /mnt/small && virsh pool-start small"""
    )
    lab.run("head -c 1048576 /dev/zero > /mnt/small/full || true")
    status, full = call(lab, "create-vm", "vm-1", "--profile", "A100-4C", "--storage-pool", "small", "--no-start")
    assert (status, full["error"]["code"]) == (4, "no-space"), full
    lab.run("head -c 4G /dev/zero > /run/full || true", timeout=120)
    status, document = call(lab, "create-vm", "vm-1", "--profile", "A100-4C", "--no-start")
    lab.run("rm /run/full")
    assert (status, document["error"]["code"]) == (1, "os-error"), document
    assert (document["error"]["facts"]["errno"], document["error"]["facts"]["file_system"]) == (28, "/run")
    assert "No space left" in document["error"]["message"]
    assert leftovers(lab) == before
    must(lab, "create-vm", "vm-1", "--profile", "A100-4C", "--no-start")


@pytest.mark.deadline(600)
def test_a_vm_with_a_vgpu_that_cannot_be_saved_keeps_it_and_its_claim(lab: Lab) -> None:
    put_gpu(lab, "mdev-pf")
    use_defaults(lab)
    made = must(lab, "create-vm", "vm-1", "--profile", "A100-4C")
    saved = lab.run("virsh managedsave vm-1", check=False, timeout=120)
    now = must(lab, "show-vm", "vm-1")
    assert saved.returncode != 0
    assert (now["state"], now["vgpus"]) == ("running", made["vgpus"])
    assert must(lab, "reconcile-host")["findings"] == []
    gpu = next(g for g in must(lab, "list-gpus") if g["address"] == IGB)
    assert [v["vm"] for v in gpu["vgpus"]] == ["vm-1"]
