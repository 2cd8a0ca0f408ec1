# SPDX-License-Identifier: Apache-2.0
"""Changes of an existing domain: its definition, and mdevs that are attached and detached.

The guest has no operating system, so it may or may not release a device. The tests cover what libvirt guarantees in
both cases.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.site import Site, libvirt_refuses, new_uuid
from vgpuctl.domain.domain_edit import count_root_ports
from vgpuctl.domain.domain_xml import parse_hostdevs
from vgpuctl.model.port_values import DetachOutcome

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
    """The UUID of a defined domain with one root port; the fixture removes the domain afterwards."""
    new = new_uuid()
    site.ports.hypervisor.define(DOMAIN.format(name="contract-plug", uuid=new, extra=""))
    yield new
    site.ports.hypervisor.destroy(new)
    site.ports.hypervisor.undefine(new)


@pytest.fixture
def carriers(site: Site) -> Iterator[tuple[str, str]]:
    """Two mdevs; the fixture removes them after the domain is off."""
    uuids = (new_uuid(), new_uuid())
    for device in uuids:
        site.ports.sysfs.write(site.mdev_file(site.gpu, TYPE, "create"), f"{device}\n")
    yield uuids
    for device in uuids:
        site.remove(device)


def device(carrier: str, alias: str = "ua-contract") -> str:
    return HOSTDEV.format(carrier=carrier, alias=alias)


def attach(site: Site, uuid: str, xml: str, *, live: bool) -> None:
    site.ports.hypervisor.attach_device(uuid, xml, live)


def in_config(site: Site, uuid: str) -> list[str]:
    return [h.carrier for h in parse_hostdevs(site.domain(uuid).xml)]


def test_a_definition_is_replaced_and_read_back(site: Site, uuid: str) -> None:
    xml = DOMAIN.format(name="contract-plug", uuid=uuid, extra="<title>other</title>")
    assert "<title>other</title>" in site.ports.hypervisor.redefine(uuid, xml).xml
    assert [d.name for d in site.ports.hypervisor.domains()].count("contract-plug") == 1


def test_libvirts_own_xml_can_be_defined_again_and_reads_the_same(site: Site, uuid: str) -> None:
    before = site.domain(uuid).xml
    assert site.ports.hypervisor.redefine(uuid, before).xml == before


def test_a_password_is_hidden_but_stays_in_the_definition(site: Site, uuid: str) -> None:
    graphics = "<graphics type='vnc' port='-1' passwd='secret'/></devices>"
    xml = DOMAIN.format(name="contract-plug", uuid=uuid, extra="").replace("</devices>", graphics)
    assert "secret" not in site.ports.hypervisor.redefine(uuid, xml).xml
    assert "secret" not in site.domain(uuid).xml
    assert "secret" in site.ports.hypervisor.definition(uuid)


def test_redefine_neither_renames_nor_creates_a_domain(site: Site, uuid: str) -> None:
    with libvirt_refuses(9):
        site.ports.hypervisor.redefine(uuid, DOMAIN.format(name="contract-other", uuid=uuid, extra=""))
    missing = new_uuid()
    with libvirt_refuses(42):
        site.ports.hypervisor.redefine(missing, DOMAIN.format(name="contract-other", uuid=missing, extra=""))
    assert site.ports.hypervisor.find_domain("contract-other") is None


def test_an_attribute_the_schema_does_not_know_is_error_92_and_nothing_changes(site: Site, uuid: str) -> None:
    before = site.domain(uuid).xml
    with libvirt_refuses(92):
        site.ports.hypervisor.redefine(uuid, before.replace("<vcpu", "<vcpu no-such='1'", 1))
    assert site.domain(uuid).xml == before


def test_a_device_is_attached_and_detached_while_the_domain_is_off(site: Site, uuid: str) -> None:
    absent = new_uuid()
    attach(site, uuid, device(absent), live=False)
    assert in_config(site, uuid) == [absent]
    with libvirt_refuses(67):
        attach(site, uuid, device(absent), live=False)
    site.ports.hypervisor.detach_device(uuid, "ua-contract", live=False, config=True)
    assert in_config(site, uuid) == []


def test_detaching_a_missing_device_is_error_1(site: Site, uuid: str) -> None:
    with libvirt_refuses(1):
        site.ports.hypervisor.detach_device(uuid, "ua-nothing", live=False, config=True)


def test_a_live_attach_to_a_stopped_domain_is_error_55_and_keeps_the_config(site: Site, uuid: str) -> None:
    with libvirt_refuses(55):
        attach(site, uuid, device(new_uuid()), live=True)
    assert in_config(site, uuid) == []


def test_a_running_domain_takes_one_device_for_each_root_port(site: Site, carriers: tuple[str, str], uuid: str) -> None:
    first, second = carriers
    site.ports.hypervisor.start(uuid)
    assert count_root_ports(site.domain(uuid).live_xml or "").free == 1
    attach(site, uuid, device(first), live=True)
    live = site.domain(uuid).live_xml or ""
    assert [h.carrier for h in parse_hostdevs(live)] == in_config(site, uuid) == [first]
    assert count_root_ports(live).free == 0
    with libvirt_refuses(1):
        attach(site, uuid, device(second, "ua-contract-2"), live=True)
    assert in_config(site, uuid) == [first]


def test_a_live_attach_of_a_missing_mdev_is_error_99_and_keeps_the_config(site: Site, uuid: str) -> None:
    site.ports.hypervisor.start(uuid)
    with libvirt_refuses(99):
        attach(site, uuid, device(new_uuid()), live=True)
    assert in_config(site, uuid) == []


def test_a_detach_changes_the_config_and_the_guest_may_keep_the_device(
    site: Site, carriers: tuple[str, str], uuid: str
) -> None:
    site.ports.hypervisor.start(uuid)
    attach(site, uuid, device(carriers[0]), live=True)
    with site.ports.hypervisor.watch_device_removal(uuid, "ua-contract") as removal:
        site.ports.hypervisor.detach_device(uuid, "ua-contract", live=True, config=True)
        reported = removal.wait(10)
    assert in_config(site, uuid) == []
    live = [h.carrier for h in parse_hostdevs(site.domain(uuid).live_xml or "")]
    assert (reported, live) in (
        (DetachOutcome.REMOVED, []),
        (DetachOutcome.UNKNOWN, [carriers[0]]),
        (DetachOutcome.REFUSED, [carriers[0]]),
    )


def test_a_running_domain_names_a_device_without_an_alias_and_detaches_it_by_that(
    site: Site, carriers: tuple[str, str], uuid: str
) -> None:
    """Libvirt gives it one at the start, and none in the config, from which a new definition takes it."""
    own = HOSTDEV.format(carrier=carriers[0], alias="").replace("<alias name=''/>", "")
    domain = DOMAIN.format(name="contract-plug", uuid=uuid, extra="")
    site.ports.hypervisor.redefine(uuid, domain.replace("</devices>", f"{own}</devices>"))
    site.ports.hypervisor.start(uuid)
    info = site.domain(uuid)
    (config,), (live,) = parse_hostdevs(info.xml), parse_hostdevs(info.live_xml or "")
    assert (config.alias, live.alias) == (None, "hostdev0")
    with site.ports.hypervisor.watch_device_removal(uuid, "hostdev0") as removal:
        site.ports.hypervisor.detach_device(uuid, "hostdev0", live=True, config=False)
        reported = removal.wait(10)
    assert in_config(site, uuid) == [carriers[0]]
    left = [h.carrier for h in parse_hostdevs(site.domain(uuid).live_xml or "")]
    assert (reported is DetachOutcome.REMOVED) == (left == [])
    site.ports.hypervisor.redefine(uuid, domain)
    assert in_config(site, uuid) == []
    assert [h.carrier for h in parse_hostdevs(site.domain(uuid).live_xml or "")] == left


def test_destroying_the_guest_removes_the_device(site: Site, carriers: tuple[str, str], uuid: str) -> None:
    site.ports.hypervisor.start(uuid)
    attach(site, uuid, device(carriers[0]), live=True)
    with site.ports.hypervisor.watch_device_removal(uuid, "ua-contract") as removal:
        site.ports.hypervisor.destroy(uuid)
        assert removal.wait(60) is DetachOutcome.REMOVED


def test_watching_a_missing_domain_is_error_42(site: Site) -> None:
    with libvirt_refuses(42), site.ports.hypervisor.watch_device_removal(new_uuid(), "ua-contract"):
        pass
