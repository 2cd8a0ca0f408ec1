# SPDX-License-Identifier: Apache-2.0
"""Where a desktop's user is sent: its address of those that its host sees, and how its screen is opened there."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import quote

OPEN_RDP = "rdp"
"""Instead of a template: by an RDP file."""
ADDRESS, USER, NAME = "{address}", "{user}", "{name}"
"""What the template of a link has for the desktop's address, its user and its own name."""


def choose_address(seen: Sequence[str], ranges: Sequence[str], of_hosts: frozenset[str]) -> str | None:
    """Return the first address that is in a pool's ranges, and no host's; None: there is none.

    `ranges`: subnets; none: each address is right.
    """
    subnets = [ipaddress.ip_network(text) for text in ranges]
    for text in seen:
        address = ipaddress.ip_address(text)
        if str(address) not in of_hosts and (not subnets or any(address in subnet for subnet in subnets)):
            return text
    return None


def fill_link(template: str, address: str, user: str, name: str) -> str:
    """Return the link that opens a desktop. An IPv6 address is in brackets; other characters are percent-encoded."""
    host = f"[{address}]" if ":" in address else quote(address, safe="")
    return template.replace(ADDRESS, host).replace(USER, quote(user, safe="")).replace(NAME, quote(name, safe=""))
