"""The agent's events on a real host whose libvirtd is killed, stopped and hangs while guests start and crash."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.lab.machine import Lab
from tests.lab.vgpuctl_in import must, put_gpu, use_defaults

# Prints each event as a line of JSON, until it is killed.
FOLLOW = r"""
import os, sys
sys.path[:0] = ["/opt/vgpuctl/src", "/opt/vgpuctl/lib"]
from vgpuctl import library
from vgpuctl.agent.event_sources import EventSources
from vgpuctl.agent.events import EventLog
from vgpuctl.agent.sinks import encode_event
host = library.open_ports()
log = EventLog(host.clock)
sources = EventSources(host, log, on_change=lambda: open("/root/listed", "w").close())
sources.start()
log.start()
open("/root/follow.pid", "w").write(str(os.getpid()))
last_id = f"{log.boot}-0"
with open("/root/events", "wb", buffering=0) as file:
    while True:
        for event in log.wait_after(last_id, 5):
            file.write(encode_event(event))
            last_id = event.id
"""
UNITS = "libvirtd.socket libvirtd-ro.socket libvirtd-admin.socket libvirtd.service"
KILL_QEMU = "kill -9 $(cat /run/libvirt/qemu/vm-1.pid)"


@contextmanager
def followed(lab: Lab) -> Iterator[None]:
    """Follow the events in the background; the first list has come when the block begins."""
    lab.run("cat > /root/follow.py", stdin=FOLLOW)
    follower = lab.start_command(["python3", "/root/follow.py"])
    try:
        wait_for(lab, "agent-started", 1)
        lab.wait_until("[ -e /root/listed ]")
        yield
    finally:
        lab.run("kill $(cat /root/follow.pid)", check=False)
        follower.wait(30)


def wait_for(lab: Lab, event_type: str, count: int) -> None:
    lab.wait_until(f"""[ "$(grep -c '"type":"{event_type}"' /root/events)" -ge {count} ]""", timeout=90)


def types(lab: Lab) -> list[str]:
    """The types of all events that a VM's life and libvirt's have made, in their order."""
    events = [json.loads(line) for line in lab.read("/root/events").splitlines()]
    return [event["type"] for event in events if event["type"] not in ("agent-started", "vm-defined")]


@pytest.mark.deadline(900)
def test_events_go_on_after_libvirtd_was_killed_stopped_and_hung(lab: Lab) -> None:
    put_gpu(lab, "mdev-pf")
    use_defaults(lab)
    must(lab, "create-vm", "vm-1", "--profile", "A100-4C", "--no-start")
    with followed(lab):
        must(lab, "start-vm", "vm-1")
        wait_for(lab, "vm-started", 1)
        lab.run(KILL_QEMU)
        wait_for(lab, "vm-crashed", 1)

        lab.run("systemctl kill -s KILL libvirtd.service")
        wait_for(lab, "libvirt-back", 1)
        must(lab, "start-vm", "vm-1")
        wait_for(lab, "vm-started", 2)

        lab.run(f"systemctl stop {UNITS}")
        wait_for(lab, "libvirt-lost", 2)
        lab.run(f"{KILL_QEMU} && systemctl start libvirtd.socket libvirtd.service")
        wait_for(lab, "vm-crashed", 2)

        lab.run("systemctl kill -s STOP libvirtd.service")
        wait_for(lab, "libvirt-lost", 3)
        lab.run("systemctl kill -s CONT libvirtd.service")
        wait_for(lab, "libvirt-back", 3)
        must(lab, "start-vm", "vm-1")
        lab.run("virsh destroy vm-1")
        wait_for(lab, "vm-stopped", 1)
        must(lab, "delete-vm", "vm-1")
        wait_for(lab, "vm-undefined", 1)
    away = ["libvirt-lost", "libvirt-back"]
    assert types(lab) == [
        *("vm-started", "vm-crashed", *away),
        *("vm-started", *away, "vm-crashed"),
        *(*away, "vm-started", "vm-stopped", "vm-undefined"),
    ]
