"""Runs inside the lab: makes VMs in one of several ways and tells how long it took, and libvirt's own create of it.

`python3 in_lab.py WAY JOB`: JOB is a JSON file; the answer is one JSON object. Each way is a fresh Python that
imports libvirt, with a watch on the calls that start a domain. No way is told anything that it would have to find
out otherwise, but for the bare script: everything it needs is in the job, its XML ready made.
"""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BASE = "/var/lib/libvirt/images/tiny.qcow2"
WAYS = ("vgpuctl", "bare", "virt-install")
MANY = ("vgpuctl-many", "bare-many")
AT_A_TIME = 4


def bare(job: dict[str, str]) -> int:
    """What a short script of an admin does: a linked clone, a definition, the sysfs write, the start."""
    import libvirt

    connect = libvirt.open("qemu:///system")
    connect.storagePoolLookupByName("default").createXML(job["volume_xml"])
    domain = connect.defineXMLFlags(job["xml"], libvirt.VIR_DOMAIN_DEFINE_VALIDATE)
    Path(job["create"]).write_text(job["mdev"])
    domain.create()
    return 0


def virt_install(job: dict[str, str]) -> int:
    """virt-install with a linked clone, and the mdev made just before it."""
    Path(job["create"]).write_text(job["mdev"])
    sys.path.insert(0, "/usr/share/virt-manager")
    hostdev = ("@mode=subsystem", "@type=mdev", "@model=vfio-pci", f"source/address/@uuid={job['mdev']}")
    sys.argv = [
        "virt-install",
        *("--connect", "qemu:///system", "--import", "--noautoconsole", "--osinfo", "detect=off,require=off"),
        *("--name", job["name"], "--memory", "192", "--vcpus", "1", "--machine", "q35", "--cpu", "host-passthrough"),
        *("--network", "network=default", "--graphics", "vnc", "--memballoon", "none"),
        *("--disk", f"path={job['disk']},size=1,format=qcow2,bus=virtio,backing_store={BASE},backing_format=qcow2"),
        *(word for part in hostdev for word in ("--xml", f"./devices/hostdev/{part}")),
    ]
    from virtinst import virtinstall

    return int(virtinstall.runcli() or 0)


def vgpuctl(job: dict[str, str]) -> int:
    """The command, with the defaults of host.yaml."""
    sys.path[:0] = ["/opt/vgpuctl/src", "/opt/vgpuctl/lib"]
    from vgpuctl.cli.entry import main

    sys.argv = ["vgpuctl", "create-vm", job["name"], "--profile", job["profile"]]
    return main()


def bare_many(job: dict[str, Any]) -> int:
    """The same short script for several VMs, four at a time on one connection."""
    from concurrent.futures import ThreadPoolExecutor

    import libvirt

    connect = libvirt.open("qemu:///system")
    pool = connect.storagePoolLookupByName("default")

    def one(vm: dict[str, str]) -> None:
        pool.createXML(vm["volume_xml"])
        domain = connect.defineXMLFlags(vm["xml"], libvirt.VIR_DOMAIN_DEFINE_VALIDATE)
        Path(vm["create"]).write_text(vm["mdev"])
        domain.create()

    with ThreadPoolExecutor(AT_A_TIME) as crew:
        list(crew.map(one, job["vms"]))
    return 0


def vgpuctl_many(job: dict[str, Any]) -> int:
    """The command with --count."""
    sys.path[:0] = ["/opt/vgpuctl/src", "/opt/vgpuctl/lib"]
    from vgpuctl.cli.entry import main

    count, profile = str(len(job["vms"])), job["vms"][0]["profile"]
    sys.argv = ["vgpuctl", "create-vm", job["pattern"], "--count", count, "--profile", profile]
    sys.argv += ["--parallel", str(AT_A_TIME)]
    return main()


def watched(way: Callable[[dict[str, Any]], int], job: dict[str, Any], answer: str) -> int:
    """Do it, and write down the seconds spent in libvirt's create when this process ends, however it ends."""
    import libvirt

    spent = [0.0]
    for owner, name in (
        (libvirt.virDomain, "create"),
        (libvirt.virDomain, "createWithFlags"),
        (libvirt.virConnect, "createXML"),
    ):
        setattr(owner, name, _timed(getattr(owner, name), spent))
    atexit.register(lambda: Path(answer).write_text(str(spent[0])))
    return way(job)


def _timed(call: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def timed(*arguments: Any, **named: Any) -> Any:
        begun = time.perf_counter()
        try:
            return call(*arguments, **named)
        finally:
            spent[0] += time.perf_counter() - begun

    return timed


def main(way: str, job_file: str, answer: str | None = None) -> int:
    """Start a child that does it and print the times; with an answer file this is the child."""
    if answer is not None:
        doing: dict[str, Callable[[dict[str, Any]], int]] = {
            "vgpuctl": vgpuctl,
            "bare": bare,
            "virt-install": virt_install,
            "vgpuctl-many": vgpuctl_many,
            "bare-many": bare_many,
        }
        return watched(doing[way], json.loads(Path(job_file).read_text()), answer)
    file = f"{job_file}.seconds"
    begun = time.perf_counter()
    ran = subprocess.run([sys.executable, __file__, way, job_file, file], capture_output=True, text=True, check=False)
    took = time.perf_counter() - begun
    if ran.returncode:
        sys.exit(f"{way}: {ran.stdout}{ran.stderr}")
    print(json.dumps({"whole": took, "create": float(Path(file).read_text())}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
