# SPDX-License-Identifier: Apache-2.0
"""Addresses as the host sees them: a guest that claims another one is not believed."""

from __future__ import annotations

import pytest

from tests.hosts import context, create, request
from tests.meanwhile import with_calls
from vgpuctl.domain.console import parse_nic_bridges
from vgpuctl.errors import Busy
from vgpuctl.model.port_values import GuestAddress
from vgpuctl.operations.guest import read_addresses
from vgpuctl.operations.seen_addresses import find_neighbours, is_guests, parse_tables, read_tables

BASE = "/srv/images/ubuntu-24.04.qcow2"
MAC, OTHER = "52:54:00:00:00:01", "52:54:00:00:00:02"
ARP = f"""\
IP address       HW type     Flags       HW address            Mask     Device
10.20.0.7        0x1         0x2         {MAC}     *        br0
10.20.0.8        0x1         0x2         {OTHER}     *        br0
10.20.0.9        0x1         0x0         {MAC}     *        br0
192.0.2.66       0x1         0x2         {MAC}     *        br0
10.30.0.7        0x1         0x2         {MAC}     *        br1
"""
ROUTES = """\
Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
br0	00000000	0100140A	0003	0	0	0	00000000	0	0	0
br0	0000140A	00000000	0001	0	0	0	0000FFFF	0	0	0
br1	00001E0A	00000000	0001	0	0	0	0000FFFF	0	0	0
garbled
"""
LOCAL = "Main:\n     |-- 10.20.0.1\n        /32 host LOCAL\n     |-- 10.20.0.0\n        /16 link UNICAST\n"
LOCAL_6 = "20010db8000000000000000000000001 02 40 00 80     br0\nnothing\n"
TABLES = parse_tables(ARP, ROUTES, LOCAL, LOCAL_6)


def test_a_neighbour_counts_on_the_vms_own_bridge_and_in_its_subnet() -> None:
    """Left out: another card's, one without an answer, one outside the subnet, one on another bridge."""
    assert list(find_neighbours(TABLES, {MAC: "br0"})) == [GuestAddress("10.20.0.7", 16, MAC, "br0")]
    assert list(find_neighbours(TABLES, {MAC: "br2"})) == []


@pytest.mark.parametrize(
    ("address", "counts"),
    [
        ("10.20.0.7", True),
        ("2001:db8::7", True),
        ("10.20.0.1", False),  # the host's own
        ("2001:db8::1", False),
        ("127.0.0.1", False),
        ("169.254.1.1", False),
        ("fe80::1", False),
        ("224.0.0.1", False),
        ("0.0.0.0", False),
        ("255.255.255.255", False),
    ],
)
def test_which_addresses_can_be_a_guests(address: str, counts: bool) -> None:
    assert is_guests(address, TABLES.own) is counts


def test_the_bridge_of_each_network_card_of_a_running_vm() -> None:
    xml = f"""<domain type='kvm'><devices>
    <interface type='network'><mac address='{MAC.upper()}'/><source network='lan' bridge='virbr7'/></interface>
    <interface type='bridge'><mac address='{OTHER}'/><source bridge='br0'/></interface>
    <interface type='direct'><mac address='52:54:00:00:00:03'/><source dev='eth0' mode='vepa'/></interface>
    <interface type='hostdev'><mac address='52:54:00:00:00:04'/></interface></devices></domain>"""
    assert parse_nic_bridges(xml) == {MAC: "virbr7", OTHER: "br0"}


def test_what_the_guest_says_does_not_count(ports) -> None:
    vm = create(ports, request("A100-4C", name="vm", image=BASE)).data
    claim = GuestAddress("203.0.113.66", 24, None, "eth0")
    genuine = ports.hypervisor.guest_addresses
    lying = with_calls(ports, "hypervisor", guest_addresses=lambda u, s: (claim,) if s == "agent" else genuine(u, s))
    assert read_addresses(lying, context(), "vm").data.addresses[0].address == claim.address
    seen = read_addresses(lying, context(), "vm", seen_by_host=True).data
    assert (seen.source, [one.address for one in seen.addresses]) == (
        "lease",
        [one.address for one in genuine(vm.uuid, "lease")],
    )


@pytest.mark.parametrize("claimed", ["192.168.122.1", "127.0.0.1", "169.254.9.9"])
def test_a_lease_of_the_hosts_own_address_or_of_another_card_does_not_count(ports, claimed: str) -> None:
    create(ports, request("A100-4C", name="vm", image=BASE))
    (genuine,) = ports.hypervisor.guest_addresses(ports.hypervisor.find_domain("vm").uuid, "lease")
    for given in (GuestAddress(claimed, 24, genuine.mac, "vnet0"), GuestAddress("192.168.122.9", 24, OTHER, "vnet0")):
        host = with_calls(ports, "hypervisor", guest_addresses=lambda u, s, given=given: (given,))
        with pytest.raises(Busy, match="DHCP knows none, ARP knows none") as caught:
            read_addresses(host, context(), "vm", seen_by_host=True)
        assert "on a bridge where it has an address itself" in caught.value.hint


def test_a_host_without_these_tables_sees_no_neighbours(ports) -> None:
    def nothing(path: str) -> str:
        raise FileNotFoundError(path)

    tables = read_tables(with_calls(ports, "sysfs", read=nothing))
    assert (tables.neighbours, dict(tables.subnets), tables.own) == ((), {}, frozenset())
