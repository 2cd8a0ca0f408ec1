# SPDX-License-Identifier: Apache-2.0
"""Whether a desktop can be moved: of a lost host, and of one that is drained while its desktops go on.

Of a lost host there is never a second copy of a desktop that the host may still run.
"""

from __future__ import annotations

from vgpuctl.controller.model import Desktop, FleetHost, FleetHostState, OnLogoff, Pool, PoolKind
from vgpuctl.controller.planning.phase import BLOCKING_CODES, is_off, is_silent
from vgpuctl.controller.planning.restarts import wants_restart
from vgpuctl.model.vm import VmState

MOST_MOVES = 2
"""So many desktops of a host move at a time: each takes as much of the network as it gets."""


def leaves_live(desktop: Desktop, pool: Pool, host: FleetHost) -> bool:
    """Return whether a desktop leaves its host as it is: somebody has it, or it is of a fixed pool."""
    is_kept = desktop.user is not None or pool.spec.kind is PoolKind.FIXED
    return is_kept and host.moves_live and host.state is FleetHostState.DRAINING


def may_begin_move(desktop: Desktop, pool: Pool, host: FleetHost, now: float) -> bool:
    """Return whether the move of a desktop may begin: it runs or is off, and waits for no next try.

    An assignment is confirmed first, and a restart done.
    """
    report = desktop.report
    if desktop.absent or desktop.moving_to is not None or desktop.not_before > now or report is None:
        return False
    is_settled = report.exists and report.generation == desktop.generation and report.code not in BLOCKING_CODES
    can_move = report.state == VmState.RUNNING or is_off(report.state)
    return is_settled and can_move and leaves_live(desktop, pool, host) and not wants_restart(desktop, now)


def moves_with_disks(desktop: Desktop, pool: Pool) -> bool:
    """Return whether what is on a desktop's disks is worth a move: of a fixed pool, or kept for its user."""
    kind = pool.spec.kind
    is_kept = kind is PoolKind.DEDICATED and pool.spec.on_logoff is not OnLogoff.REFRESH and desktop.user is not None
    return kind is PoolKind.FIXED or is_kept


def needs_disks(desktop: Desktop, pool: Pool, record_generation: int | None) -> bool:
    """Return whether a desktop's host has to be asked for the files of its disks, before it is lost.

    `record_generation`: of its VM, which was changed if it is another one than at the last answer.
    """
    report = desktop.report
    is_known = report is not None and bool(report.disks) and report.disks_generation == record_generation
    return moves_with_disks(desktop, pool) and not is_known


def why_not_move(
    desktop: Desktop, pool: Pool, host: FleetHost | None, now: float, *, has_come: bool = False
) -> tuple[str, str] | None:
    """Return why a desktop cannot be moved, and a command that helps; None: it can.

    `has_come`: the host to which it moved, as it was, has its VM.
    """
    name, report = desktop.name, desktop.report
    if host is None or desktop.absent:
        return f"{name} is on no host, or is being deleted", f"vgpuctl controller show-desktop {name}"
    if not has_come and not moves_with_disks(desktop, pool):
        return f"nothing on the disks of {name} is kept for anybody", f"vgpuctl controller release {name}"
    if not is_silent(host, now):
        return f"{host.name} answers: it has the desktop", f"vgpuctl controller drain-host {host.name} --maintenance"
    if has_come:
        return None
    if report is not None and report.code in BLOCKING_CODES:
        return f"{name} is not what the database says: {report.error}", f"vgpuctl controller show-desktop {name}"
    if report is None or not report.disks:  # of a release before this one, for instance
        return f"{host.name} never said which files the disks of {name} are", f"vgpuctl controller show-desktop {name}"
    return None
