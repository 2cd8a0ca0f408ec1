# SPDX-License-Identifier: Apache-2.0
"""Carries an action out by calls of the host's agent. Each may come twice: what is done already is not done again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vgpuctl.agent.client import AgentHost
from vgpuctl.config.arguments import NONE
from vgpuctl.config.device_rules import parse_nic
from vgpuctl.controller.hosts.link import HostLink
from vgpuctl.controller.model import Desktop, PoolSpec
from vgpuctl.controller.planning.host_plan import Action, ActionKind
from vgpuctl.errors import NotFound
from vgpuctl.model.desktop import Fence, FleetRequest
from vgpuctl.value import replace

DEFAULT_NETWORK = "default"


def carry_out(link: HostLink, fence: Fence, action: Action, spec: PoolSpec) -> None:
    """Do what a desktop needs.

    Raises:
        VgpuctlError: as the agent's call; the next look decides again.
    """
    desktop = action.desktop
    host, marking = link.host(FleetRequest(fence)), link.host(FleetRequest(fence, action.mark))
    match action.kind:
        case ActionKind.MARK:
            marking.mark_desktop(desktop.id)
        case ActionKind.START:
            host.start_vm(desktop.id)
        case ActionKind.STOP:
            host.stop_vm(desktop.id)
        case ActionKind.MAKE:
            assert action.image is not None
            marking.create_vm(desktop.name, **vm_fields(desktop, spec, action.image.path))
        case ActionKind.REFRESH:
            assert action.image is not None
            host.stop_vm(desktop.id, force=True)  # nobody uses it, and its disk is thrown away
            marking.refresh_vm(desktop.id, action.image.path)
            if desktop.power_on:
                host.start_vm(desktop.id)
        case ActionKind.DELETE:
            _delete(host, desktop.id)


def _delete(host: AgentHost, desktop_id: str) -> None:
    try:
        host.stop_vm(desktop_id, force=True)
        host.delete_vm(desktop_id)
    except NotFound:
        return  # somebody deleted it meanwhile


def vm_fields(desktop: Desktop, spec: PoolSpec, image_path: str) -> dict[str, Any]:
    """Return the fields of a VM spec for a desktop: its pool's, its profile and image, and its MAC address."""
    fields: dict[str, Any] = dict(spec.vm)
    if desktop.profile is not None:
        fields["profile"] = (desktop.profile,)
    fields["image"] = image_path
    fields["networks"] = _networks(fields, desktop.mac)
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def _networks(fields: Mapping[str, Any], mac: str) -> tuple[str, ...]:
    """Return the network cards of a VM; the first one has the desktop's address."""
    given = fields.get("networks") or (DEFAULT_NETWORK,)
    first, *others = (given,) if isinstance(given, str) else tuple(given)
    if first == NONE:
        return (NONE,)
    return (replace(parse_nic(first), mac=mac).text, *others)
