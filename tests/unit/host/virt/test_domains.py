# SPDX-License-Identifier: Apache-2.0
"""Domains and networks of libvirt's test driver."""

import pytest
from lxml import etree

from vgpuctl.errors import Exists, LibvirtFailed
from vgpuctl.host.virt import constants, domains
from vgpuctl.model.port_values import GuestAddress
from vgpuctl.model.vm import VmState

FIRST = "00000000-0000-4000-8000-000000000001"
SECOND = "00000000-0000-4000-8000-000000000002"


def definition(name="second", uuid=SECOND, extra=""):
    return (
        f"<domain type='test'><name>{name}</name><uuid>{uuid}</uuid><memory>8192</memory><vcpu>1</vcpu>"
        f"<os><type>hvm</type></os>{extra}</domain>"
    )


def record_of(xml):
    return etree.fromstring(xml).find("metadata/{urn:vgpuctl:1}promise")


def test_domains_are_listed_by_name(hypervisor):
    hypervisor.define(definition("a-third", "00000000-0000-4000-8000-000000000003"))
    result = hypervisor.domains()
    assert [(d.name, d.state) for d in result] == [("a-third", VmState.STOPPED), ("first", VmState.RUNNING)]
    assert result[0].live_xml is None
    assert "<name>first</name>" in result[1].live_xml


@pytest.mark.parametrize("key", ["first", FIRST, FIRST.upper()])
def test_domain_by_name_or_uuid(hypervisor, key):
    assert hypervisor.find_domain(key).uuid == FIRST


def test_a_uuid_wins_over_a_name_that_looks_like_it(hypervisor):
    hypervisor.define(definition(name=FIRST))
    assert hypervisor.find_domain(FIRST).uuid == FIRST
    hypervisor.undefine(SECOND)
    other = "00000000-0000-4000-8000-000000000000"
    hypervisor.define(definition(name=other))
    assert hypervisor.find_domain(other).uuid == SECOND


@pytest.mark.parametrize("key", ["fir", "FIRST", SECOND, ""])
def test_what_is_not_there_is_none(hypervisor, key):
    assert hypervisor.find_domain(key) is None


def test_a_life(hypervisor, clock):
    record = hypervisor.define(definition())
    assert (record.name, record.uuid, record.state, record.live_xml) == ("second", SECOND, VmState.STOPPED, None)
    hypervisor.start(SECOND)
    assert hypervisor.find_domain(SECOND).state is VmState.RUNNING
    assert hypervisor.wait_stopped(SECOND, 5.0) is False
    assert clock.passed == pytest.approx(5.0)
    hypervisor.shutdown(SECOND)
    assert hypervisor.wait_stopped(SECOND, 0.0) is True
    hypervisor.undefine(SECOND)
    assert hypervisor.find_domain(SECOND) is None
    assert hypervisor.wait_stopped(SECOND, 0.0) is True


def test_waiting_sees_the_end_when_it_comes(hypervisor, clock):
    def after_a_while():
        if clock.passed > 1:
            hypervisor.destroy(FIRST)

    clock.on_pause = after_a_while
    assert hypervisor.wait_stopped(FIRST, 60.0) is True
    assert clock.passed < 2


def test_forcing_off_twice_is_no_error(hypervisor):
    hypervisor.destroy(FIRST)
    hypervisor.destroy(FIRST)
    assert hypervisor.find_domain(FIRST).state is VmState.STOPPED


def test_a_running_domain_is_not_undefined(hypervisor):
    with pytest.raises(LibvirtFailed, match="first: it is running") as caught:
        hypervisor.undefine(FIRST)
    assert caught.value.hint == "vgpuctl stop-vm first"
    assert hypervisor.find_domain(FIRST) is not None


def test_a_name_that_is_taken_is_an_error_of_its_own(hypervisor):
    with pytest.raises(Exists, match="a VM named first already exists"):
        hypervisor.define(definition("first"))
    assert hypervisor.find_domain("first").uuid == FIRST


