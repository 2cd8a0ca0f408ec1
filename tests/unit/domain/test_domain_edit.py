# SPDX-License-Identifier: Apache-2.0
"""Editing a domain changes only the requested parts: sizes, devices, network cards, pins, pages and the display."""

from __future__ import annotations

import pytest
from lxml import etree

from tests.unit.domain.designs import MACHINE, mdev, passthrough, vendor_vf
from vgpuctl.domain.domain_edit import DomainEdit, RootPorts, count_root_ports, edit_domain, hostdev_xml
from vgpuctl.domain.domain_xml import parse_domain, parse_hostdevs
from vgpuctl.errors import LibvirtFailed, Refused
from vgpuctl.model.vm import HostdevRef, Nic, Vm, VmState
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


NETWORK = '<source network="default" portgroup="p"/><model type="e1000e"/></interface>'


def canonical(text: str) -> str:
    """Return canonical XML: equal documents have equal text."""
    return etree.tostring(etree.fromstring(text), method="c14n").decode()


def test_no_change_keeps_every_word() -> None:
    assert canonical(edit_domain(XML, DomainEdit())) == canonical(XML)


def test_memory_vcpus_and_network_change_and_nothing_else() -> None:
    text = edit_domain(XML, DomainEdit(memory_mib=2048, vcpus=4, nics=(Nic(network="lab"), Nic(bridge="br0"))))
    expected = XML.replace('unit="KiB">1048576', 'unit="MiB">2048').replace(' current="1">2<', ">4<")
    expected = expected.replace('<currentMemory unit="KiB">524288</currentMemory>', "")
    assert canonical(text) == canonical(
        expected.replace(NETWORK, '<model type="e1000e"/><source network="lab"/></interface>')
    )


TOPOLOGY = '<cpu mode="host-passthrough"><topology sockets="{}" dies="1" cores="{}" threads="{}"/></cpu><devices>'


def test_other_vcpus_change_the_cores_of_a_topology() -> None:
    text = edit_domain(XML.replace("<devices>", TOPOLOGY.format(1, 1, 2)), DomainEdit(vcpus=8))
    topology = etree.fromstring(text).find("cpu/topology")
    assert dict(topology.attrib) == {"sockets": "1", "dies": "1", "cores": "4", "threads": "2"}


def test_vcpus_that_fit_no_number_of_cores_are_refused_with_the_numbers_that_do() -> None:
    with pytest.raises(Refused, match="3 vCPUs do not match the CPU topology of vdi-1: sockets=2 dies=1") as caught:
        edit_domain(XML.replace("<devices>", TOPOLOGY.format(2, 1, 1)), DomainEdit(vcpus=3))
    assert "a multiple of 2" in str(caught.value.hint)


def test_a_replaced_device_keeps_an_admins_elements() -> None:
    other = replace(VF, carrier="0000:3b:01.2", alias="ua-vgpuctl-1")
    text = edit_domain(XML, DomainEdit(hostdev_changes=(("0000:3b:00.4", other),)))
    assert parse_hostdevs(text) == (HostdevRef("pci", "0000:3b:01.2", False, "ua-vgpuctl-1"),)
    kept = etree.fromstring(text).find("devices/hostdev")
    assert {c.tag for c in kept} == {"source", "alias", "driver", "rom", "address"}
    assert kept.find("address[@bus='0x05']") is not None


def test_a_device_of_another_kind_keeps_only_its_guest_address() -> None:
    text = edit_domain(XML, DomainEdit(hostdev_changes=(("0000:3b:00.4", MDEV),)))
    kept = etree.fromstring(text).find("devices/hostdev")
    assert ({c.tag for c in kept}, kept.get("type")) == ({"source", "alias", "address"}, "mdev")


def test_devices_come_and_go() -> None:
    both = edit_domain(XML, DomainEdit(hostdev_changes=((None, MDEV),)))
    assert [h.carrier for h in parse_hostdevs(both)] == ["0000:3b:00.4", MDEV.carrier]
    one = edit_domain(both, DomainEdit(hostdev_changes=((MDEV.carrier, None),)))
    assert canonical(one) == canonical(XML)


@pytest.mark.parametrize("design", [vendor_vf(), mdev(), passthrough()], ids=["vendor-vf", "mdev", "passthrough"])
def test_a_device_reads_back(design) -> None:
    for device in design.hostdevs:
        text = f"<domain><devices>{hostdev_xml(device)}</devices></domain>"
        assert parse_hostdevs(text) == (HostdevRef(device.kind, device.carrier, device.managed, device.alias),)


def test_the_record_is_put_in_and_replaced() -> None:
    first = vendor_vf().record
    for record in (first, replace(first, created_vm=False)):
        text = edit_domain(edit_domain(XML, DomainEdit(record=first)), DomainEdit(record=record))
        assert parse_domain(text, VmState.STOPPED, MACHINE).record == record
        assert text.count("urn:vgpuctl:1") == 1


