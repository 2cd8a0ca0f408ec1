"""Signals and restarts while a command works on several VMs, or watches them, on a real libvirt."""

from __future__ import annotations

import json

import pytest

from tests.lab.machine import Lab
from tests.lab.vgpuctl_in import leftovers, must, put_gpu, use_defaults

NAMES = ["vm-1", "vm-2", "vm-3"]

# Sends SIGINT to a batch as soon as the first VM is done.
INTERRUPT = r"""
import json, signal, subprocess
child = subprocess.Popen(["vgpuctl", "start-vm", "vm-*", "--parallel", "1"], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True)
lines = []
for line in child.stderr:
    lines.append(line)
    if line.startswith("[1/3]"):
        child.send_signal(signal.SIGINT)
        break
lines += child.stderr.readlines()
print(json.dumps([child.wait(), child.stdout.read(), "".join(lines)]))
"""

# Restarts libvirtd under `list-vms --watch`, starts a VM then, and ends the watch with Ctrl-C when it has shown that.
WATCH = r"""
import json, signal, subprocess
watch = subprocess.Popen(["vgpuctl", "list-vms", "--watch=1", "-o", "json"], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True)
def read(wanted):
    for line in watch.stdout:
        document = json.loads(line)
        states = {vm["name"]: vm["state"] for vm in document.get("data") or []}
        if wanted(states):
            return states
    raise SystemExit(f"the watch ended: {watch.stderr.read()}")
seen = [read(lambda states: states)]
subprocess.run(["systemctl", "restart", "libvirtd"], check=True)
subprocess.run(["virsh", "start", "vm-1"], check=True, stdout=subprocess.DEVNULL)
seen.append(read(lambda states: states.get("vm-1") == "running"))
watch.send_signal(signal.SIGINT)
watch.stdout.read()
print(json.dumps([watch.wait(), seen]))
"""


@pytest.mark.deadline(600)
def test_ctrl_c_ends_a_batch_between_vms_and_the_same_command_continues(lab: Lab) -> None:
    put_gpu(lab, "mdev-pf")
    use_defaults(lab)
    before = leftovers(lab)
    must(lab, "create-vm", "vm-{}", "--count", "3", "--profile", "A100-4C", "--no-start")
    status, output, messages = json.loads(lab.run(["python3", "-c", INTERRUPT], timeout=300).stdout)
    assert status == 130, messages
    states = {vm["name"]: vm["state"] for vm in must(lab, "list-vms")}
    assert states["vm-1"] == "running"
    assert states["vm-3"] == "stopped", output + messages
    assert must(lab, "reconcile-host", "--dry-run")["findings"] == []
    done = must(lab, "start-vm", "vm-*")
    assert [(row["name"], row["ok"]) for row in done["targets"]] == [(name, True) for name in NAMES]
    must(lab, "delete-vm", "vm-*")
    assert leftovers(lab) == before


@pytest.mark.deadline(400)
def test_a_watch_goes_on_after_libvirtd_restarts(lab: Lab) -> None:
    put_gpu(lab, "mdev-pf")
    use_defaults(lab)
    must(lab, "create-vm", "vm-1", "--profile", "A100-4C", "--no-start")
    status, seen = json.loads(lab.run(["python3", "-c", WATCH], timeout=300).stdout)
    assert seen == [{"vm-1": "stopped"}, {"vm-1": "running"}]
    assert status == 0
