"""kill -9, 20 parallel callers, libvirtd down, a VM deleted without vgpuctl: no leaks, and no slot for two VMs."""

from __future__ import annotations

import json

import pytest

from tests.lab.machine import Lab
from tests.lab.vgpuctl_in import IGB, call, leftovers, must, put_gpu, put_gpu_with_16_vfs, use_defaults

# Starts all callers at once.
TWENTY = r"""
import json, os, subprocess, sys
words = ["vgpuctl", "--json", "--wait", "600", "create-vm", "--profile", "A100-4C", "--no-start"]
callers = [
    subprocess.Popen([*words, f"vm-{n}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for n in range(20)
]
results = [(c.communicate()[0], c.returncode) for c in callers]
print(json.dumps([[status, json.loads(out)] for out, status in results]))
"""

# Kills create-vm with SIGKILL as soon as its domain is defined: the claim and the domain exist, the rest does not yet.
KILL = r"""
import os, signal, subprocess, sys, time
child = subprocess.Popen(["vgpuctl", "create-vm", "vm-1", "--profile", "A100-4C"], stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL)
deadline = time.monotonic() + 120
while not os.path.exists("/etc/libvirt/qemu/vm-1.xml"):
    if time.monotonic() > deadline or child.poll() is not None:
        sys.exit(f"no domain was defined: {child.poll()}")
os.kill(child.pid, signal.SIGKILL)
sys.exit(0 if child.wait() == -signal.SIGKILL else "it was not killed")
"""


@pytest.mark.quick
@pytest.mark.deadline(600)
def test_what_kill_9_leaves_is_undone_by_reconcile(lab: Lab) -> None:
    put_gpu(lab, "vendor-vf")
    use_defaults(lab)
    before = leftovers(lab)
    lab.run(["python3", "-c", KILL], timeout=180)
    assert leftovers(lab) != before, "nothing was left: the crash came too early to prove anything"
    result = must(lab, "reconcile-host", "--dry-run")["findings"]
    assert [f["kind"] for f in result] == ["half-made"]
    must(lab, "reconcile-host")
    assert leftovers(lab) == before
    assert must(lab, "reconcile-host")["findings"] == []


@pytest.mark.deadline(1200)
def test_twenty_callers_for_ten_slots_make_exactly_ten_vms(lab: Lab) -> None:
    put_gpu_with_16_vfs(lab, "vendor-vf")
    use_defaults(lab)
    results = json.loads(lab.run(["python3", "-c", TWENTY], timeout=1100).stdout)
    outcomes = sorted((status, document["ok"] or document["error"]["code"]) for status, document in results)
    assert outcomes == [(0, True)] * 10 + [(4, "no-capacity")] * 10
    vms = must(lab, "list-vms")
    assert len(vms) == 10
    assert len({v["vgpus"][0]["carrier"] for v in vms}) == 10


def test_without_libvirtd_gpus_are_listed_and_create_vm_says_what_to_start(lab: Lab) -> None:
    put_gpu(lab, "vendor-vf")
    use_defaults(lab)
    lab.run("systemctl stop libvirtd.socket libvirtd-ro.socket libvirtd-admin.socket libvirtd.service")
    status, document = call(lab, "list-gpus")
    assert status == 0
    assert IGB in [g["address"] for g in document["data"]]
    assert any("libvirt" in w for w in document["warnings"])
    refused = must(lab, "create-vm", "vm-1", "--profile", "A100-4C", status=6)
    assert refused["code"] == "host-cannot"
    assert "systemctl start" in refused["hint"]


@pytest.mark.deadline(600)
def test_a_vm_undefined_with_virsh_leaves_a_leak_for_reconcile(lab: Lab) -> None:
    put_gpu(lab, "mdev-vf")
    use_defaults(lab)
    before = lab.run("ls /sys/bus/mdev/devices").stdout
    must(lab, "create-vm", "vm-1", "--profile", "A100-4C", "--no-start")
    lab.run("virsh undefine vm-1 --nvram")
    gpu = next(g for g in must(lab, "list-gpus") if g["address"] == IGB)
    assert [v["ownership"] for v in gpu["vgpus"]] == ["leaked"]
    must(lab, "reconcile-host")
    assert lab.run("ls /sys/bus/mdev/devices").stdout == before
    assert lab.run("ls /run/vgpuctl/claims").stdout == ""
