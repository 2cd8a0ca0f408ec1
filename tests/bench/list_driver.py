# SPDX-License-Identifier: Apache-2.0
"""Runs on a host with libvirt and the host agent: defines 500 VMs, or times what lists them.

`python3 list_driver.py define`: stdin has the XML of a VM with the name NAME.
`python3 list_driver.py time RUNS`: the output has the seconds of each way in each run; the ways take turns. `virsh` and
`vgpuctl` are whole processes, `agent` is one request to the agent from this process, and `libvirt` is what virsh asks
libvirt for, on a new connection.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from functools import partial

VMS = 500
AGENT = "/run/vgpuctl-agent/agent.sock"
NAME = r"\bvm-\d{3}\b"
UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
Ways = dict[str, Callable[[], object]]


def compare(runs: int) -> None:
    """Check that each way lists all VMs, and print the times as JSON."""
    import libvirt

    def run(*argv: str) -> str:
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    def ask_agent() -> bytes:
        connection = http.client.HTTPConnection("agent")
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.connect(AGENT)
        connection.request("GET", "/v1/list-vms")
        text = connection.getresponse().read()
        connection.close()
        return text

    def ask_libvirt() -> list[tuple[str, int]]:
        connection = libvirt.openReadOnly("qemu:///system")
        answer = [(domain.name(), domain.state()[0]) for domain in connection.listAllDomains()]
        connection.close()
        return answer

    ways: Ways = {
        "virsh": lambda: run("virsh", "list", "--all"),
        "vgpuctl": lambda: run("vgpuctl", "--host", f"agent:{AGENT}", "list-vms"),
        "agent": ask_agent,
        "libvirt": ask_libvirt,
    }
    listed = {name: len(set(re.findall(NAME, str(way())))) for name, way in ways.items()}  # this run also warms up
    assert set(listed.values()) == {VMS}, listed
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(runs):
        for name in list(ways)[:: -1 if number % 2 else 1]:
            started = time.perf_counter()
            ways[name]()
            times[name].append(time.perf_counter() - started)
    print(json.dumps(times))


def define() -> None:
    """Define VMs that differ in their names and in every UUID."""
    import libvirt

    xml, connection = sys.stdin.read(), libvirt.open("qemu:///system")
    for number in range(VMS):
        renew = partial(new_uuid, number)
        connection.defineXMLFlags(re.sub(UUID, renew, xml.replace("NAME", f"vm-{number:03}")), 0)


def new_uuid(number: int, old: re.Match[str]) -> str:
    """Return the UUID that the n-th VM has instead."""
    return str(uuid.uuid5(uuid.UUID(old[0]), str(number)))


if __name__ == "__main__":
    define() if sys.argv[1] == "define" else compare(int(sys.argv[2]))
