# SPDX-License-Identifier: Apache-2.0
"""Addresses and passwords. libvirt's test driver crashes on a lease query of a running card (seen with 9.0).

So these tests supply the results of `interfaceAddresses` in the form of libvirt's binding.
"""

import pytest

from vgpuctl.errors import LibvirtFailed
from vgpuctl.host.virt import constants, guest_info
from vgpuctl.model.port_values import GuestAddress

FIRST = "00000000-0000-4000-8000-000000000001"
SCREEN = """<domain type='test'><name>net</name><uuid>00000000-0000-4000-8000-000000000002</uuid><memory>8192</memory>
<vcpu>1</vcpu><os><type>hvm</type></os><devices><graphics type='vnc' port='-1' passwd='s3cret'/></devices></domain>"""


class Card:
    """A domain for which libvirt returns this, or raises this error number."""

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


def test_addresses_have_their_network_card(connection):
    answer = {
        "vnet1": {"addrs": None, "hwaddr": "52:54:00:00:00:02"},
        "vnet0": {"addrs": [{"addr": "10.0.0.5", "prefix": 24, "type": 0}], "hwaddr": "52:54:00:AB:00:01"},
    }
    result = guest_info.read_addresses(connection, Card(answer), "lease")
    assert result == (GuestAddress("10.0.0.5", 24, "52:54:00:ab:00:01", "vnet0"),)


def test_a_card_without_an_address_of_its_own_has_no_mac(connection):
    (result,) = guest_info.read_addresses(
        connection, Card({"lo": {"addrs": [{"addr": "::1", "prefix": 128}]}}), "agent"
    )
    assert result.mac is None


@pytest.mark.parametrize("source", ["lease", "agent", "arp"])
def test_each_source_has_its_number(connection, source):
    card = Card({})
    assert guest_info.read_addresses(connection, card, source) == ()
    assert card.asked == getattr(constants, f"VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_{source.upper()}")


@pytest.mark.parametrize("code", [1, 3, 29, 74, 86, 97])
def test_an_unavailable_source_is_none(connection, code):
    assert guest_info.read_addresses(connection, Card(code), "agent") is None


def test_a_domain_that_is_off_is_libvirts_own_error(connection, hypervisor):
    with pytest.raises(LibvirtFailed) as caught, connection.call("x", "cannot ask"):
        guest_info.read_addresses(connection, Card(55), "agent")
    assert caught.value.facts["libvirt_code"] == 55
    with pytest.raises(LibvirtFailed) as caught:
        hypervisor.guest_addresses(hypervisor.define(SCREEN).uuid, "lease")
    assert caught.value.facts["libvirt_code"] == 55


def test_a_password_is_noted_not_shown(hypervisor):
    made = hypervisor.define(SCREEN)
    assert "s3cret" not in made.xml
    assert hypervisor.password_protected_graphics(made.uuid) == {"vnc"}
    assert hypervisor.password_protected_graphics(FIRST) == frozenset()
