# SPDX-License-Identifier: Apache-2.0
"""Reading domain XML as libvirt does."""

from __future__ import annotations

import pytest

from tests.unit.sim.hosts import domain_xml, mdev_device, pci_device, uuid
from vgpuctl.sim import domain_xml as reading
from vgpuctl.sim.domain_xml import SimHostdev
from vgpuctl.sim.refusals import VirError, VirErrorNumber


def normalised(xml: str):
    element = reading.parse(xml)
    names = reading.normalise(element)
    return element, names


def test_normalising() -> None:
    network = "<interface type='network'><source network='default'/></interface>"
    alias = "<alias name='hostdev0'/></hostdev>"
    xml = domain_xml("vm", 171, mdev_device(uuid(171).upper()).replace("</hostdev>", alias), network)
    element, names = normalised(xml.replace(uuid(171), uuid(171).upper()))
    assert names == (uuid(171), "vm")
    assert (element.findtext("memory"), element.find("memory").get("unit")) == ("1048576", "KiB")
    assert element.find("os/type").get("machine") == "pc-q35-8.2"
    assert element.find("devices/hostdev").get("managed") == "no"
    assert element.find("devices/hostdev/alias") is None, "only ua- names are the user's"
    assert element.find("devices/interface/mac").get("address").startswith("52:54:00:")
    again, _ = normalised(reading.unparse(element))
    assert reading.unparse(again) == reading.unparse(element), "what libvirt wrote it reads the same"


def test_a_users_alias_and_a_given_mac_stay() -> None:
    device = mdev_device(uuid(1)).replace("</hostdev>", "<alias name='ua-gpu'/></hostdev>")
    network = "<interface type='network'><mac address='52:54:00:00:00:01'/><source network='n'/></interface>"
    element, _ = normalised(domain_xml("vm", 1, device, network))
    assert element.find("devices/hostdev/alias").get("name") == "ua-gpu"
    assert element.find("devices/interface/mac").get("address") == "52:54:00:00:00:01"


def test_devices_in_any_spelling() -> None:
    odd = pci_device("0000:3b:00.4", managed=True).replace("0x3b", "59").replace("domain='0x0000' ", "")
    element, _ = normalised(domain_xml("vm", 1, odd, mdev_device(uuid(2))))
    assert reading.parse_hostdevs(element) == (
        SimHostdev("pci", "0000:3b:00.4", managed=True),
        SimHostdev("mdev", uuid(2), managed=False),
    )
    assert element.find("devices/hostdev/source/address").get("bus") == "0x3b"


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ("<domain><uuid/></domain>", VirErrorNumber.XML_ERROR),
        ("<domain><name>a</name></domain>", VirErrorNumber.XML_ERROR),
        (domain_xml("vm", 1).replace(uuid(1), "no-uuid"), VirErrorNumber.XML_ERROR),
        ("<network><name>a</name></network>", VirErrorNumber.XML_ERROR),
    ],
)
def test_what_libvirt_refuses(wrong: str, code: VirErrorNumber) -> None:
    with pytest.raises(VirError) as caught:
        normalised(wrong)
    assert caught.value.code == code


def test_a_uuid_is_drawn_when_there_is_none() -> None:
    xml = domain_xml("vm", 1).replace(f"<uuid>{uuid(1)}</uuid>", "")
    assert len(normalised(xml)[1][0]) == 36


def test_the_schema_finds_what_an_old_libvirt_would_drop() -> None:
    reading.validate(reading.parse(domain_xml("vm", 1, mdev_device(uuid(1)))))
    wrong = mdev_device(uuid(1)).replace("model='vfio-pci'", "model='vfio-pci' color='red'")
    with pytest.raises(VirError) as caught:
        reading.validate(reading.parse(domain_xml("vm", 1, wrong)))
    assert caught.value.code == VirErrorNumber.XML_INVALID_SCHEMA


def test_quotes_are_libvirts_and_lose_nothing() -> None:
    element = reading.parse("""<domain a="it's" b='say "x" &lt;'><name>it's "so" &lt;b a="c"&gt;</name></domain>""")
    text = reading.unparse(element)
    assert text.startswith("<domain a='it&apos;s' b='say &quot;x&quot; &lt;'>")
    again = reading.parse(text)
    assert dict(again.attrib) == dict(element.attrib)
    assert again.findtext("name") == """it's "so" <b a="c">"""
