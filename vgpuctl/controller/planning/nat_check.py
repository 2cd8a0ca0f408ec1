# SPDX-License-Identifier: Apache-2.0
"""Whether users can reach a pool's desktops at all: behind a host's NAT they cannot, unless somebody carries them."""

from __future__ import annotations

from collections.abc import Mapping

from vgpuctl.config.arguments import NONE
from vgpuctl.config.device_rules import parse_nic
from vgpuctl.config.vm_request import FIELDS
from vgpuctl.controller.model import PoolKind, PoolSpec
from vgpuctl.controller.planning.desktop_address import ADDRESS, OPEN_RDP

NAT = "nat"


def nat_problem(spec: PoolSpec, networks: Mapping[str, Mapping[str, str]]) -> str | None:
    """Return why users cannot reach the desktops of a pool; None: they can, as far as is known.

    `networks`: by the name of each host that the pool may use, how its networks forward.
    """
    has_gateway = spec.open not in (None, OPEN_RDP) and ADDRESS not in str(spec.open)
    if spec.kind is PoolKind.FIXED or spec.connect or has_gateway:
        return None
    cards = [parse_nic(text) for text in spec.vm.get("networks", FIELDS["networks"].default) if text != NONE]
    behind = sorted(
        host
        for host, modes in networks.items()
        if cards and all(card.network is not None and modes.get(card.network) == NAT for card in cards)
    )
    if not behind:
        return None
    hosts = f"host {behind[0]}" if len(behind) == 1 else f"{len(behind)} hosts, such as {behind[0]}"
    names = ", ".join(str(card.network) for card in cards)
    return f"users cannot reach its desktops: the network {names} is behind NAT on {hosts}"
