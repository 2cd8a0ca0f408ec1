# SPDX-License-Identifier: Apache-2.0
"""Addresses and passwords. libvirt's test driver crashes when it is asked for a running card's lease (seen with 9.0).

So the answers of `interfaceAddresses` are given here, in the form of libvirt's binding.
"""

import pytest

from vgpuctl.errors import LibvirtFailed
from vgpuctl.host.virt import guest, numbers
from vgpuctl.model.records import GuestAddress

FIRST = "00000000-0000-4000-8000-000000000001"
SCREEN = """<domain type='test'><name>net</name><uuid>00000000-0000-4000-8000-000000000002</uuid><memory>8192</memory>
<vcpu>1</vcpu><os><type>hvm</type></os><devices><graphics type='vnc' port='-1' passwd='s3cret'/></devices></domain>"""


class Card:
    """A domain of which libvirt says this, or raises that number."""

    def __init__(self, answer):
        self.answer = answer
        self.asked = None

    def interfaceAddresses(self, source, flags):
        self.asked = source
        if isinstance(self.answer, int):
            import libvirt

            error = libvirt.libvirtError("refused")
            error.err = (self.answer, 10, "refused", 2, "", None, None, 0, 0)
            raise error
        return self.answer


def test_addresses_are_told_with_the_card_that_has_them(connection):
    answer = {
        "vnet1": {"addrs": None, "hwaddr": "52:54:00:00:00:02"},
        "vnet0": {"addrs": [{"addr": "10.0.0.5", "prefix": 24, "type": 0}], "hwaddr": "52:54:00:AB:00:01"},
    }
    found = guest.addresses(connection, Card(answer), "lease")
    assert found == (GuestAddress("10.0.0.5", 24, "52:54:00:ab:00:01", "vnet0"),)


def test_a_card_without_an_address_of_its_own_has_no_mac(connection):
    (found,) = guest.addresses(connection, Card({"lo": {"addrs": [{"addr": "::1", "prefix": 128}]}}), "agent")
    assert found.mac is None


@pytest.mark.parametrize("source", ["lease", "agent", "arp"])
def test_each_source_is_asked_by_its_number(connection, source):
    card = Card({})
    assert guest.addresses(connection, card, source) == ()
    assert card.asked == getattr(numbers, f"VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_{source.upper()}")


@pytest.mark.parametrize("code", [1, 3, 29, 74, 86, 97])
def test_a_source_that_cannot_say_is_silent(connection, code):
    assert guest.addresses(connection, Card(code), "agent") is None


def test_a_domain_that_is_off_is_libvirts_own_error(connection, hypervisor):
    with pytest.raises(LibvirtFailed) as caught, connection.calling("x", "cannot ask"):
        guest.addresses(connection, Card(55), "agent")
    assert caught.value.facts["libvirt_code"] == 55
    with pytest.raises(LibvirtFailed) as caught:
        hypervisor.guest_addresses(hypervisor.define(SCREEN).uuid, "lease")
    assert caught.value.facts["libvirt_code"] == 55


def test_a_password_is_told_of_and_not_shown(hypervisor):
    made = hypervisor.define(SCREEN)
    assert "s3cret" not in made.xml
    assert hypervisor.graphics_passwords(made.uuid) == {"vnc"}
    assert hypervisor.graphics_passwords(FIRST) == frozenset()
