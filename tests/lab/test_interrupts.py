"""Ctrl-C during create-vm: the first undoes everything; a second lists the leftovers, and reconcile removes them."""

from __future__ import annotations

import json

import pytest

from tests.lab.bystanders import bystanders
from tests.lab.machine import Lab
from tests.lab.vgpuctl_in import leftovers, must, put_gpu, use_defaults

# Sends SIGINT as soon as the domain is defined. With "twice" it sends another one when the command prints "undoing".
INTERRUPT = r"""
import json, os, signal, subprocess, sys, time
child = subprocess.Popen(["vgpuctl", "--yes", "create-vm", "vm-1", "--profile", "A100-4C"], stderr=subprocess.PIPE,
                         stdout=subprocess.DEVNULL, text=True)
end = time.monotonic() + 120
while not os.path.exists("/etc/libvirt/qemu/vm-1.xml"):
    if time.monotonic() > end or child.poll() is not None:
        sys.exit(f"no domain was defined: {child.poll()}")
child.send_signal(signal.SIGINT)
said = []
for line in child.stderr:
    said.append(line)
    if sys.argv[1] == "twice" and line.startswith("undoing"):
        child.send_signal(signal.SIGINT)
        said += child.stderr.readlines()
        break
print(json.dumps([child.wait(), "".join(said)]))
"""


@pytest.mark.deadline(400)
def test_ctrl_c_undoes_and_twice_says_what_is_left_for_reconcile(lab: Lab) -> None:
    put_gpu(lab, "vendor-vf")
    use_defaults(lab)
    with bystanders(lab):
        before = leftovers(lab)
        status, output = json.loads(lab.run(["python3", "-c", INTERRUPT, "once"], timeout=200).stdout)
        assert status == 130, output
        assert "undone completely" in output
        assert leftovers(lab) == before, output
        assert must(lab, "reconcile-host", "--dry-run")["findings"] == []
        status, output = json.loads(lab.run(["python3", "-c", INTERRUPT, "twice"], timeout=200).stdout)
        assert status == 130, output
        assert "left" in output
        assert "vgpuctl reconcile-host" in output
        assert leftovers(lab) != before, f"nothing was left, so the second signal stopped nothing: {output}"
        must(lab, "reconcile-host")
        assert leftovers(lab) == before
        assert must(lab, "reconcile-host")["findings"] == []