def test_an_attribute_that_this_libvirt_does_not_know_is_an_error(hypervisor):
    with pytest.raises(LibvirtFailed) as caught:
        hypervisor.define(definition(extra="<devices><nonsense/></devices>"))
    assert caught.value.facts["libvirt_code"] == constants.VIR_ERR_XML_INVALID_SCHEMA
    assert "cannot define VM second" in caught.value.message
    assert hypervisor.find_domain("second") is None


@pytest.mark.parametrize("xml", ["", "<domain", "<domain/>"])
def test_bad_xml_is_libvirts_to_explain(hypervisor, xml):
    with pytest.raises(LibvirtFailed, match="cannot define VM"):
        hypervisor.define(xml)


def test_a_call_names_the_vm_that_it_was_for(hypervisor):
    with pytest.raises(LibvirtFailed, match="cannot start VM first: ") as caught:
        hypervisor.start(FIRST)
    assert caught.value.facts["vm"] == "first"
    assert caught.value.facts["vm_uuid"] == FIRST
    with pytest.raises(LibvirtFailed, match=f"cannot start VM {SECOND}") as caught:
        hypervisor.start(SECOND)
    assert caught.value.facts["libvirt_code"] == constants.VIR_ERR_NO_DOMAIN


@pytest.mark.parametrize(
    "text",
    [
        '<promise state="ready"><vgpu index="0"/></promise>',
        '<vgpuctl:promise xmlns:vgpuctl="urn:vgpuctl:1" state="ready"><vgpuctl:vgpu index="0"/></vgpuctl:promise>',
    ],
)
def test_a_record_is_set_replaced_and_deleted(hypervisor, text):
    for uuid in (FIRST, hypervisor.define(definition()).uuid):
        hypervisor.set_record(uuid, '<promise state="making"/>')
        hypervisor.set_record(uuid, text)
        result = hypervisor.find_domain(uuid)
        for xml in filter(None, (result.xml, result.live_xml)):
            record = record_of(xml)
            assert record.get("state") == "ready"
            assert record.find("{urn:vgpuctl:1}vgpu").get("index") == "0"
        hypervisor.set_record(uuid, None)
        hypervisor.set_record(uuid, None)
        result = hypervisor.find_domain(uuid)
        assert record_of(result.xml) is None
        assert result.live_xml is None or record_of(result.live_xml) is None


def test_other_programs_metadata_stays(hypervisor):
    hypervisor.define(definition(extra='<metadata><o:x xmlns:o="urn:other">kept</o:x></metadata>'))
    hypervisor.set_record(SECOND, "<promise/>")
    hypervisor.set_record(SECOND, None)
    assert "kept" in hypervisor.find_domain(SECOND).xml


def test_what_undefine_would_take_along(hypervisor, connection):
    hypervisor.define(definition(extra="<devices><tpm model='tpm-crb'><backend type='emulator'/></tpm></devices>"))
    with connection.call("x", "cannot") as connect:
        domain = connect.lookupByUUIDString(SECOND)
        domain.snapshotCreateXML("<domainsnapshot><name>before</name></domainsnapshot>", 0)
        domain.create()
        domain.managedSave(0)
    result = hypervisor.leftovers(SECOND)
    assert (result.tpm, result.managed_save, result.snapshots, result.checkpoints) == (True, True, ("before",), ())
    assert result.nvram is None
    hypervisor.undefine(SECOND)
    assert hypervisor.find_domain(SECOND) is None


def test_the_variable_store_is_named(hypervisor):
    store = (
        "<os><type>hvm</type><loader readonly='yes' type='pflash'>/usr/share/OVMF/OVMF_CODE.fd</loader>"
        "<nvram>/var/lib/libvirt/qemu/nvram/second_VARS.fd</nvram></os>"
    )
    hypervisor.define(definition().replace("<os><type>hvm</type></os>", store))
    assert hypervisor.leftovers(SECOND).nvram == "/var/lib/libvirt/qemu/nvram/second_VARS.fd"


