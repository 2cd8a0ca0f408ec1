# SPDX-License-Identifier: Apache-2.0
"""Where a desktop's user is sent: its address of those that its host sees, and how its screen is opened there."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote

OPEN_RDP = "rdp"
"""Instead of a template: by an RDP file."""
ADDRESS, USER, NAME = "{address}", "{user}", "{name}"
"""What the template of a link has for the desktop's address, its user and its own name."""


class ChosenAddress(NamedTuple):
    """An address that a desktop's user is sent to; `problem`: why there is none."""

    address: str | None
    problem: str | None = None


def choose_address(
    seen: Sequence[str], ranges: Sequence[str], of_hosts: frozenset[str], *, of_leases: bool
) -> ChosenAddress:
    """Choose an address that is in a pool's ranges, and no host's.

    `ranges`: subnets; none: each address is right. `of_leases`: the addresses are leases, else entries of an ARP table:
    those may be old, so of several none is chosen.
    """
    fitting = [text for text in seen if is_in_ranges(text, ranges)]
    own = [text for text in fitting if text not in of_hosts]
    if not own:
        where = "a host's" if fitting else "not in the pool's addresses"
        return ChosenAddress(None, f"{', '.join(seen)}: {where}")
    if len(own) > 1 and not of_leases:
        return ChosenAddress(
            None, f"the host's ARP table has several addresses for it: {', '.join(own)}; use addresses or dns_name"
        )
    return ChosenAddress(own[0])


def is_in_ranges(text: str, ranges: Sequence[str]) -> bool:
    """Return whether a text is an address in one of these subnets; without subnets: whether it is an address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not ranges or any(address in ipaddress.ip_network(subnet) for subnet in ranges)


def fill_link(template: str, address: str, user: str, name: str) -> str:
    """Return the link that opens a desktop. An IPv6 address is in brackets; other characters are percent-encoded."""
    host = f"[{address}]" if ":" in address else quote(address, safe="")
    return template.replace(ADDRESS, host).replace(USER, quote(user, safe="")).replace(NAME, quote(name, safe=""))
