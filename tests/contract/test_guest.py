# SPDX-License-Identifier: Apache-2.0
"""What libvirt reports about a guest and its graphics, for domains without an operating system."""

from __future__ import annotations

import pytest

from tests.contract.site import Site, libvirt_refuses, new_uuid
from tests.contract.test_libvirt import DOMAIN
from vgpuctl.domain.console import parse_consoles, parse_nic_bridges
from vgpuctl.model.port_values import DomainInfo
from vgpuctl.operations.seen_addresses import read_tables

pytestmark = pytest.mark.forms("mdev-pf")
SCREEN = "<graphics type='vnc' port='-1' autoport='yes'{more}><listen type='address' address='127.0.0.1'/></graphics>"
CONSOLE = "<console type='pty'><target type='serial' port='0'/></console>"
CHANNEL = "<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>"
SECRET = "passw0rd"


def define(site: Site, uuid: str, devices: str) -> DomainInfo:
    return site.ports.hypervisor.define(DOMAIN.format(name=f"guest-{uuid[:8]}", uuid=uuid, devices=devices, cpu=""))


def test_guest_addresses_of_a_stopped_domain_are_error_55(site: Site, uuid: str) -> None:
    define(site, uuid, CHANNEL)
    for source in ("agent", "lease", "arp"):
        with libvirt_refuses(55):
            site.ports.hypervisor.guest_addresses(uuid, source)


def test_without_a_guest_agent_no_source_knows_an_address(site: Site, uuid: str) -> None:
    for devices in ("", CHANNEL):
        define(site, uuid, devices)
        site.ports.hypervisor.start(uuid)
        assert site.ports.hypervisor.guest_addresses(uuid, "agent") is None
        assert site.ports.hypervisor.guest_addresses(uuid, "lease") == ()
        assert site.ports.hypervisor.guest_addresses(uuid, "arp") == ()
        site.ports.hypervisor.destroy(uuid)


def test_a_running_domain_names_the_bridge_of_its_network_and_the_host_its_subnets(site: Site, uuid: str) -> None:
    card = "<interface type='network'><mac address='52:54:00:12:34:56'/><source network='default'/></interface>"
    define(site, uuid, card)
    site.ports.hypervisor.start(uuid)
    running = site.ports.hypervisor.find_domain(uuid)
    assert running is not None
    assert running.live_xml is not None
    bridge = parse_nic_bridges(running.live_xml)["52:54:00:12:34:56"]
    tables = read_tables(site.ports)
    (subnet,) = tables.subnets[bridge]
    assert any(own in subnet for own in tables.own)
    assert "52:54:00:12:34:56" not in {mac for _, mac, _ in tables.neighbours}
    site.ports.hypervisor.destroy(uuid)


def test_an_unknown_domain_is_error_42(site: Site) -> None:
    for call in (
        lambda: site.ports.hypervisor.guest_addresses(new_uuid(), "lease"),
        lambda: site.ports.hypervisor.password_protected_graphics(new_uuid()),
    ):
        with libvirt_refuses(42):
            call()


def test_a_password_is_reported_not_shown(site: Site, uuid: str) -> None:
    domain = define(site, uuid, SCREEN.format(more=f" passwd='{SECRET}'"))
    assert SECRET not in domain.xml
    assert site.ports.hypervisor.password_protected_graphics(uuid) == {"vnc"}


def test_graphics_without_a_password(site: Site, uuid: str) -> None:
    define(site, uuid, SCREEN.format(more=""))
    assert site.ports.hypervisor.password_protected_graphics(uuid) == frozenset()


def test_libvirt_assigns_port_and_terminal_at_the_start(site: Site, uuid: str) -> None:
    stopped = parse_consoles(define(site, uuid, SCREEN.format(more="") + CONSOLE).xml)
    assert [(s.kind, s.port, s.listen) for s in stopped.graphics] == [("vnc", None, "127.0.0.1")]
    assert stopped.serial_consoles == (("serial", None),)
    site.ports.hypervisor.start(uuid)
    record = site.domain(uuid)
    assert record.live_xml is not None
    live = parse_consoles(record.live_xml)
    (screen,), ((kind, terminal),) = live.graphics, live.serial_consoles
    assert (screen.port or 0) >= 5900
    assert screen.listen == "127.0.0.1"
    assert kind == "serial"
    assert str(terminal).startswith("/dev/pts/")
