"""Runs inside the lab: creates VMs in one of several ways; prints the total time and libvirt's own `create` time.

`python3 in_lab.py WAY JOB`: JOB is a JSON file; the output is one JSON object. Each way runs in a new Python process
that imports libvirt and times the calls that start a domain. Each way must find out for itself what it needs. Only the
bare script gets everything from the job, including the finished XML.
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
    """Do what an admin's short script does: create a linked clone, define the domain, write to sysfs, start it."""
    import libvirt

    connect = libvirt.open("qemu:///system")
    connect.storagePoolLookupByName("default").createXML(job["volume_xml"])
    domain = connect.defineXMLFlags(job["xml"], libvirt.VIR_DOMAIN_DEFINE_VALIDATE)
    Path(job["create"]).write_text(job["mdev"])
    domain.create()
    return 0


def virt_install(job: dict[str, str]) -> int:
    """Create the mdev; then run virt-install with a linked clone."""
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
    """Run vgpuctl, with the defaults of host.yaml."""
    sys.path[:0] = ["/opt/vgpuctl/src", "/opt/vgpuctl/lib"]
    from vgpuctl.cli.entry import main

    sys.argv = ["vgpuctl", "create-vm", job["name"], "--profile", job["profile"]]
    return main()


def bare_many(job: dict[str, Any]) -> int:
    """Do the same as `bare` for several VMs, four at a time on one connection."""
    from concurrent.futures import ThreadPoolExecutor

    import libvirt

    connect = libvirt.open("qemu:///system")
    pool = connect.storagePoolLookupByName("default")

    def create_one(vm: dict[str, str]) -> None:
        pool.createXML(vm["volume_xml"])
        domain = connect.defineXMLFlags(vm["xml"], libvirt.VIR_DOMAIN_DEFINE_VALIDATE)
        Path(vm["create"]).write_text(vm["mdev"])
        domain.create()

    with ThreadPoolExecutor(AT_A_TIME) as executor:
        list(executor.map(create_one, job["vms"]))
    return 0


def vgpuctl_many(job: dict[str, Any]) -> int:
    """Run vgpuctl with --count."""
    sys.path[:0] = ["/opt/vgpuctl/src", "/opt/vgpuctl/lib"]
    from vgpuctl.cli.entry import main

    count, profile = str(len(job["vms"])), job["vms"][0]["profile"]
    sys.argv = ["vgpuctl", "create-vm", job["pattern"], "--count", count, "--profile", profile]
    sys.argv += ["--parallel", str(AT_A_TIME)]
    return main()


def watched(way: Callable[[dict[str, Any]], int], job: dict[str, Any], seconds_file: str) -> int:
    """Create the VMs. When this process ends for any reason, write the seconds spent in libvirt's create to a file."""
    import libvirt

    spent = [0.0]
    for owner, name in (
        (libvirt.virDomain, "create"),
        (libvirt.virDomain, "createWithFlags"),
        (libvirt.virConnect, "createXML"),
    ):
        setattr(owner, name, _timed(getattr(owner, name), spent))
    atexit.register(lambda: Path(seconds_file).write_text(str(spent[0])))
    return way(job)


def _timed(call: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def timed(*arguments: Any, **keywords: Any) -> Any:
        started = time.perf_counter()
        try:
            return call(*arguments, **keywords)
        finally:
            spent[0] += time.perf_counter() - started

    return timed


def main(way: str, job_file: str, seconds_file: str | None = None) -> int:
    """Start a child that creates the VMs, and print the times. With a third argument, this process is the child."""
    if seconds_file is not None:
        functions: dict[str, Callable[[dict[str, Any]], int]] = {
            "vgpuctl": vgpuctl,
            "bare": bare,
            "virt-install": virt_install,
            "vgpuctl-many": vgpuctl_many,
            "bare-many": bare_many,
        }
        return watched(functions[way], json.loads(Path(job_file).read_text()), seconds_file)
    file = f"{job_file}.seconds"
    started = time.perf_counter()
    child = subprocess.run([sys.executable, __file__, way, job_file, file], capture_output=True, text=True, check=False)
    elapsed = time.perf_counter() - started
    if child.returncode:
        sys.exit(f"{way}: {child.stdout}{child.stderr}")
    print(json.dumps({"whole": elapsed, "create": float(Path(file).read_text())}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
