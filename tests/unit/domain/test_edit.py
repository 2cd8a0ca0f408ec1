# SPDX-License-Identifier: Apache-2.0
"""Editing a domain changes what is asked for and keeps every other word of it."""

from __future__ import annotations

import pytest
from lxml import etree

from tests.unit.domain.designs import MACHINE, mdev, passthrough, vendor_vf
from vgpuctl.domain.edit import Edit, Ports, edited, hostdev_xml, ports
from vgpuctl.domain.parse import hostdevs_of, parse
from vgpuctl.errors import LibvirtFailed, Refused
from vgpuctl.model.vm import HostdevRef, VmState
from vgpuctl.value import replace

VF, MDEV = vendor_vf().hostdevs[0], mdev().hostdevs[0]
XML = """<domain type="kvm"><name>vdi-1</name><uuid>4b20d080-1b54-4048-85b3-a6a62d165c01</uuid><title>a &amp; b</title>
<memory unit="KiB">1048576</memory><currentMemory unit="KiB">524288</currentMemory><vcpu current="1">2</vcpu><devices>
<interface type="network"><source network="default" portgroup="p"/><model type="e1000e"/></interface>
<interface type="bridge"><source bridge="br0"/></interface>
<hostdev mode="subsystem" type="pci" managed="no"><driver name="vfio"/><source><address domain="0x0000" bus="0x3b" \
slot="0x00" function="0x4"/></source><alias name="ua-vgpuctl-0"/><rom bar="off"/><address type="pci" \
domain="0x0000" bus="0x05" slot="0x00" function="0x0"/></hostdev>
<controller type="pci" index="4" model="pcie-root-port"/><controller type="pci" index="5" model="pcie-root-port"/>
</devices></domain>"""


def canonical(text: str) -> str:
    """Return XML so that equal documents are equal texts."""
    return etree.tostring(etree.fromstring(text), method="c14n").decode()


def test_no_change_keeps_every_word() -> None:
    assert canonical(edited(XML, Edit())) == canonical(XML)


def test_memory_vcpus_and_network_change_and_nothing_else() -> None:
    text = edited(XML, Edit(memory_mib=2048, vcpus=4, network="lab"))
    expected = XML.replace('unit="KiB">1048576', 'unit="MiB">2048').replace(' current="1">2<', ">4<")
    expected = expected.replace('<currentMemory unit="KiB">524288</currentMemory>', "")
    assert canonical(text) == canonical(expected.replace('network="default"', 'network="lab"'))


TOPOLOGY = '<cpu mode="host-passthrough"><topology sockets="{}" dies="1" cores="{}" threads="{}"/></cpu><devices>'


def test_other_vcpus_get_other_cores_where_a_topology_says_how_they_are_arranged() -> None:
    text = edited(XML.replace("<devices>", TOPOLOGY.format(1, 1, 2)), Edit(vcpus=8))
    topology = etree.fromstring(text).find("cpu/topology")
    assert topology is not None
    assert dict(topology.attrib) == {"sockets": "1", "dies": "1", "cores": "4", "threads": "2"}


def test_vcpus_that_fit_no_number_of_cores_are_refused_with_the_numbers_that_do() -> None:
    with pytest.raises(Refused, match="3 vCPUs do not fit the CPU topology of vdi-1: sockets=2 dies=1") as caught:
        edited(XML.replace("<devices>", TOPOLOGY.format(2, 1, 1)), Edit(vcpus=3))
    assert "a multiple of 2" in str(caught.value.hint)


def test_another_device_keeps_what_an_admin_wrote_into_the_first() -> None:
    other = replace(VF, carrier="0000:3b:01.2", alias="ua-vgpuctl-1")
    text = edited(XML, Edit(exchange=(("0000:3b:00.4", other),)))
    assert hostdevs_of(text) == (HostdevRef("pci", "0000:3b:01.2", False, "ua-vgpuctl-1"),)
    kept = etree.fromstring(text).find("devices/hostdev")
    assert kept is not None
    assert {c.tag for c in kept} == {"source", "alias", "driver", "rom", "address"}
    assert kept.find("address[@bus='0x05']") is not None


def test_a_device_of_another_kind_keeps_its_place_in_the_guest_alone() -> None:
    text = edited(XML, Edit(exchange=(("0000:3b:00.4", MDEV),)))
    kept = etree.fromstring(text).find("devices/hostdev")
    assert kept is not None
    assert ({c.tag for c in kept}, kept.get("type")) == ({"source", "alias", "address"}, "mdev")


def test_devices_come_and_go() -> None:
    both = edited(XML, Edit(exchange=((None, MDEV),)))
    assert [h.carrier for h in hostdevs_of(both)] == ["0000:3b:00.4", MDEV.carrier]
    one = edited(both, Edit(exchange=((MDEV.carrier, None),)))
    assert canonical(one) == canonical(XML)


@pytest.mark.parametrize("design", [vendor_vf(), mdev(), passthrough()], ids=["vendor-vf", "mdev", "passthrough"])
def test_a_device_reads_back(design) -> None:
    for device in design.hostdevs:
        text = f"<domain><devices>{hostdev_xml(device)}</devices></domain>"
        assert hostdevs_of(text) == (HostdevRef(device.kind, device.carrier, device.managed, device.alias),)


def test_the_record_is_put_in_and_replaced() -> None:
    first = vendor_vf().promise
    for promise in (first, replace(first, made_vm=False)):
        text = edited(edited(XML, Edit(promise=first)), Edit(promise=promise))
        assert parse(text, VmState.STOPPED, MACHINE).promise == promise
        assert text.count("urn:vgpuctl:1") == 1


def test_what_is_not_there_cannot_be_changed() -> None:
    with pytest.raises(Refused, match="interface"):
        edited("<domain><name>a</name><devices/></domain>", Edit(network="lab"))
    with pytest.raises(Refused, match="does not refer"):
        edited(XML, Edit(exchange=(("0000:ff:00.0", None),)))
    with pytest.raises(LibvirtFailed):
        edited("<domain", Edit())


def test_ports_are_free_when_no_device_is_behind_them() -> None:
    assert ports(XML) == Ports(free=1, total=2)
    assert ports("<domain><devices/></domain>") == Ports(free=0, total=0)


def test_a_disk_is_exchanged_without_the_chain_below_it_and_no_other() -> None:
    disk = "<disk type='file' device='disk'><driver name='qemu' type='qcow2' cache='none'/><source file='{}'/>{}</disk>"
    chain = "<backingStore type='file'><source file='/base'/></backingStore>"
    before = XML.replace("<devices>", "<devices>" + disk.format("/a", chain) + disk.format("/b", chain))
    after = XML.replace("<devices>", "<devices>" + disk.format("/c", "") + disk.format("/b", chain))
    assert canonical(edited(before, Edit(disk=("/a", "/c")))) == canonical(after)
    with pytest.raises(Refused, match="does not refer to /nothing"):
        edited(before, Edit(disk=("/nothing", "/c")))
