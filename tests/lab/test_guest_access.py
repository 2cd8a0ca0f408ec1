"""A guest's reboot, on a real libvirt, QEMU, kernel and journal."""

from __future__ import annotations

import pytest

from tests.lab.machine import Lab
from tests.lab.test_saved import guest_boot
from tests.lab.vgpuctl_in import must, put_gpu, use_defaults


@pytest.mark.deadline(900)
def test_a_guest_reboots_when_asked_and_when_reset_and_the_journal_tells(lab: Lab) -> None:
    put_gpu(lab, "mdev-pf")
    use_defaults(lab)
    made = must(lab, "create-vm", "vm-1", "--profile", "A100-4C")
    number = lab.run("virsh domid vm-1").stdout
    boots = [guest_boot(lab, "vm-1")]
    for words, step in (((), "reboot VM vm-1"), (("--force",), "reset VM vm-1")):
        done = must(lab, "--wait", "120", "reboot-vm", "vm-1", *words)
        assert (done["state"], done["vgpus"], done["steps"]) == ("running", made["vgpus"], [step])
        boots.append(guest_boot(lab, "vm-1"))
    assert len(set(boots)) == 3
    assert lab.run("virsh domid vm-1").stdout == number, "it is the same QEMU"
    assert must(lab, "wait", "vm-1", "--for", "off", "--timeout", "1", status=75)["facts"]["vm"] == "vm-1"
    lab.run("virsh destroy vm-1")
    assert must(lab, "wait", "vm-1", "--for", "off")[0]["state"] == "stopped"
    assert must(lab, "reboot-vm", "vm-1", status=3)["hint"] == "vgpuctl start-vm vm-1"
    entries = must(lab, "log", "--vm", "vm-1")
    assert [e["command"] for e in entries] == ["create-vm", "reboot-vm", "reboot-vm", "reboot-vm"]
    assert [(e["user"], e["uid"]) for e in entries] == [("root", 0)] * 4
    assert entries[0]["gpus"] == [made["vgpus"][0]["gpu"]]
    assert [e["result"] for e in must(lab, "log", "--failed")] == ["refused"]
    must(lab, "delete-vm", "vm-1")
