# SPDX-License-Identifier: Apache-2.0
"""Moves desktops to other hosts as they are: `library.move_between` with the agents of both.

Every call may come after a controller that was killed in the middle: the move goes on, or is ended, from what both
hosts have. Whatever fails, nothing is stopped, deleted or made again, and nobody guesses where a desktop is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from vgpuctl.agent.client import AgentHost
from vgpuctl.controller.database.store import Store
from vgpuctl.controller.hosts.link import HostLink
from vgpuctl.controller.model import Desktop, FleetHost
from vgpuctl.controller.planning.host_plan import MoveVm
from vgpuctl.errors import Busy, NotFound, ResultUnknown, Temporary, VgpuctlError
from vgpuctl.library.move_between import MoveRequest, move_vm
from vgpuctl.library.move_end import settle
from vgpuctl.model.desktop import Fence, FleetRequest
from vgpuctl.model.results.migration import MigratedVmResult
from vgpuctl.operations.plans.migration_end import MigrationEnd

log = logging.getLogger("vgpuctl.controller")

INTERRUPTED = "by a move that was interrupted"


class DesktopMoves:
    """The moves of one controller. `connect`: makes the link to a host's agent."""

    def __init__(self, store: Store, connect: Callable[[FleetHost], HostLink]) -> None:
        self._store = store
        self._connect = connect

    def move(self, link: HostLink, fence: Fence, action: MoveVm) -> None:
        """Move a desktop, or end its move, and store where it is then. `link`, `fence`: of the host that it leaves.

        Raises:
            VgpuctlError: why not; `note_failure` stores it.
        """
        desktop, moves = action.desktop, self._store.live_moves
        if not moves.is_open(desktop):
            return  # it ended after the look that this follows
        target = self._store.hosts.find_id(action.target_id)
        if target is None:
            raise NotFound("the host to which it moves was removed", hint="vgpuctl controller list-hosts")
        source = link.host(FleetRequest(fence))
        with self._opened(target) as there:
            how = _bring(source, there, action, target.name)
        if how is None:
            moves.stay(desktop, fence)
        else:
            moves.arrive(desktop, fence, target, how)

    def note_failure(self, link: HostLink, fence: Fence, action: MoveVm, error: VgpuctlError) -> None:
        """Store why a move failed; the desktop stays on its host only if that says so, and no call may go on there.

        A VM of which its host's record names no move is that host's: the other one has nothing that could run.
        """
        stays = False
        with suppress(VgpuctlError):
            here = link.host().show_migration(action.desktop.id).data
            is_known = not isinstance(error, ResultUnknown)
            stays = is_known and here.exists and here.role is None and not here.is_migrating
        text, hint = _texts(error)
        target = self._store.hosts.find_id(action.target_id)
        text = f"{link.name}: not moved to {'another host' if target is None else target.name}: {text}"
        self._store.live_moves.fail(action.desktop, fence, text, hint, stays=stays)

    @contextmanager
    def _opened(self, target: FleetHost) -> Iterator[AgentHost]:
        """Yield the host to which a desktop moves, for the controller that has it: this one, or another one.

        Raises:
            Temporary: none has it now, or nothing is changed there.
        """
        lease = self._store.hosts.living_lease(target.id)
        if target.held is not None or lease is None:
            text = "no controller has it now" if target.held is None else target.held
            raise Temporary(
                f"nothing is changed on {target.name}: {text}", hint=f"vgpuctl controller show-host {target.name}"
            )
        link = self._connect(target)
        try:
            yield link.host(FleetRequest(Fence(self._store.incarnation, lease.epoch, lease.holder)))
        finally:
            link.close()


def _bring(source: AgentHost, target: AgentHost, action: MoveVm, target_name: str) -> str | None:
    """Have a desktop's VM on the target; return how that came, for the journal; None: it stays where it is."""
    desktop = action.desktop
    here = source.show_migration(desktop.id).data
    if not here.exists and here.role is None and not here.is_removing:
        there = target.show_migration(desktop.id).data
        if there.role is None and not there.is_removing:
            if not there.exists:
                return None  # somebody deleted it: the next look says so
            if _has_desktop(target, desktop):
                return INTERRUPTED
    if not action.begins:
        end = settle(source, target, desktop.id).outcome
        return INTERRUPTED if end == MigrationEnd.TARGET else None
    # it is named as in the source's host.yaml, which says how its libvirt reaches the target's; disks that both have
    # are not copied
    request = MoveRequest(target_name, offline=action.offline, copies_disks=True)
    moved = move_vm(source, target, desktop.id, request, confirm=_refuse_stop)
    for caution in moved.cautions:
        log.warning("%s moved to %s: %s: %s", desktop.name, target_name, caution.host, caution.what)
    return _how(moved)


def _has_desktop(target: AgentHost, desktop: Desktop) -> bool:
    """Return whether a host has the desktop as it was when its move began, and no older VM of it."""
    marks = [vm.desktop for vm in target.list_vms().data if vm.uuid == desktop.id]
    seen = None if desktop.report is None else desktop.report.generation
    return len(marks) == 1 and marks[0] is not None and (marks[0].id, marks[0].generation) == (desktop.id, seen)


def _refuse_stop(question: str, details: Sequence[str]) -> None:
    """Refuse a move for which a desktop that runs would be shut down: it was off when its host reported it last.

    Raises:
        Busy: it would.
    """
    if question:
        raise Busy("it was started just now: it is moved while it runs")


def _how(moved: MigratedVmResult) -> str:
    if not moved.is_live:
        return "while off"
    return "alive" if moved.paused_ms is None else f"alive; it stood still for {moved.paused_ms / 1000:.1f} s"


def _texts(error: VgpuctlError) -> tuple[str, str | None]:
    """Return an error and its hint, a line each; of a VM that cannot move, every reason and what helps against it."""
    against = error.facts.get("against")
    if not isinstance(against, list) or not all(isinstance(one, dict) for one in against):
        return "; ".join(error.message.splitlines()), error.hint
    reasons = dict.fromkeys(f"{one.get('host')}: {one.get('what')}" for one in against)
    hints = dict.fromkeys(str(one["hint"]) for one in against if one.get("hint"))
    return "; ".join(reasons), "; ".join(hints) or None
