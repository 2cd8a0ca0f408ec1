"""A signal while a command works on several VMs, on a real libvirt."""

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
