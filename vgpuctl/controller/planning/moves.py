# SPDX-License-Identifier: Apache-2.0
"""Whether a desktop of a lost host can be moved: never a second copy of one that its host may still run."""

from __future__ import annotations

from vgpuctl.controller.model import Desktop, FleetHost, OnLogoff, Pool, PoolKind
from vgpuctl.controller.planning.phase import BLOCKING_CODES, is_silent


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


def why_not_move(desktop: Desktop, pool: Pool, host: FleetHost | None, now: float) -> tuple[str, str] | None:
    """Return why a desktop cannot be moved, and a command that helps; None: it can."""
    name, report = desktop.name, desktop.report
    if host is None or desktop.absent:
        return f"{name} is on no host, or is being deleted", f"vgpuctl controller show-desktop {name}"
    if not moves_with_disks(desktop, pool):
        return f"nothing on the disks of {name} is kept for anybody", f"vgpuctl controller release {name}"
    if not is_silent(host, now):
        return f"{host.name} answers: it has the desktop", f"vgpuctl controller drain-host {host.name} --maintenance"
    if report is not None and report.code in BLOCKING_CODES:
        return f"{name} is not what the database says: {report.error}", f"vgpuctl controller show-desktop {name}"
    if report is None or not report.disks:  # of a release before this one, for instance
        return f"{host.name} never said which files the disks of {name} are", f"vgpuctl controller show-desktop {name}"
    return None
