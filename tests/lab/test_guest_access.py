"""A guest's serial console and its reboot, on a real libvirt, QEMU, kernel and journal."""

from __future__ import annotations

import json

import pytest

from tests.lab.machine import Lab
from tests.lab.test_saved import guest_boot
from tests.lab.vgpuctl_in import leftovers, must, put_gpu, use_defaults

# Runs inside L2: opens consoles on pseudo-terminals and prints what came of them.
CONSOLES = r"""
import json, os, pty, re, select, subprocess, sys, termios, time
DEADLINE = time.monotonic() + 420
results = {}

class Console:
    def __init__(self, *more):
        self.master, self.slave = pty.openpty()
        self.mode = termios.tcgetattr(self.slave)
        streams = {name: self.slave for name in ("stdin", "stdout", "stderr")}
        self.process = subprocess.Popen(["vgpuctl", "console", "vm-1", *more], **streams)
        self.seen = b""

    def read(self, pattern):
        while not re.search(pattern, self.seen, re.S):
            left = DEADLINE - time.monotonic()
            if left <= 0 or not select.select([self.master], [], [], left)[0]:
                sys.exit(f"{pattern} did not come: {self.seen[-3000:]}")
            self.seen += os.read(self.master, 65536)

    def ask(self):
        while b"answer-42" not in self.seen:
            os.write(self.master, b"\recho answer-$((6*7))\r")
            until = time.monotonic() + 5
            while time.monotonic() < until and b"answer-42" not in self.seen:
                if select.select([self.master], [], [], 0.5)[0]:
                    self.seen += os.read(self.master, 65536)
            if time.monotonic() > DEADLINE:
                sys.exit(f"no answer: {self.seen[-3000:]}")

    def end(self):
        status = self.process.wait(60)
        return [status, termios.tcgetattr(self.slave) == self.mode]

first = Console()
first.read(b"connected to vm-1")
first.ask()
refused = subprocess.run(["vgpuctl", "console", "vm-1"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
results["refused"] = [refused.returncode, refused.stderr]
second = Console("--force")
second.read(b"connected to vm-1")
results["taken"] = first.end()
second.ask()
os.write(second.master, b"\x1d")
results["left"] = second.end()
third = Console()
third.read(b"connected to vm-1")
third.ask()
third.process.terminate()
results["stopped"] = third.end()
fourth = Console()
fourth.read(b"connected to vm-1")
subprocess.run(["systemctl", "stop", "libvirtd.socket", "libvirtd-ro.socket", "libvirtd-admin.socket", "libvirtd"])
results["libvirt gone"] = fourth.end()
subprocess.run(["systemctl", "start", "libvirtd.socket", "libvirtd"], check=True)
fifth = Console()
fifth.read(b"connected to vm-1")
fifth.ask()
subprocess.run(["virsh", "destroy", "vm-1"], check=True, stdout=subprocess.DEVNULL)
results["off"] = fifth.end()
print(json.dumps(results))
"""


@pytest.mark.deadline(900)
def test_a_console_reaches_the_guest_and_always_gives_the_terminal_back(lab: Lab) -> None:
    put_gpu(lab, "mdev-pf")
    use_defaults(lab)
    before = leftovers(lab)
    must(lab, "create-vm", "vm-1", "--profile", "A100-4C")
    results = json.loads(lab.run(["python3", "-c", CONSOLES], timeout=600).stdout)
    status, text = results.pop("refused")
    assert status == 3, text
    assert "another session has the console of vm-1" in text
    assert results == {
        "taken": [3, True], "left": [0, True], "stopped": [143, True], "libvirt gone": [6, True], "off": [0, True],
    }  # fmt: skip
    must(lab, "delete-vm", "vm-1")
    assert leftovers(lab) == before


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
