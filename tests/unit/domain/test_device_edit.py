# SPDX-License-Identifier: Apache-2.0
"""Network cards, pinned CPUs, huge pages and the display of a domain change, and nothing else does."""

from __future__ import annotations

import pytest
from lxml import etree

from tests.unit.domain.designs import MACHINE
from tests.unit.domain.test_domain_edit import XML, canonical
from vgpuctl.domain.domain_edit import DomainEdit, edit_domain
from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.errors import Refused
from vgpuctl.model.vm import Nic, Vm, VmState


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
    text = edit_domain(XML, DomainEdit(pins=("4-7", "0"), hugepages_kib=2048))
    vm = parse_domain(text, VmState.STOPPED, MACHINE)
    assert (vm.pinned_cpus, vm.memory_nodes, vm.hugepages_kib) == ({4, 5, 6, 7}, {0}, 2048)
    for count in (5, 1):
        pins = etree.fromstring(edit_domain(text, DomainEdit(vcpus=count))).findall("cputune/vcpupin")
        assert [(pin.get("vcpu"), pin.get("cpuset")) for pin in pins] == [(str(n), "4-7") for n in range(count)]
    assert canonical(edit_domain(text, DomainEdit(pins=("", ""), hugepages_kib=0))) == canonical(XML)


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
