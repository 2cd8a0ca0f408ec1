# SPDX-License-Identifier: Apache-2.0
"""What libvirt reports about a domain's guest: its addresses, and whether its console has a password."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vgpuctl.host.virt import constants, libvirt_xml
from vgpuctl.model.port_values import GuestAddress

if TYPE_CHECKING:
    from vgpuctl.host.virt.connection import LibvirtConnection, virDomain

ADDRESS_SOURCES = {
    "agent": constants.VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_AGENT,
    "lease": constants.VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_LEASE,
    "arp": constants.VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_ARP,
}
_NO_ANSWER_ERRORS = constants.PERMISSION_ERRORS | {
    constants.VIR_ERR_NO_SUPPORT,
    constants.VIR_ERR_ARGUMENT_UNSUPPORTED,  # the domain has no agent channel
    constants.VIR_ERR_AGENT_UNRESPONSIVE,
    constants.VIR_ERR_AGENT_UNSYNCED,
    constants.VIR_ERR_INTERNAL_ERROR,  # the guest's administrator forbade the agent's command
}


def read_addresses(connection: LibvirtConnection, domain: virDomain, source: str) -> tuple[GuestAddress, ...] | None:
    """Return a guest's addresses, sorted by card; None when the source does not answer.

    Raises:
        libvirtError: any other error, such as 55 for a domain that is off; the caller translates it.
    """
    results: list[dict[str, dict[str, Any]]] = []
    if (
        connection.attempt(
            _NO_ANSWER_ERRORS, lambda: results.append(domain.interfaceAddresses(ADDRESS_SOURCES[source], 0))
        )
        is not None
    ):
        return None
    addresses = []
    for name, card in sorted(results[0].items()):
        mac = str(card.get("hwaddr") or "").lower() or None
        addresses += [
            GuestAddress(str(entry["addr"]), int(entry["prefix"]), mac, name) for entry in card.get("addrs") or ()
        ]
    return tuple(addresses)


def read_password_protected_graphics(connection: LibvirtConnection, domain: virDomain) -> frozenset[str] | None:
    """Return the graphics types that have a password; None when the connection is read-only."""
    types: set[str] = set()

    def read_types() -> None:
        root = libvirt_xml.parse_xml(domain.XMLDesc(constants.VIR_DOMAIN_XML_SECURE))
        types.update(str(entry.get("type")) for entry in root.findall("devices/graphics[@passwd]"))

    return None if connection.attempt(constants.PERMISSION_ERRORS, read_types) is not None else frozenset(types)
