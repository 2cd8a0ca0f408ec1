"""On a real libvirt, another program starts a VM while vgpuctl still creates it, as soon as its device exists."""

from __future__ import annotations

import json

import pytest

from tests.lab.machine import Lab
from tests.lab.vgpuctl_in import must, put_gpu, use_defaults

# From the moment the VM is defined, another process tries to start it until libvirt accepts a start.
RACE = r"""
import json, os, subprocess, sys, time
child = subprocess.Popen(["vgpuctl", "--json", "create-vm", "vm-1", "--profile", "A100-4C"], stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, text=True)
deadline = time.monotonic() + 120
while not os.path.exists("/etc/libvirt/qemu/vm-1.xml"):
    if time.monotonic() > deadline or child.poll() is not None:
        sys.exit(f"no domain was defined: {child.poll()}")
import libvirt
libvirt.registerErrorHandler(lambda *_: None, None)
domain, first = libvirt.open("qemu:///system").lookupByName("vm-1"), False
while child.poll() is None and not first:
    try:
        domain.create()
        first = True
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_OPERATION_INVALID:
            break
out = child.communicate()[0]
print(json.dumps([first, child.returncode, json.loads(out)]))
"""


@pytest.mark.deadline(400)
def test_a_vm_that_another_program_starts_during_create_vm_keeps_its_disk_and_is_ready(lab: Lab) -> None:
    put_gpu(lab, "vendor-vf")
    use_defaults(lab)
    first, status, document = json.loads(lab.run(["python3", "-c", RACE], timeout=300).stdout)
    assert status == 0, document
    assert (document["data"]["state"], document["data"]["name"]) == ("running", "vm-1")
    assert first == ("another program started VM vm-1" in document["warnings"])
    (disk,) = document["data"]["disks"]
    lab.run(["test", "-f", disk["path"]])
    assert must(lab, "reconcile-host", "--dry-run")["findings"] == []
    must(lab, "stop-vm", "vm-1", "--force")
    assert must(lab, "start-vm", "vm-1")["state"] == "running"
