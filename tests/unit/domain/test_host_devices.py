# SPDX-License-Identifier: Apache-2.0
"""Every way in which a domain names a device of the host, read alike from lxml and from the standard library."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from vgpuctl.domain.domain_xml import parse_root
from vgpuctl.domain.host_devices import find_hostdevs
from vgpuctl.model.vm import HostdevRef

UUID = "5bfcd486-c5eb-43e4-a5ee-97366690106f"
QEMU = "xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'"


def named(body: str) -> list[tuple[str, str]]:
    """Return kind and carrier of every device, the same for both parsers."""
    xml = f"<domain {QEMU}><uuid>11111111-2222-4333-8444-555555555555</uuid>{body}</domain>"
    hostdevs: tuple[HostdevRef, ...] = find_hostdevs(parse_root(xml))
    assert hostdevs == find_hostdevs(ElementTree.fromstring(xml))
    return [(h.kind, h.carrier) for h in hostdevs]


def arguments(*values: str) -> str:
    return f"<qemu:commandline>{''.join(f'<qemu:arg value={value!r}/>' for value in values)}</qemu:commandline>"


@pytest.mark.parametrize(
    ("value", "carrier"),
    [
        (f"vfio-pci,sysfsdev=/sys/bus/mdev/devices/{UUID}", UUID),
        (f"vfio-pci,sysfsdev=/sys/bus/mdev/devices/{UUID.upper()},display=off", UUID),
        (f"vfio-pci,sysfsdev=/sys/devices/pci0000:00/0000:00:02.0/{UUID}", UUID),
        ("vfio-pci,host=0000:3b:00.4", "0000:3b:00.4"),
        ("vfio-pci,host=3b:00.4,addr=05.0", "0000:3b:00.4"),
        ("vfio-pci,host=3B:0.4", "0000:3b:00.4"),
        ("vfio-pci,host=10000:e1:00.4", "10000:e1:00.4"),
        ("vfio-pci,sysfsdev=/sys/bus/pci/devices/0000:3b:00.4/", "0000:3b:00.4"),
        ('{"driver":"vfio-pci","host":"0000:3b:00.4"}', "0000:3b:00.4"),
    ],
)
def test_a_device_in_qemus_arguments(value, carrier):
    assert named(arguments("-device", value)) == [("text", carrier)]


@pytest.mark.parametrize(
    "value",
    ["virtio-net-pci,mac=52:54:00:3b:00:04", "user,hostfwd=tcp:127.0.0.1:2222-:22", "x,addr=05.0", "12:34:56.7"],
)
def test_other_arguments_name_no_device(value):
    assert named(arguments(value)) == []


def test_an_environment_and_an_override_name_devices_too():
    env = f"<qemu:commandline><qemu:env name='MDEV' value='{UUID}'/></qemu:commandline>"
    assert named(env) == [("text", UUID)]
    override = "<qemu:override><qemu:device alias='hostdev0'><qemu:frontend>"
    override += "<qemu:property name='host' type='string' value='3b:00.4'/>"
    override += "</qemu:frontend></qemu:device></qemu:override>"
    assert named(override) == [("text", "0000:3b:00.4")]


def test_elements_that_name_a_device():
    address = "<source><address type='pci' domain='0x0000' bus='0x3b' slot='0x00' function='0x{}'/></source>"
    mdev = f"<hostdev mode='subsystem' type='mdev'><source><address uuid='{UUID.upper()}'/></source></hostdev>"
    misc = "<hostdev mode='capabilities' type='misc'><source><char>/sys/bus/pci/devices/0000:3b:00.7</char></source>"
    devices = (
        f"<hostdev mode='subsystem' type='pci'>{address.format(4)}</hostdev>{mdev}{misc}</hostdev>"
        f"<interface type='hostdev'>{address.format(5)}</interface>"
        "<interface type='network'><source network='pool'/></interface>"
        f"<disk type='nvme'>{address.format(6)}</disk>"
    )
    assert named(f"<devices>{devices}</devices>") == [
        ("pci", "0000:3b:00.4"),
        ("mdev", UUID),
        ("text", "0000:3b:00.7"),
        ("pci", "0000:3b:00.5"),
        ("pci", "0000:3b:00.6"),
    ]


def test_what_is_named_twice_and_what_only_describes_a_domain():
    hostdev = f"<devices><hostdev type='mdev'><source><address uuid='{UUID}'/></source></hostdev></devices>"
    assert named(hostdev + arguments(f"sysfsdev=/sys/bus/mdev/devices/{UUID}")) == [("mdev", UUID)]
    assert named(f"<title>{UUID}</title><metadata><x>{UUID}</x></metadata>") == []
