# SPDX-License-Identifier: Apache-2.0
"""What the API takes and answers about a controller: `/v1/fleet`, what is below it, and `fleet` of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vgpuctl.agent.boot_starts import BOOT_ID
from vgpuctl.agent.fleet_fence import FleetFence
from vgpuctl.agent.protocol import REQUEST_KEY, FenceNeeded, RequestOptions
from vgpuctl.errors import InvalidInput, NotAllowed
from vgpuctl.model.caller import Caller, Rights
from vgpuctl.model.desktop import Fence, FleetStatus, check_fence
from vgpuctl.model.host_room import HostRoom
from vgpuctl.model.image_copy import FENCE_HEADER
from vgpuctl.model.result_reader import read_value
from vgpuctl.observe import ReadScope, observe
from vgpuctl.observe.nvml_facts import driver_version
from vgpuctl.operations.guards import require_libvirt
from vgpuctl.operations.host_room import read_room
from vgpuctl.ports.host import Host, for_another_operation
from vgpuctl.value import replace
from vgpuctl.version import __version__

if TYPE_CHECKING:
    from vgpuctl.library.call_table import LibraryCall

MARK_CALLS = frozenset({"create-vm", "ensure-vm", "mark-desktop", "refresh-vm"})
"""Calls that write a mark into the record of the one VM that they name."""


class FleetApi:
    """What the API asks about the fleet of one host. Its methods may read the host and write the fence's file."""

    def __init__(self, host: Host, fence: FleetFence) -> None:
        self._host = host
        self._fence = fence

    def announce(self, caller: Caller, body: Mapping[str, Any]) -> None:
        """Take the holder that the body of `POST /v1/fleet` announces.

        Raises:
            NotAllowed: the caller controls no fleet.
            InvalidInput: the body is no announcement.
            Fenced, FenceLost, StateNotWritable: as `FleetFence.announce`.
        """
        require_fleet_rights(caller)
        fence, adopt = read_announcement(body)
        self._fence.announce(fence, adopt=adopt, is_root=caller.rights is Rights.ROOT)

    def require_fence(self, caller: Caller, fence: Fence | None) -> None:
        """Refuse a change of images by a controller that the host does not obey; root may send no fence.

        Raises:
            NotAllowed, FenceNeeded: the caller controls no fleet, or sends none.
            Fenced, FenceLost: as `FleetFence.check`.
        """
        require_fleet_rights(caller)
        if fence is not None:
            self._fence.check(fence)
        elif caller.rights is Rights.FLEET:
            raise FenceNeeded(
                f"{caller.account} has the rights of a fleet, and sends no fence",
                hint=f"send the header {FENCE_HEADER}",
            )

    def status(self) -> FleetStatus:
        """Return what `GET /v1/fleet` answers."""
        return read_status(self._host, self._fence)

    def room(self) -> HostRoom:
        """Return what `GET /v1/fleet/room` answers.

        Raises:
            HostCannot: libvirt does not answer.
        """
        other = for_another_operation(self._host)
        try:
            return read_room(other)
        finally:
            other.operations.end()

    def check(self, call: LibraryCall, options: RequestOptions) -> None:
        """Refuse a change by a controller that the host does not obey; the operation checks that again.

        Raises:
            Fenced, FenceLost: as `FleetFence.check`.
        """
        if call.changes and options.fleet is not None:
            self._fence.check(options.fleet.fence)


def refuse_request(caller: Caller, call: LibraryCall, options: RequestOptions) -> None:
    """Refuse a change that lacks its fence, or has one from somebody who has no fleet.

    Raises:
        FenceNeeded: an account with `fleet` must send one with each change.
        NotAllowed: only such an account and root may.
        InvalidInput: the call writes no mark, or needs one.
    """
    if options.override_controller and caller.rights is not Rights.ROOT:
        raise NotAllowed(
            f"{caller.account} may not override the controller of a desktop",
            hint=f"as root, on the host: sudo vgpuctl --override-controller {call.name} NAME",
            rule="root",
        )
    if not call.changes:
        return
    fleet = options.fleet
    if fleet is None:
        if caller.rights is Rights.FLEET:
            raise FenceNeeded(
                f"{caller.account} has the rights of a fleet, and sends no fence with {call.name}",
                hint=f'send {REQUEST_KEY}: {{"fleet": {{"fence": {{...}}}}}}',
            )
        return
    require_fleet_rights(caller)
    if fleet.mark is not None and call.name not in MARK_CALLS:
        raise InvalidInput(
            f"{REQUEST_KEY}: fleet: {call.name} writes no mark; {', '.join(sorted(MARK_CALLS))} do", hint="omit mark"
        )


def require_fleet_rights(caller: Caller) -> None:
    """Refuse who controls no fleet.

    Raises:
        NotAllowed: the caller does not.
    """
    if caller.rights not in (Rights.FLEET, Rights.ROOT):
        raise NotAllowed(
            f"{caller.account} controls no fleet",
            hint=f"agent: {{accounts: {{{caller.account}: fleet}}}} in /etc/vgpuctl/host.yaml allows it",
            rule="agent.accounts",
        )


def read_announcement(given: Mapping[str, Any]) -> tuple[Fence, bool]:
    """Return the fence and `adopt` of the body of `POST /v1/fleet`.

    Raises:
        InvalidInput: a name is unknown or missing, or a value has another type.
    """
    fence_given = given.get("fence")
    unknown = sorted(given.keys() - {"fence", "adopt"})
    if isinstance(fence_given, dict):
        unknown += sorted(fence_given.keys() - {*Fence._fields})
    if unknown:
        raise InvalidInput(f"{', '.join(unknown)}: not known", fields=unknown)
    try:
        fence: Fence = read_value(Fence, fence_given, "fence")
        check_fence(fence)
        adopt = read_value(bool, given.get("adopt", False), "adopt")
    except ValueError as error:
        raise InvalidInput(str(error)) from error
    return fence, bool(adopt)


def has_desktops(host: Host) -> bool:
    """Return whether a VM of this host is a desktop.

    Raises:
        HostCannot: libvirt does not answer.
    """
    other = for_another_operation(replace(host, snapshots=None))
    try:
        snapshot = observe(other, ReadScope(models=False, gpu_addresses=frozenset()))
        require_libvirt(snapshot)
        return any(vm.record is not None and vm.record.desktop is not None for vm in snapshot.vms)
    finally:
        other.operations.end()


def read_status(host: Host, fence: FleetFence) -> FleetStatus:
    """Return what `GET /v1/fleet` answers."""
    other = for_another_operation(host)
    try:
        driver = driver_version(other, observe(other, ReadScope(models=False)))
    finally:
        other.operations.end()
    state = fence.state
    return FleetStatus(
        machine_id=host.machine_id,
        boot_id=host.sysfs.read(BOOT_ID).strip(),
        agent_version=__version__,
        driver=driver,
        incarnation=None if state is None else state.incarnation,
        epoch=None if state is None else state.epoch,
        holder=None if state is None else state.holder,
        adopted=state is not None and state.adopted,
        lost=fence.lost is not None,
    )
