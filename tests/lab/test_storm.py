"""Six parallel `virsh start`, where libvirt's hook creates each vGPU, while vgpuctl creates, lists and deletes VMs."""

from __future__ import annotations

import json

import pytest

from tests.lab.bystanders import bystanders
from tests.lab.machine import Lab
from tests.lab.test_after_boot import INSTALLED
from tests.lab.vgpuctl_in import must, put_gpu, use_defaults

# Starts all VMs at once. Meanwhile one loop creates and deletes a VM, and one loop lists VMs. A third loop takes the
# host lock again and again, to measure how long a process waits for it.
STORM = r"""
import fcntl, json, os, subprocess, threading, time
done = threading.Event()
waits, loops = [], {"made": 0, "listed": 0, "failed": []}

def vgpuctl(*words):
    ran = subprocess.run(["vgpuctl", "--json", "--yes", "--wait", "60", *words], capture_output=True, text=True)
    if ran.returncode:
        loops["failed"].append(ran.stdout)

def make():
    while not done.is_set():
        vgpuctl("create-vm", "loop", "--profile", "A100-4C", "--no-start")
        vgpuctl("delete-vm", "loop")
        loops["made"] += 1

def look():
    while not done.is_set():
        vgpuctl("list-vms")
        loops["listed"] += 1

def wait():
    while not done.is_set():
        file = os.open("/run/vgpuctl/lock", os.O_RDWR)
        began = time.monotonic()
        fcntl.flock(file, fcntl.LOCK_EX)
        waits.append(time.monotonic() - began)
        os.close(file)
        time.sleep(0.02)

others = [threading.Thread(target=f) for f in (make, look, wait)]
for thread in others:
    thread.start()
began = time.monotonic()
starts = [subprocess.Popen(["virsh", "start", f"vm-{n}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
          for n in range(1, 7)]
answers = [(s.communicate()[0], s.returncode) for s in starts]
took = time.monotonic() - began
done.set()
for thread in others:
    thread.join()
print(json.dumps({"answers": answers, "waits": waits, "took": took, **loops}))
"""


@pytest.mark.deadline(900)
def test_six_plain_starts_at_once_get_their_vgpu_without_long_waits(lab: Lab) -> None:
    lab.run(INSTALLED)
    put_gpu(lab, "mdev-pf")
    use_defaults(lab)
    must(lab, "install-host", "--restart-libvirt")
    with bystanders(lab):
        must(lab, "create-vm", "vm-{}", "--count", "6", "--profile", "A100-4C", "--no-start")
        # The state after a host reboot: neither devices nor claims exist.
        lab.run("cd /run/vgpuctl/claims && for c in *; do echo 1 > /sys/bus/mdev/devices/$c/remove; rm $c; done")
        result = json.loads(lab.run(["python3", "-c", STORM], timeout=700).stdout)
        assert [status for _, status in result["answers"]] == [0] * 6, result["answers"]
        assert result["failed"] == []
        assert result["made"]
        assert result["listed"]
        longest = max(result["waits"])
        print(
            f"6 starts in {result['took']:.1f} s, emulated; {result['made']} VMs made, {result['listed']} lists; "
            f"longest of {len(result['waits'])} waits for the lock {longest:.3f} s"
        )
        assert len(result["waits"]) > 6, "who waits for the lock has its turn between the starts"
        vms = must(lab, "list-vms")
        ours = {vm["name"]: vm["vgpus"] for vm in vms if vm["ownership"] == "managed"}
        assert sorted(ours) == [f"vm-{n}" for n in range(1, 7)]
        assert all(v["present"] for vgpus in ours.values() for v in vgpus)
        assert len({v["carrier"] for vgpus in ours.values() for v in vgpus}) == 6
        assert must(lab, "reconcile-host", "--dry-run")["findings"] == []
