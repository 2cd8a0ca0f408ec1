# SPDX-License-Identifier: Apache-2.0
"""Shared texts and checks of the simulator's tests."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from vgpuctl.errors import LibvirtFailed
from vgpuctl.sim import SimHost

MakeHost = Callable[..., SimHost]

GPU = "0000:3b:00.0"
PCI = "/sys/bus/pci/devices"
PF = f"{PCI}/{GPU}"
MDEV = "/sys/bus/mdev/devices"


def vf(number: int, gpu: str = PF) -> str:
    return f"{gpu}/virtfn{number}"


def uuid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


def set_type(host: SimHost, number: int, type_id: int | str) -> None:
    host.sysfs.write(f"{vf(number)}/nvidia/current_vgpu_type", f"{type_id}\n")


def create(host: SimHost, parent: str, kind: str, number: int) -> None:
    host.sysfs.write(f"{PCI}/{parent}/mdev_supported_types/{kind}/create", f"{uuid(number)}\n")


def available(host: SimHost, parent: str, kind: str) -> int:
    return int(host.sysfs.read(f"{PCI}/{parent}/mdev_supported_types/{kind}/available_instances"))


def remove(host: SimHost, path: str, text: str = "1\n") -> None:
    host.sysfs.write_uninterruptible(path, text, gpu=GPU, deadline_seconds=1)


def refused(number: int, do: Callable[[], object]) -> None:
    """Check that a call is refused with this errno and names its path."""
    with pytest.raises(OSError, match=r".") as caught:
        do()
    got = errno.errorcode.get(caught.value.errno or 0)
    assert got == errno.errorcode[number], f"got {got}"
    assert caught.value.filename is not None


def libvirt_refused(code: int, do: Callable[[], object]) -> str:
    """Check that libvirt refuses with this number; return its words."""
    with pytest.raises(LibvirtFailed) as caught:
        do()
    assert caught.value.facts["libvirt_code"] == code, caught.value.message
    return caught.value.message


def mdev_device(carrier: str) -> str:
    source = f"<source><address uuid='{carrier}'/></source>"
    return f"<hostdev mode='subsystem' type='mdev' model='vfio-pci'>{source}</hostdev>"


def pci_device(address: str, *, managed: bool) -> str:
    domain, bus, rest = address.split(":")
    slot, function = rest.split(".")
    source = f"<address domain='0x{domain}' bus='0x{bus}' slot='0x{slot}' function='0x{function}'/>"
    word = "yes" if managed else "no"
    return f"<hostdev mode='subsystem' type='pci' managed='{word}'><source>{source}</source></hostdev>"


def domain_xml(name: str, number: int, *devices: str, extra: str = "") -> str:
    return (
        f"<domain type='kvm'><name>{name}</name><uuid>{uuid(number)}</uuid><memory unit='MiB'>1024</memory>"
        f"<vcpu>1</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os>{extra}"
        f"<devices>{''.join(devices)}</devices></domain>"
    )


def run_vm(host: SimHost, name: str, number: int, *devices: str) -> str:
    """Define and start a VM; return its uuid."""
    made = host.hypervisor.define(domain_xml(name, number, *devices))
    host.hypervisor.start(made.uuid)
    return made.uuid
