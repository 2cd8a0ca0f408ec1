# SPDX-License-Identifier: Apache-2.0
"""VMs of other programs with something of a GPU, and the calls that adopt them and let them go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.hosts import (
    SimulatedHost,
    context,
    open_sim_host,
    operation,
)
from tests.meanwhile import unchanged, with_calls
from tests.reserving_vms import vm_of
from vgpuctl.errors import (
    VgpuctlError,
)
from vgpuctl.host.files import HostFiles
from vgpuctl.model.outcome import Outcome
from vgpuctl.operations.adopt import adopt, release
from vgpuctl.operations.attach import detach
from vgpuctl.ports.host import Host

KINDS = {
    "vendor-vf": ("{model: A100, vfs: {total: 4, enabled: 4}, vgpus: [{profile: A100-4C, vm: desk%s}]}", "A100-4C"),
    "mdev-pf": ("{model: T4, vgpus: [{profile: T4-4Q, vm: desk%s}]}", "T4-4Q"),
    "mdev-vf": ("{model: A16, vfs: {total: 4, enabled: 4}, vgpus: [{profile: A16-4Q, vm: desk%s}]}", "A16-4Q"),
    "sriov-vf": ("{model: Flex 170, vfs: {enabled: 4}, vgpus: [{vm: desk%s}]}", None),
    "passthrough": ("{model: L40S, vfs: {enabled: 0}, backend: passthrough, vgpus: [{vm: desk%s}]}", None),
}
"""For each backend a GPU on which the VM `desk` of another program has something, and its profile."""
MDEVS = ("mdev-pf", "mdev-vf")
CREATES = ("vendor-vf", *MDEVS)
UUID = "11111111-2222-4333-8444-555555555555"
OTHER_UUID = "11111111-2222-4333-8444-666666666666"
MDEV = "<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source><address uuid='%s'/></source></hostdev>"
FUNCTION = (
    "<hostdev mode='subsystem' type='pci' managed='%s'><source>"
    "<address domain='0x%s' bus='0x%s' slot='0x%s' function='0x%s'/></source></hostdev>"
)
DOMAIN = """<domain type='kvm'><name>%s</name><uuid>%s</uuid><memory unit='MiB'>64</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type></os><devices>%s
<controller type='pci' index='0' model='pcie-root'/><controller type='pci' index='1' model='pcie-root-port'/>
<controller type='usb' model='none'/><memballoon model='none'/></devices></domain>"""


def text_of(kind: str, *, running: bool = True) -> str:
    """Return the scenario of a host with such a VM."""
    kernel = 'kernel: "5.14.0"\n' if kind == "mdev-vf" else ""
    return f"version: 1\n{kernel}gpus:\n  - {KINDS[kind][0] % ('' if running else ', running: false')}\n"


def host_with(directory: Path, kind: str, *, running: bool = True) -> SimulatedHost:
    """Return a host with such a VM, running or off."""
    return open_sim_host(directory, text=text_of(kind, running=running))


def take(host: SimulatedHost, name: str = "desk", *, dry_run: bool = False, ports: Host | None = None) -> Outcome:
    """Run adopt."""
    with operation(ports or host.ports):
        return adopt(ports or host.ports, context(dry_run=dry_run), name)


def let_go(host: SimulatedHost, name: str = "desk", *, dry_run: bool = False) -> Outcome:
    """Run adopt --release."""
    with operation(host.ports):
        return release(host.ports, context(dry_run=dry_run), name)


def drop(host: SimulatedHost, *carriers: str) -> Outcome:
    """Run detach-vgpu."""
    with operation(host.ports):
        return detach(host.ports, context(wait_seconds=5), "desk", carriers)


def carrier_of(host: SimulatedHost, name: str = "desk") -> str:
    """Return what the VM's only device of the host is."""
    (hostdev,) = vm_of(host, name).hostdevs
    return hostdev.carrier


def function_xml(address: str, managed: str = "no") -> str:
    """Return the element that gives a PCI function to a domain."""
    domain, bus, rest = address.split(":")
    return FUNCTION % (managed, domain, bus, *rest.split("."))


def define(host: SimulatedHost, *devices: str, name: str = "desk", uuid: str = UUID) -> None:
    """Define a VM as another program does."""
    host.ports.hypervisor.define(DOMAIN % (name, uuid, "".join(devices)))


def refused(host: SimulatedHost, kind: type[VgpuctlError], match: str, name: str = "desk") -> VgpuctlError:
    """Check that adopting is refused, in a dry run too, and that nothing is written; return the error."""
    for dry_run in (True, False):
        with unchanged(host), pytest.raises(kind, match=match) as caught:
            take(host, name, dry_run=dry_run)
    return caught.value


def with_etc(host: SimulatedHost, root: Path, files: dict[str, str]) -> SimulatedHost:
    """Return the host with these files of mdevctl, which a real reader reads below `root`."""
    for name, text in files.items():
        path = root / f"etc/mdevctl.d/{name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    real, own = HostFiles(str(root), lock_held=lambda: False), host.ports.sysfs

    def files_of(path: str) -> Any:
        return real if path.startswith("/etc/mdevctl.d") else own

    ports = with_calls(
        host.ports, "sysfs", read=lambda p: files_of(p).read(p), listdir=lambda p: files_of(p).listdir(p)
    )
    return SimulatedHost(ports, host.sim, host.directory, host.scenario)
