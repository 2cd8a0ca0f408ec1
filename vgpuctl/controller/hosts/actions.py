# SPDX-License-Identifier: Apache-2.0
"""Carries an action out by calls of the host's agent. Each may come twice: what is done already is not done again."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from vgpuctl.agent.client import AgentHost
from vgpuctl.controller.hosts.link import HostLink
from vgpuctl.controller.model import Desktop, Image, Pool, PoolKind
from vgpuctl.controller.planning.host_plan import (
    AllowLogon,
    DeleteVm,
    HostAction,
    MakeVm,
    MarkVm,
    PrepareVm,
    RefreshVm,
    RestartVm,
    StartVm,
    StopVm,
)
from vgpuctl.controller.planning.logons import is_local, user_of
from vgpuctl.controller.planning.phase import is_moved
from vgpuctl.controller.planning.pool_vm import desktop_vm
from vgpuctl.errors import NotFound, NotRebooted, PartlyApplied, ResultUnknown, Temporary
from vgpuctl.model.desktop import Fence, FleetRequest


def carry_out(link: HostLink, fence: Fence, action: HostAction, pool: Pool, image: Image) -> None:
    """Do what a desktop needs.

    Raises:
        VgpuctlError: as the agent's call; the next look decides again.
    """
    desktop = action.desktop
    host, marking = link.host(FleetRequest(fence)), link.host(FleetRequest(fence, action.mark))
    match action:
        case MarkVm():
            marking.mark_desktop(desktop.id)
        case StartVm():
            host.start_vm(desktop.id)
        case StopVm(force=force, at_once=at_once):
            _stop(host, desktop.id, force=force, at_once=at_once)
        case RestartVm(key=key, at_once=at_once):
            _restart(link, FleetRequest(fence), desktop.id, key, at_once=at_once)
        case PrepareVm():
            host.prepare_vm(desktop.id)
            _start_wanted(host, desktop)
        case MakeVm():
            marking.create_vm(start=desktop.power_on, **vm_fields(desktop, pool, image))
        case RefreshVm(from_image=from_image):
            host.stop_vm(desktop.id, force=True)  # nobody uses it, and its disk is thrown away
            marking.refresh_vm(desktop.id, image.path if from_image else None)
            _start_wanted(host, desktop)
        case AllowLogon(let_in=let_in):
            _allow_logon(host, desktop.id, let_in)
        case DeleteVm():
            _delete(host, desktop.id)


def _start_wanted(host: AgentHost, desktop: Desktop) -> None:
    if desktop.power_on:
        host.start_vm(desktop.id)


def _allow_logon(host: AgentHost, desktop_id: str, let_in: str) -> None:
    user = user_of(let_in)
    if user is None:
        host.allow_logon(desktop_id, None, nobody=True)
    elif is_local(let_in):
        host.make_account(desktop_id, user)
    else:
        host.allow_logon(desktop_id, user)


def _stop(host: AgentHost, desktop_id: str, *, force: bool, at_once: bool) -> None:
    try:
        host.stop_vm(desktop_id, force=at_once)
    except Temporary:
        if not force:
            raise
        host.stop_vm(desktop_id, force=True)  # its guest does not shut down


def _restart(link: HostLink, request: FleetRequest, desktop_id: str, key: str, *, at_once: bool) -> None:
    """Have a guest boot again; one that shuts down instead is started.

    The host does what comes with a key once, and answers it again with how that ended.
    """
    try:
        if not at_once:
            try:
                link.host(request, key=key).reboot_vm(desktop_id)
                return
            except NotRebooted:
                pass  # its guest ignores the request
        link.host(request, key=f"{key}-reset").reboot_vm(desktop_id, force=True)
    except ResultUnknown:
        raise
    except PartlyApplied:
        with suppress(Temporary):  # the next look starts it, as each that is off and should run
            link.host(request).start_vm(desktop_id)


def _delete(host: AgentHost, desktop_id: str) -> None:
    try:
        host.stop_vm(desktop_id, force=True)
        host.delete_vm(desktop_id)
    except NotFound:
        return  # somebody deleted it meanwhile


def vm_fields(desktop: Desktop, pool: Pool, image: Image) -> dict[str, Any]:
    """Return the arguments of `create_vm` for a desktop; one that was moved here has its disks, and no image."""
    fields = desktop_vm(desktop, pool.spec, image)
    keeps_disks = desktop.user is not None or pool.spec.kind is PoolKind.FIXED
    if desktop.report is not None and is_moved(desktop) and keeps_disks:
        fields["disk"] = desktop.report.disks
        del fields["image"]
    profile = fields.get("profile")
    if isinstance(profile, str):
        fields["profile"] = (profile,)
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
