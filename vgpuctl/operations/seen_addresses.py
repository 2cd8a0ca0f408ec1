# SPDX-License-Identifier: Apache-2.0
"""A guest's addresses as its host sees them, whatever the guest says: somebody is going to type a password there.

A DHCP lease that libvirt's network gave to a network card of the VM counts, then an entry of the host's neighbour
table (`/proc/net/arp`, IPv4) with the card's MAC address, on the card's own bridge, and in a subnet of that bridge. An
entry follows from what the guest sends, so it can name any address of that subnet, and none elsewhere. Addresses of
the host itself, loopback, link-local and multicast never count.
"""

from __future__ import annotations

import ipaddress
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from typing import TYPE_CHECKING

from vgpuctl.domain.console import parse_nic_bridges
from vgpuctl.model.port_values import GuestAddress
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

ARP, ROUTES, LOCAL_ADDRESSES, LOCAL_ADDRESSES_6 = (
    "/proc/net/arp", "/proc/net/route", "/proc/net/fib_trie", "/proc/net/if_inet6",
)  # fmt: skip
SEEN_SOURCES = ("lease", "arp")
_COMPLETE = 0x2
"""A flag of the neighbour table: the entry has a MAC address (the kernel's include/uapi/linux/if_arp.h)."""
_LOCAL = re.compile(r"\|-- ([0-9.]+)\n\s*/32 host LOCAL")


class NetworkTables(Value):
    """What the kernel's tables say. `neighbours`: (address, MAC in lower case, interface).

    `subnets`: the subnets at each interface; `own`: the host's own addresses.
    """

    neighbours: tuple[tuple[str, str, str], ...]
    subnets: Mapping[str, tuple[IPv4Network, ...]]
    own: frozenset[IPv4Address | IPv6Address]


def read_seen(host: Host, uuid: str, live_xml: str, source: str) -> tuple[GuestAddress, ...] | None:
    """Return the addresses of a running VM's network cards that a source of `SEEN_SOURCES` has seen.

    None: the source does not answer.
    """
    bridges, tables = parse_nic_bridges(live_xml), read_tables(host)
    if source == "arp":
        seen: tuple[GuestAddress, ...] | None = tuple(find_neighbours(tables, bridges))
    else:
        seen = host.hypervisor.guest_addresses(uuid, source)
    if seen is None:
        return None
    return tuple(one for one in seen if one.mac in bridges and is_guests(one.address, tables.own))


def sees_address(host: Host, uuid: str, live_xml: str, address: str) -> bool:
    """Return whether an address is one of a running VM, by any source."""
    seen = (one for source in SEEN_SOURCES for one in read_seen(host, uuid, live_xml, source) or ())
    return any(one.address == address for one in seen)


def read_tables(host: Host) -> NetworkTables:
    """Read the kernel's tables; what cannot be read is empty."""
    arp, routes, local, local_6 = (_text(host, path) for path in (ARP, ROUTES, LOCAL_ADDRESSES, LOCAL_ADDRESSES_6))
    return parse_tables(arp, routes, local, local_6)


def parse_tables(arp: str, routes: str, local: str, local_6: str) -> NetworkTables:
    """Return what these texts say; lines that say nothing are left out."""
    own = {ipaddress.ip_address(text) for text in _LOCAL.findall(local)}
    own |= {IPv6Address(int(line[:32], 16)) for line in local_6.splitlines() if re.match(r"[0-9a-f]{32} ", line)}
    return NetworkTables(tuple(_neighbours(arp)), _subnets(routes), frozenset(own))


def _neighbours(text: str) -> Iterator[tuple[str, str, str]]:
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) == 6 and int(words[2], 16) & _COMPLETE:
            yield words[0], words[3].lower(), words[5]


def _subnets(text: str) -> dict[str, tuple[IPv4Network, ...]]:
    """Return the subnets that are directly at each interface: the routes without a gateway."""
    subnets: dict[str, tuple[IPv4Network, ...]] = {}
    for line in text.splitlines()[1:]:
        words = line.split()
        with suppress(ValueError, IndexError):
            subnet, gateway, mask = (IPv4Address(struct.pack("=I", int(words[at], 16))) for at in (1, 2, 7))
            if not int(gateway) and int(mask):
                subnets[words[0]] = (*subnets.get(words[0], ()), IPv4Network((int(subnet), str(mask)), strict=False))
    return subnets


def find_neighbours(tables: NetworkTables, bridges: Mapping[str, str]) -> Iterator[GuestAddress]:
    """Yield the neighbour table's addresses of network cards: `bridges` has the bridge of each by its MAC address."""
    for address, mac, interface in tables.neighbours:
        if bridges.get(mac) != interface:
            continue
        for subnet in tables.subnets.get(interface, ()):
            if ipaddress.ip_address(address) in subnet:
                yield GuestAddress(address, subnet.prefixlen, mac, interface)


def is_guests(text: str, own: frozenset[IPv4Address | IPv6Address]) -> bool:
    """Return whether an address can be a guest's, seen from elsewhere, and is none of the host's own."""
    address = ipaddress.ip_address(text)
    return address not in own and not (
        address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified
        or address.is_reserved
    )  # fmt: skip


def _text(host: Host, path: str) -> str:
    try:
        return host.sysfs.read(path)
    except OSError:
        return ""
