# SPDX-License-Identifier: Apache-2.0
"""Reading domains of other programs: units, all forms of host devices, disks, consoles, and the record's owner."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from lxml import etree

from tests.unit.domain.designs import GOLDEN, MACHINE, UUID, vendor_vf
from vgpuctl.domain.console import ConsoleDevices, GraphicsDevice, parse_consoles
from vgpuctl.domain.domain_xml import (
    DiskSources,
    has_serial_console,
    parse_disk_sources,
    parse_domain,
    parse_hostdevs,
    parse_root,
)
from vgpuctl.domain.record import find_hostdevs, record_to_xml
from vgpuctl.errors import LibvirtFailed
from vgpuctl.model.vm import DiskRef, HostdevRef, Nic, Vm, VmState
from vgpuctl.value import replace

FILES = Path(__file__).parents[2] / "golden" / "domain" / "libvirt-9.0"


def domain(devices: str = "", rest: str = "<memory>4194304</memory><vcpu>2</vcpu>") -> str:
    return f"<domain type='kvm'><name>a</name><uuid>{UUID}</uuid>{rest}<devices>{devices}</devices></domain>"


def read(xml: str) -> Vm:
    return parse_domain(xml, VmState.STOPPED, MACHINE)


@pytest.mark.parametrize(
    ("element", "mib"),
    [
        ("<memory>1048576</memory>", 1024),
        ("<memory unit='KiB'>1048576</memory>", 1024),
        ("<memory unit='k'>1048576</memory>", 1024),
        ("<memory unit='MiB'>512</memory>", 512),
        ("<memory unit='M'>512</memory>", 512),
        ("<memory unit='GiB'>8</memory>", 8192),
        ("<memory unit='T'>1</memory>", 1 << 20),
        ("<memory unit='b'>1073741824</memory>", 1024),
        ("<memory unit='bytes'>1073741824</memory>", 1024),
        ("<memory unit='KB'>1048576</memory>", 1000),
        ("<memory unit='GB'>8</memory>", 7629),
        ("", 0),
    ],
)
def test_memory_in_any_unit(element: str, mib: int) -> None:
    assert read(domain(rest=element)).memory_mib == mib


@pytest.mark.parametrize(
    ("memory", "nodes"),
    [
        ("mode='strict' nodeset='0-2,^1,5'", {0, 2, 5}),
        ("nodeset='1'", {1}),
        ("mode='restrictive' nodeset='3'", {3}),
        ("mode='preferred' nodeset='1'", set()),
        ("mode='interleave' nodeset='0-1'", set()),
        ("mode='strict' placement='auto'", set()),
        ("mode='strict' nodeset='x,-1,2-'", set()),
        ("mode='strict' nodeset='0-9999'", set(range(1025))),
    ],
)
def test_the_nodes_that_memory_is_bound_to(memory: str, nodes: set[int]) -> None:
    result = read(domain(rest=f"<memory>1</memory><numatune><memory {memory}/></numatune>"))
    assert result.memory_nodes == nodes
    assert read(domain()).memory_nodes == frozenset()


def test_host_devices_are_read_in_all_forms() -> None:
    xml = domain(
        "<hostdev mode='subsystem' type='pci' managed='yes'><source>"
        "<address domain='0x0000' bus='0x3B' slot='0x1f' function='0x7'/></source><alias name='ua-x'/></hostdev>"
        "<hostdev mode='subsystem' type='pci'><source><address domain='1' bus='59' slot='0' function='4'/></source>"
        "</hostdev>"
        "<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source>"
        "<address uuid='0D9A1A3E-52C4-5C8E-9B6F-0F3C5D7E9A11'/></source></hostdev>"
        "<interface type='hostdev' managed='yes'><mac address='52:54:00:00:00:01'/><source>"
        "<address type='pci' domain='0x0000' bus='0x41' slot='0x02' function='0x1'/></source></interface>"
        "<disk type='nvme' device='disk'><source type='pci' managed='yes' namespace='1'>"
        "<address domain='0x0000' bus='0x01' slot='0x00' function='0x0'/></source><target dev='vda'/></disk>"
        "<hostdev mode='subsystem' type='usb'><source><address bus='1' device='2'/></source></hostdev>"
        "<hostdev mode='subsystem' type='scsi'><source><adapter name='scsi_host0'/>"
        "<address bus='0' target='0' unit='0'/></source></hostdev>"
        "<hostdev mode='capabilities' type='misc'><source><char>/dev/x</char></source></hostdev>"
        "<controller type='pci'><address type='pci' bus='0x00' slot='0x1'/></controller>"
    )
    expected = (
        HostdevRef("pci", "0000:3b:1f.7", True, "ua-x"),
        HostdevRef("pci", "0001:3b:00.4", False),
        HostdevRef("mdev", "0d9a1a3e-52c4-5c8e-9b6f-0f3c5d7e9a11", False),
        HostdevRef("pci", "0000:41:02.1", True),
        HostdevRef("pci", "0000:01:00.0", True),
    )
    assert read(xml).hostdevs == expected
    assert parse_hostdevs(xml) == expected


def test_a_garbled_address_is_no_device() -> None:
    xml = domain("<hostdev type='pci'><source><address bus='x' slot='y'/></source></hostdev><hostdev type='pci'/>")
    assert read(xml).hostdevs == ()


def test_disks_networks_and_macs() -> None:
    vm = read(
        domain(
            "<disk type='file'><driver type='qcow2'/><source file='/a &amp; b'/><target dev='vda'/></disk>"
            "<disk type='block' device='lun'><source dev='/dev/sda'/><target dev='sda'/></disk>"
            "<disk type='file' device='cdrom'><target dev='sdb'/></disk>"
            "<disk type='network' device='disk'><source protocol='rbd' name='p/x'/><target dev='vdb'/></disk>"
            "<interface type='network'><mac address='52:54:00:AA:00:01'/><source network='n1'/></interface>"
            "<interface type='bridge'><mac address='52:54:00:aa:00:02'/><source bridge='br0'/></interface>"
        )
    )
    assert vm.disks == (
        DiskRef("disk", "vda", "/a & b", "qcow2"),
        DiskRef("lun", "sda", "/dev/sda", None),
        DiskRef("cdrom", "sdb", None, None),
        DiskRef("disk", "vdb", None, None),
    )
    assert vm.nics == (Nic(network="n1", mac="52:54:00:aa:00:01"), Nic(bridge="br0", mac="52:54:00:aa:00:02"))
    assert vm.mac_addresses == ("52:54:00:aa:00:01", "52:54:00:aa:00:02")


@pytest.mark.parametrize(
    ("element", "firmware"),
    [
        ("<os><type>hvm</type></os>", "bios"),
        ("<os firmware='efi'/>", "uefi"),
        ("<os firmware='bios'/>", "bios"),
        ("<os><loader readonly='yes' type='pflash'>/usr/share/OVMF/OVMF_CODE.fd</loader></os>", "uefi"),
        ("<os><loader>/usr/lib/xen/hvmloader</loader></os>", "bios"),
        ("", "bios"),
    ],
)
def test_firmware(element: str, firmware: str) -> None:
    assert read(domain(rest=element)).firmware == firmware


def test_the_record_is_its_own_only_with_this_uuid_on_this_host() -> None:
    record = vendor_vf().record
    own = read(domain(rest=f"<metadata>{record_to_xml(record)}</metadata>"))
    assert (own.record, own.copied_record) == (record, None)
    for copied in (
        replace(record, vm_uuid=UUID.replace("4", "5")),
        replace(record, machine_id="0" * 32),
    ):
        vm = read(domain(rest=f"<metadata>{record_to_xml(copied)}</metadata>"))
        assert (vm.record, vm.copied_record) == (None, copied)


@pytest.mark.parametrize("broken", ["making", 'vm-uuid="', 'index="0'])
def test_a_garbled_record_differs_from_a_lost_one(broken: str) -> None:
    record = record_to_xml(vendor_vf().record).replace(broken, "x" + broken)
    vm = read(domain(rest=f"<metadata>{record}</metadata>"))
    assert (vm.record, vm.copied_record, vm.has_unreadable_record) == (None, None, True)


def test_a_garbled_records_files_and_bases_are_read() -> None:
    record = (
        "<vm xmlns='urn:vgpuctl:1' state='new'><disk path='/a' base='/b'/>"
        "<store><volume file='/c'/></store><disk path='/a2' base='base-by-name'/></vm>"
    )
    vm = read(domain(rest=f"<metadata>{record}</metadata>"))
    assert [(d.path, d.base) for d in vm.unreadable_disks] == [
        ("/a", "/b"),
        ("/a2", "base-by-name"),
        ("/b", None),
        ("/c", None),
    ]


def test_a_record_that_is_read_or_is_not_there_is_not_unreadable() -> None:
    record = record_to_xml(vendor_vf().record)
    for metadata in (
        f"<metadata>{record}</metadata>",
        "<metadata/>",
        "<metadata><x:vm xmlns:x='urn:other'/></metadata>",
    ):
        assert not read(domain(rest=metadata)).has_unreadable_record


def test_other_metadata_is_ignored() -> None:
    rest = "<metadata><x:vm xmlns:x='urn:other' state='ready'/><!-- a --><?b c?></metadata><!-- a --><vcpu>3</vcpu>"
    vm = read(domain("<!-- a --><?b c?><hostdev><!-- a --></hostdev>", rest))
    assert (vm.vcpus, vm.record, vm.hostdevs) == (3, None, ())


def test_the_smallest_domain_is_read() -> None:
    vm = read(f"<domain><name>a</name><uuid>{UUID.upper()}</uuid></domain>")
    assert (vm.name, vm.uuid, vm.vcpus, vm.state) == ("a", UUID, 1, VmState.STOPPED)


@pytest.mark.parametrize("xml", ["", "x", "<domain>", "<network/>", "<?xml version='1.0' encoding='utf-8'?><domain/>x"])
def test_other_xml_is_an_error(xml: str) -> None:
    with pytest.raises(LibvirtFailed, match="a domain's XML"):
        read(xml)


@pytest.mark.parametrize("name", GOLDEN)
def test_consoles(name: str) -> None:
    xml = (FILES / f"{name}.xml").read_text(encoding="utf-8")
    assert has_serial_console(xml)
    assert not has_serial_console(domain("<serial type='file'/>"))


COMMENTED = "<domain><!-- a comment --><name>vm</name></domain>"


def test_comments_are_kept_only_on_request() -> None:
    assert [child.tag for child in parse_root(COMMENTED)] == ["name"]
    assert etree.tostring(parse_root(COMMENTED, keep_comments=True), encoding="unicode") == COMMENTED


def test_entities_are_not_resolved() -> None:
    text = '<!DOCTYPE domain [<!ENTITY file SYSTEM "file:///etc/passwd">]><domain><name>&file;</name></domain>'
    assert "<name>&file;</name>" in etree.tostring(parse_root(text), encoding="unicode")


CONFIG = """<domain><devices>
<disk type='file'><source file='/a.qcow2'/></disk>
<disk type='block'><source dev='/dev/vg/b'/></disk>
<disk type='volume'><source pool='p' volume='v'/></disk>
<disk type='network'><source protocol='rbd' name='x'/></disk>
<disk type='file' device='cdrom'/>
</devices></domain>"""
LIVE = """<domain><devices><disk type='file'><source file='/a.qcow2'/>
<backingStore type='file'><source file='/mid.qcow2'/>
<backingStore type='file'><source file='/base.qcow2'/><backingStore/></backingStore></backingStore>
<mirror type='file'><source file='/copy.qcow2'/></mirror></disk></devices></domain>"""


def test_files_block_devices_and_volumes_are_named_and_empty_drives_are_not():
    assert parse_disk_sources(CONFIG) == DiskSources(("/a.qcow2", "/dev/vg/b"), (("p", "v"),), ())


def test_a_running_domain_has_its_chain_and_a_copys_target():
    result = parse_disk_sources(CONFIG, LIVE)
    assert result.files == ("/a.qcow2", "/dev/vg/b", "/copy.qcow2")
    assert result.backing_pairs == (("/a.qcow2", "/mid.qcow2"), ("/mid.qcow2", "/base.qcow2"))


def test_a_domain_that_is_off_has_no_live_xml():
    assert parse_disk_sources(CONFIG, None) == parse_disk_sources(CONFIG)


def devices(inner: str) -> str:
    return f"<domain><devices>{inner}</devices></domain>"


@pytest.mark.parametrize(
    ("xml", "screen"),
    [
        (
            "<graphics type='vnc' port='5901' autoport='yes' listen='0.0.0.0'>"
            "<listen type='address' address='0.0.0.0'/></graphics>",
            GraphicsDevice("vnc", 5901, None, "0.0.0.0"),
        ),
        (
            "<graphics type='spice' port='5902' tlsPort='5903'><listen type='network' network='n' address='10.0.0.1'/>"
            "</graphics>",
            GraphicsDevice("spice", 5902, 5903, "10.0.0.1"),
        ),
        ("<graphics type='vnc' port='-1' autoport='yes'/>", GraphicsDevice("vnc")),
        (
            "<graphics type='vnc'><listen type='socket' socket='/run/vnc.sock'/></graphics>",
            GraphicsDevice("vnc", socket="/run/vnc.sock"),
        ),
        ("<graphics type='spice'><listen type='none'/></graphics>", GraphicsDevice("spice")),
        ("<graphics type='vnc' port='5900' listen='::1'/>", GraphicsDevice("vnc", 5900, None, "::1")),
    ],
)
def test_a_screen_is_read_as_it_is_written(xml: str, screen: GraphicsDevice):
    assert parse_consoles(devices(xml)).graphics == (screen,)


def test_only_a_console_on_a_terminal_can_be_opened():
    result = parse_consoles(
        devices(
            "<console type='pty' tty='/dev/pts/3'><target type='serial' port='0'/></console>"
            "<console type='pty'><source path='/dev/pts/4'/><target type='virtio' port='1'/></console>"
            "<console type='tcp'><target type='virtio' port='2'/></console>"
        )
    )
    assert result.serial_consoles == (("serial", "/dev/pts/3"), ("virtio", "/dev/pts/4"))


def test_a_domain_without_devices_has_none():
    assert parse_consoles("<domain/>") == ConsoleDevices()


MDEV_UUID = "5bfcd486-c5eb-43e4-a5ee-97366690106f"
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
        (f"vfio-pci,sysfsdev=/sys/bus/mdev/devices/{MDEV_UUID}", MDEV_UUID),
        (f"vfio-pci,sysfsdev=/sys/bus/mdev/devices/{MDEV_UUID.upper()},display=off", MDEV_UUID),
        (f"vfio-pci,sysfsdev=/sys/devices/pci0000:00/0000:00:02.0/{MDEV_UUID}", MDEV_UUID),
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
    env = f"<qemu:commandline><qemu:env name='MDEV' value='{MDEV_UUID}'/></qemu:commandline>"
    assert named(env) == [("text", MDEV_UUID)]
    override = "<qemu:override><qemu:device alias='hostdev0'><qemu:frontend>"
    override += "<qemu:property name='host' type='string' value='3b:00.4'/>"
    override += "</qemu:frontend></qemu:device></qemu:override>"
    assert named(override) == [("text", "0000:3b:00.4")]


def test_elements_that_name_a_device():
    address = "<source><address type='pci' domain='0x0000' bus='0x3b' slot='0x00' function='0x{}'/></source>"
    mdev = f"<hostdev mode='subsystem' type='mdev'><source><address uuid='{MDEV_UUID.upper()}'/></source></hostdev>"
    misc = "<hostdev mode='capabilities' type='misc'><source><char>/sys/bus/pci/devices/0000:3b:00.7</char></source>"
    devices = (
        f"<hostdev mode='subsystem' type='pci'>{address.format(4)}</hostdev>{mdev}{misc}</hostdev>"
        f"<interface type='hostdev'>{address.format(5)}</interface>"
        "<interface type='network'><source network='pool'/></interface>"
        f"<disk type='nvme'>{address.format(6)}</disk>"
    )
    assert named(f"<devices>{devices}</devices>") == [
        ("pci", "0000:3b:00.4"),
        ("mdev", MDEV_UUID),
        ("text", "0000:3b:00.7"),
        ("pci", "0000:3b:00.5"),
        ("pci", "0000:3b:00.6"),
    ]


def test_what_is_named_twice_and_what_only_describes_a_domain():
    hostdev = f"<devices><hostdev type='mdev'><source><address uuid='{MDEV_UUID}'/></source></hostdev></devices>"
    assert named(hostdev + arguments(f"sysfsdev=/sys/bus/mdev/devices/{MDEV_UUID}")) == [("mdev", MDEV_UUID)]
    assert named(f"<title>{MDEV_UUID}</title><metadata><x>{MDEV_UUID}</x></metadata>") == []