def test_networks(hypervisor):
    assert hypervisor.network("default").active
    assert hypervisor.network("none") is None


def test_a_driver_without_the_call_says_so(hypervisor):
    with pytest.raises(LibvirtFailed, match="domain capabilities") as caught:
        hypervisor.capabilities()
    assert caught.value.facts["libvirt_code"] == constants.VIR_ERR_NO_SUPPORT


def test_no_domain_call_under_the_host_lock(hypervisor, lock):
    hypervisor.domains()
    lock.on = True
    calls = (
        hypervisor.domains,
        hypervisor.status,
        hypervisor.capabilities,
        lambda: hypervisor.find_domain("first"),
        lambda: hypervisor.define(definition()),
        lambda: hypervisor.undefine(FIRST),
        lambda: hypervisor.set_record(FIRST, None),
        lambda: hypervisor.leftovers(FIRST),
        lambda: hypervisor.start(FIRST),
        lambda: hypervisor.shutdown(FIRST),
        lambda: hypervisor.destroy(FIRST),
        lambda: hypervisor.wait_stopped(FIRST, 0),
        lambda: hypervisor.network("default"),
    )
    for call in calls:
        with pytest.raises(AssertionError):
            call()


def test_a_definition_is_replaced_but_neither_renamed_nor_made(hypervisor):
    hypervisor.define(definition())
    changed = hypervisor.redefine(SECOND, definition(extra="<title>other</title>"))
    assert "<title>other</title>" in changed.xml
    with pytest.raises(LibvirtFailed) as caught:
        hypervisor.redefine(SECOND, definition(name="renamed"))
    assert caught.value.facts["libvirt_code"] == constants.VIR_ERR_OPERATION_FAILED
    with pytest.raises(LibvirtFailed) as caught:
        hypervisor.redefine("00000000-0000-4000-8000-000000000009", definition())
    assert caught.value.facts["libvirt_code"] == constants.VIR_ERR_NO_DOMAIN


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
    result = domains.read_addresses(connection, Card(answer), "lease")
    assert result == (GuestAddress("10.0.0.5", 24, "52:54:00:ab:00:01", "vnet0"),)


def test_a_card_without_an_address_of_its_own_has_no_mac(connection):
    (result,) = domains.read_addresses(connection, Card({"lo": {"addrs": [{"addr": "::1", "prefix": 128}]}}), "agent")
    assert result.mac is None


@pytest.mark.parametrize("source", ["lease", "agent", "arp"])
def test_each_source_has_its_number(connection, source):
    card = Card({})
    assert domains.read_addresses(connection, card, source) == ()
    assert card.asked == getattr(constants, f"VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_{source.upper()}")


@pytest.mark.parametrize("code", [1, 3, 29, 74, 86, 97])
def test_an_unavailable_source_is_none(connection, code):
    assert domains.read_addresses(connection, Card(code), "agent") is None


def test_a_domain_that_is_off_is_libvirts_own_error(connection, hypervisor):
    with pytest.raises(LibvirtFailed) as caught, connection.call("x", "cannot read"):
        domains.read_addresses(connection, Card(55), "agent")
    assert caught.value.facts["libvirt_code"] == 55
    with pytest.raises(LibvirtFailed) as caught:
        hypervisor.guest_addresses(hypervisor.define(SCREEN).uuid, "lease")
    assert caught.value.facts["libvirt_code"] == 55


def test_a_password_is_noted_not_shown(hypervisor):
    made = hypervisor.define(SCREEN)
    assert "s3cret" not in made.xml
    assert hypervisor.password_protected_graphics(made.uuid) == {"vnc"}
    assert hypervisor.password_protected_graphics(FIRST) == frozenset()
