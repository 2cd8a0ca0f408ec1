"""The host agent as a service: a user without sudo, guests that crash, kill -9, libvirtd that goes away, a boot."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.lab.machine import Lab
from tests.lab.outside import VM_LIFE, create_watch_delete
from tests.lab.test_after_boot import INSTALLED
from tests.lab.test_events import UNITS
from tests.lab.vgpuctl_in import MEMBERS_MAY, leftovers, must, put_gpu, use_defaults

ADA = ("runuser", "-u", "ada", "--", "vgpuctl", "--json", "--yes")
SERVES = "systemctl is-active --quiet vgpuctl-agent.service"
EVENTS = "/root/events"
FOLLOW = f"setsid {' '.join(ADA)} events --follow --since 0 > {EVENTS} 2>&1 < /dev/null &"
BOOT_STARTS = "/var/lib/vgpuctl-agent/boot-starts.json"
OPERATIONS_HAVE_ENDED = "! ls /run/vgpuctl/operations 2>/dev/null | grep -q ."

# Kills the agent as soon as the domain of the VM that a member creates is defined; prints what the member gets.
KILL = r"""
import json, os, signal, subprocess, sys, time
child = subprocess.Popen([*sys.argv[1:], "create-vm", "vm-3", "--profile", "A100-4C"], stdout=subprocess.PIPE)
deadline = time.monotonic() + 120
while not os.path.exists("/etc/libvirt/qemu/vm-3.xml"):
    if time.monotonic() > deadline or child.poll() is not None:
        sys.exit(f"no domain was defined: {child.poll()}")
with open("/run/vgpuctl-agent/agent") as file:
    os.kill(int(file.read().split()[1]), signal.SIGKILL)
answer, _ = child.communicate()
print(json.dumps(json.loads(answer)["error"]))
"""


def serve(lab: Lab) -> None:
    """Enable the agent as an admin does, and let the user ada in, who follows the events."""
    lab.run(INSTALLED)
    put_gpu(lab, "mdev-pf")
    use_defaults(lab, MEMBERS_MAY)
    must(lab, "install-host", "--agent")
    lab.run("useradd ada && usermod -aG vgpuctl ada")
    lab.wait_until(SERVES)
    lab.run(FOLLOW)
    wait_for(lab, "agent-started")


@pytest.fixture
def served(lab: Lab) -> Lab:
    """A host with one GPU whose agent runs."""
    lab.at("agent", serve)
    return lab


def ada(lab: Lab, *words: str) -> Any:
    """Run a command as a user who is not root, and return its data."""
    return json.loads(lab.run([*ADA, *words], timeout=240).stdout)["data"]


def wait_for(lab: Lab, event_type: str) -> None:
    """Wait until ada is shown an event of a type."""
    lab.wait_until(f"""grep -q '"type": "{event_type}"' {EVENTS}""", timeout=90)


def vm_events(documents: Iterable[dict[str, Any]]) -> list[tuple[str, str]]:
    """What ada is shown of the lives of VMs."""
    return [(event["type"], event["vm"]) for event in documents if event["type"] in VM_LIFE]


@pytest.mark.quick
@pytest.mark.deadline(600)
def test_a_member_needs_no_sudo_and_a_killed_agent_leaves_nothing(served: Lab) -> None:
    lab = served
    before = leftovers(lab)
    made = ada(lab, "create-vm", "vm-1", "--profile", "A100-4C")
    assert (made["account"], made["state"], made["vgpus"][0]["present"]) == ("ada", "running", True)
    number = lab.run("virsh domid vm-1").stdout
    ada(lab, "create-vm", "vm-2", "--profile", "A100-4C")

    lab.run("kill -9 $(cat /run/libvirt/qemu/vm-2.pid)")
    wait_for(lab, "vm-crashed")
    lab.run("virsh undefine vm-2 --remove-all-storage --nvram")
    assert [(vm["name"], vm["state"]) for vm in ada(lab, "list-vms")] == [("vm-1", "running")]
    wait_for(lab, "leak-found")
    answer = json.loads(lab.run(["python3", "-c", KILL, *ADA], timeout=180).stdout)
    assert answer["code"] == "answer-lost"
    lines = lab.run(f"grep '^{{\"id\"' {EVENTS}").stdout.splitlines()
    assert vm_events(map(json.loads, lines)) == [
        ("vm-started", "vm-1"),
        ("vm-started", "vm-2"),
        ("vm-crashed", "vm-2"),
        ("vm-undefined", "vm-2"),
    ]

    lab.wait_until(f"{SERVES} && [ ! -e /etc/libvirt/qemu/vm-3.xml ] && {OPERATIONS_HAVE_ENDED}", timeout=120)
    assert lab.run("virsh domid vm-1").stdout == number
    lab.run("virsh destroy vm-1")
    ada(lab, "delete-vm", "vm-1")
    assert vm_events(ada(lab, "events"))[-2:] == [("vm-stopped", "vm-1"), ("vm-undefined", "vm-1")]
    assert leftovers(lab) == before


@pytest.mark.deadline(600)
def test_libvirtd_goes_and_returns_and_a_vm_is_started_after_a_boot(served: Lab) -> None:
    lab = served
    ada(lab, "create-vm", "vm-1", "--profile", "A100-4C", "--no-start")
    ada(lab, "set-vm", "vm-1", "--autostart", "enabled")
    lab.run(f"systemctl stop {UNITS}")
    wait_for(lab, "libvirt-lost")
    lab.run("systemctl start libvirtd.socket libvirtd.service")
    wait_for(lab, "libvirt-back")

    lab.run("systemctl stop vgpuctl-agent.socket vgpuctl-agent.service", timeout=200)
    assert json.loads(lab.read(BOOT_STARTS)) == {"boot_id": lab.boot_id(), "pending": []}
    lab.run(f"sed -i 's/{lab.boot_id()}/of-the-boot-before/' {BOOT_STARTS}")
    lab.run("systemctl start vgpuctl-agent.service")
    lab.wait_until("virsh domstate vm-1 | grep -qx running", timeout=120)
    lab.wait_until(f"grep -q '{lab.boot_id()}.*\\[\\]' {BOOT_STARTS}")


@pytest.mark.quick
@pytest.mark.deadline(600)
def test_a_member_on_another_machine_needs_a_key_that_reaches_the_agent_alone(served: Lab, tmp_path: Path) -> None:
    create_watch_delete(served, tmp_path, "vm-1")
