# SPDX-License-Identifier: Apache-2.0
"""What libvirt knows of the system inside a domain: its addresses; and whether its screen asks for a password."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vgpuctl.host.virt import documents, numbers
from vgpuctl.model.records import GuestAddress

if TYPE_CHECKING:
    from vgpuctl.host.virt.connection import Connection, virDomain

SOURCES = {
    "agent": numbers.VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_AGENT,
    "lease": numbers.VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_LEASE,
    "arp": numbers.VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_ARP,
}
_SILENT = numbers.NOT_ALLOWED | {
    numbers.VIR_ERR_NO_SUPPORT,
    numbers.VIR_ERR_ARGUMENT_UNSUPPORTED,  # the domain has no channel for an agent
    numbers.VIR_ERR_AGENT_UNRESPONSIVE,
    numbers.VIR_ERR_AGENT_UNSYNCED,
    numbers.VIR_ERR_INTERNAL_ERROR,  # the guest's administrator forbade the agent's command
}


def addresses(connection: Connection, domain: virDomain, source: str) -> tuple[GuestAddress, ...] | None:
    """Return a guest's addresses, sorted by card; None when the source does not answer.

    Raises:
        libvirtError: anything else, as 55 for a domain that is off; the caller explains it.
    """
    answer: list[dict[str, dict[str, Any]]] = []
    if connection.tried(_SILENT, lambda: answer.append(domain.interfaceAddresses(SOURCES[source], 0))) is not None:
        return None
    found = []
    for name, card in sorted(answer[0].items()):
        mac = str(card.get("hwaddr") or "").lower() or None
        found += [GuestAddress(str(a["addr"]), int(a["prefix"]), mac, name) for a in card.get("addrs") or ()]
    return tuple(found)


def passwords(connection: Connection, domain: virDomain) -> frozenset[str] | None:
    """Return the kinds of graphics that ask for a password; None when the connection only reads."""
    kinds: set[str] = set()

    def look() -> None:
        root = documents.parsed(domain.XMLDesc(numbers.VIR_DOMAIN_XML_SECURE))
        kinds.update(str(entry.get("type")) for entry in root.findall("devices/graphics[@passwd]"))

    return None if connection.tried(numbers.NOT_ALLOWED, look) is not None else frozenset(kinds)
