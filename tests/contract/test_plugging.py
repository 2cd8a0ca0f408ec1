# SPDX-License-Identifier: Apache-2.0
"""Changing a domain that exists: its definition, and an mdev that comes and goes while it runs.

The guest here has no system: it may or may not release a device. The tests cover libvirt's guarantees in both cases.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.site import Site, new_uuid
from vgpuctl.domain.domain_edit import count_root_ports
from vgpuctl.domain.domain_xml import parse_hostdevs
from vgpuctl.errors import LibvirtFailed
from vgpuctl.model.port_values import DetachOutcome, DomainInfo

pytestmark = pytest.mark.forms("mdev-pf")
DOMAIN = """<domain type='kvm'><name>{name}</name><uuid>{uuid}</uuid>{extra}<memory unit='MiB'>64</memory>
<vcpu>1</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os><devices>
<controller type='pci' index='0' model='pcie-root'/><controller type='pci' index='1' model='pcie-root-port'/>
<controller type='usb' model='none'/><memballoon model='none'/></devices></domain>"""
HOSTDEV = """<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source><address uuid='{carrier}'/></source>
<alias name='{alias}'/></hostdev>"""
TYPE = "nvidia-468"


@pytest.fixture
def uuid(site: Site) -> Iterator[str]:
    """A defined domain with one root port; it goes afterwards."""
    wanted = new_uuid()
    site.ports.hypervisor.define(DOMAIN.format(name="contract-plug", uuid=wanted, extra=""))
    yield wanted
    site.ports.hypervisor.destroy(wanted)
    site.ports.hypervisor.undefine(wanted)


@pytest.fixture
def carriers(site: Site) -> Iterator[tuple[str, str]]:
    """Two mdevs; they go afterwards, after the domain is off."""
    made = (new_uuid(), new_uuid())
    for device in made:
        site.ports.sysfs.write(site.mdev_file(site.gpu, TYPE, "create"), f"{device}\n")
    yield made
    for device in made:
        site.remove(device)


def device(carrier: str, alias: str = "ua-contract") -> str:
    return HOSTDEV.format(carrier=carrier, alias=alias)


def attach(site: Site, uuid: str, xml: str, *, live: bool) -> None:
    site.ports.hypervisor.attach_device(uuid, xml, live)


def record(site: Site, uuid: str) -> DomainInfo:
    found = site.ports.hypervisor.find_domain(uuid)
    assert found is not None
    return found


def in_config(site: Site, uuid: str) -> list[str]:
    return [h.carrier for h in parse_hostdevs(record(site, uuid).xml)]


def number(caught: pytest.ExceptionInfo[LibvirtFailed]) -> object:
    return caught.value.facts["libvirt_code"]


def test_a_definition_is_replaced_and_read_back(site: Site, uuid: str) -> None:
    xml = DOMAIN.format(name="contract-plug", uuid=uuid, extra="<title>other</title>")
    assert "<title>other</title>" in site.ports.hypervisor.redefine(uuid, xml).xml
    assert [d.name for d in site.ports.hypervisor.domains()].count("contract-plug") == 1


def test_what_libvirt_gave_can_be_defined_again_and_reads_the_same(site: Site, uuid: str) -> None:
    was = record(site, uuid).xml
    assert site.ports.hypervisor.redefine(uuid, was).xml == was


def test_a_password_is_hidden_but_stays_in_the_definition(site: Site, uuid: str) -> None:
    graphics = "<graphics type='vnc' port='-1' passwd='secret'/></devices>"
    xml = DOMAIN.format(name="contract-plug", uuid=uuid, extra="").replace("</devices>", graphics)
    assert "secret" not in site.ports.hypervisor.redefine(uuid, xml).xml
    assert "secret" not in record(site, uuid).xml
    assert "secret" in site.ports.hypervisor.definition(uuid)


def test_a_definition_is_not_renamed_and_not_made(site: Site, uuid: str) -> None:
    with pytest.raises(LibvirtFailed) as caught:
        site.ports.hypervisor.redefine(uuid, DOMAIN.format(name="contract-other", uuid=uuid, extra=""))
    assert number(caught) == 9
    nobody = new_uuid()
    with pytest.raises(LibvirtFailed) as caught:
        site.ports.hypervisor.redefine(nobody, DOMAIN.format(name="contract-other", uuid=nobody, extra=""))
    assert number(caught) == 42
    assert site.ports.hypervisor.find_domain("contract-other") is None


def test_an_attribute_the_schema_does_not_know_is_error_92_and_nothing_changes(site: Site, uuid: str) -> None:
    was = record(site, uuid).xml
    with pytest.raises(LibvirtFailed) as caught:
        site.ports.hypervisor.redefine(uuid, was.replace("<vcpu", "<vcpu no-such='1'", 1))
    assert number(caught) == 92
    assert record(site, uuid).xml == was


def test_a_device_of_a_domain_that_is_off_comes_and_goes(site: Site, uuid: str) -> None:
    absent = new_uuid()
    attach(site, uuid, device(absent), live=False)
    assert in_config(site, uuid) == [absent]
    with pytest.raises(LibvirtFailed) as caught:
        attach(site, uuid, device(absent), live=False)
    assert number(caught) == 67
    site.ports.hypervisor.detach_device(uuid, "ua-contract", live=False, config=True)
    assert in_config(site, uuid) == []


def test_what_is_not_attached_is_error_1(site: Site, uuid: str) -> None:
    with pytest.raises(LibvirtFailed) as caught:
        site.ports.hypervisor.detach_device(uuid, "ua-nothing", live=False, config=True)
    assert number(caught) == 1


def test_a_domain_that_is_off_takes_nothing_live_and_keeps_its_config(site: Site, uuid: str) -> None:
    with pytest.raises(LibvirtFailed) as caught:
        attach(site, uuid, device(new_uuid()), live=True)
    assert number(caught) == 55
    assert in_config(site, uuid) == []


def test_a_running_domain_has_as_many_devices_plugged_in_as_it_has_root_ports(
    site: Site, carriers: tuple[str, str], uuid: str
) -> None:
    first, second = carriers
    site.ports.hypervisor.start(uuid)
    assert count_root_ports(record(site, uuid).live_xml or "").free == 1
    attach(site, uuid, device(first), live=True)
    live = record(site, uuid).live_xml or ""
    assert [h.carrier for h in parse_hostdevs(live)] == in_config(site, uuid) == [first]
    assert count_root_ports(live).free == 0
    with pytest.raises(LibvirtFailed) as caught:
        attach(site, uuid, device(second, "ua-contract-2"), live=True)
    assert number(caught) == 1
    assert in_config(site, uuid) == [first]


def test_an_mdev_that_does_not_exist_is_error_99_live_and_the_config_stays(site: Site, uuid: str) -> None:
    site.ports.hypervisor.start(uuid)
    with pytest.raises(LibvirtFailed) as caught:
        attach(site, uuid, device(new_uuid()), live=True)
    assert number(caught) == 99
    assert in_config(site, uuid) == []


def test_a_detach_takes_it_from_the_config_and_the_guest_may_keep_it(
    site: Site, carriers: tuple[str, str], uuid: str
) -> None:
    site.ports.hypervisor.start(uuid)
    attach(site, uuid, device(carriers[0]), live=True)
    with site.ports.hypervisor.watch_device_removal(uuid, "ua-contract") as removal:
        site.ports.hypervisor.detach_device(uuid, "ua-contract", live=True, config=True)
        told = removal.wait(10)
    assert in_config(site, uuid) == []
    live = [h.carrier for h in parse_hostdevs(record(site, uuid).live_xml or "")]
    assert (told, live) in (
        (DetachOutcome.REMOVED, []),
        (DetachOutcome.UNKNOWN, [carriers[0]]),
        (DetachOutcome.REFUSED, [carriers[0]]),
    )


def test_a_guest_that_is_turned_off_has_nothing_plugged_in(site: Site, carriers: tuple[str, str], uuid: str) -> None:
    site.ports.hypervisor.start(uuid)
    attach(site, uuid, device(carriers[0]), live=True)
    with site.ports.hypervisor.watch_device_removal(uuid, "ua-contract") as removal:
        site.ports.hypervisor.destroy(uuid)
        assert removal.wait(60) is DetachOutcome.REMOVED


def test_events_of_a_missing_domain_fail(site: Site) -> None:
    with pytest.raises(LibvirtFailed) as caught, site.ports.hypervisor.watch_device_removal(new_uuid(), "ua-contract"):
        pass
    assert number(caught) == 42