def test_missing_elements_cannot_change() -> None:
    with pytest.raises(Refused, match="no vGPU"):
        edit_domain("<domain><name>a</name><devices/></domain>", DomainEdit(display=True))
    with pytest.raises(Refused, match="does not refer"):
        edit_domain(XML, DomainEdit(hostdev_changes=(("0000:ff:00.0", None),)))
    with pytest.raises(LibvirtFailed):
        edit_domain("<domain", DomainEdit())


def test_ports_are_free_when_no_device_is_behind_them() -> None:
    assert count_root_ports(XML) == RootPorts(free=1, total=2)
    assert count_root_ports("<domain><devices/></domain>") == RootPorts(free=0, total=0)


def test_only_that_disk_is_replaced_without_its_backing_chain() -> None:
    disk = "<disk type='file' device='disk'><driver name='qemu' type='qcow2' cache='none'/><source file='{}'/>{}</disk>"
    chain = "<backingStore type='file'><source file='/base'/></backingStore>"
    before = XML.replace("<devices>", "<devices>" + disk.format("/a", chain) + disk.format("/b", chain))
    after = XML.replace("<devices>", "<devices>" + disk.format("/c", "") + disk.format("/b", chain))
    assert canonical(edit_domain(before, DomainEdit(disk_change=("/a", "/c")))) == canonical(after)
    with pytest.raises(Refused, match="does not refer to /nothing"):
        edit_domain(before, DomainEdit(disk_change=("/nothing", "/c")))


def edited(xml: str, edit: DomainEdit) -> Vm:
    return parse_domain(edit_domain(xml, edit), VmState.STOPPED, MACHINE)


def test_network_cards_are_added_changed_and_removed_and_keep_what_is_not_named() -> None:
    first = XML.replace("<source network=", '<mac address="52:54:00:00:00:01"/><source network=')
    lab = Nic(network="lab", mac="52:54:00:00:00:09")
    more = edited(first, DomainEdit(nics=(Nic(bridge="br1", vlan=7), lab, Nic(network="n")), nic_model="virtio"))
    assert more.nics == (
        Nic(bridge="br1", vlan=7, model="e1000e", mac="52:54:00:00:00:01"),
        lab,
        Nic(network="n", model="virtio"),
    )
    assert edited(first, DomainEdit(nics=())).nics == ()
    vf = first.replace("<devices>", '<devices><interface type="hostdev"><source/></interface>')
    assert [nic.has_network for nic in edited(vf, DomainEdit(nics=())).nics] == [False]


def test_pins_and_huge_pages_come_and_go_and_pins_follow_the_number_of_vcpus() -> None:
    text = edit_domain(XML, DomainEdit(pins=("4-7", "0"), settings={"hugepages": "2MiB"}))
    vm = parse_domain(text, VmState.STOPPED, MACHINE)
    assert (vm.pinned_cpus, vm.memory_nodes, dict(vm.settings)["hugepages"]) == ({4, 5, 6, 7}, {0}, "2MiB")
    for count in (5, 1):
        pins = etree.fromstring(edit_domain(text, DomainEdit(vcpus=count))).findall("cputune/vcpupin")
        assert [(pin.get("vcpu"), pin.get("cpuset")) for pin in pins] == [(str(n), "4-7") for n in range(count)]
    assert canonical(edit_domain(text, DomainEdit(pins=("", ""), settings={"hugepages": "none"}))) == canonical(XML)


def test_the_first_vgpus_screen_takes_the_place_of_the_video_card_and_gives_it_back() -> None:
    console = '<graphics type="vnc"/><video><model type="vga"/></video></devices>'
    text = edit_domain(XML.replace("</devices>", console), DomainEdit(display=True, display_needs_gl=True))
    root = etree.fromstring(text)
    assert root.find("devices/hostdev[@display='on'][@ramfb='on']") is not None
    assert [model.get("type") for model in root.iterfind("devices/video/model")] == ["none"]
    assert [screen.get("type") for screen in root.iterfind("devices/graphics")] == ["vnc", "egl-headless"]
    assert parse_domain(text, VmState.STOPPED, MACHINE).has_display
    back = etree.fromstring(edit_domain(text, DomainEdit(display=False)))
    assert back.find("devices/hostdev[@display]") is None
    assert [model.get("type") for model in back.iterfind("devices/video/model")] == ["vga"]
    assert [screen.get("type") for screen in back.iterfind("devices/graphics")] == ["vnc"]
    with pytest.raises(Refused, match="no graphics console"):
        edit_domain(XML, DomainEdit(display=True))
