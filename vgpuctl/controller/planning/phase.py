# SPDX-License-Identifier: Apache-2.0
"""What a desktop is doing, from what is wanted, its host's last report, and how old that is. Stored nowhere."""

from __future__ import annotations

from enum import StrEnum

from vgpuctl.controller.model import Desktop, DesktopReport, FleetHost, Pool, PoolKind
from vgpuctl.value import Value

SILENT_SECONDS = 45.0
"""What the desktops of a host do that has not answered for so long is unknown."""
VM_GONE = "vm-gone"
NOT_MARKED, OTHER_CONTROLLER, RECORD_NEWER, NAME_TAKEN = "not-marked", "other-controller", "record-newer", "name-taken"
UNTOUCHED = frozenset({NOT_MARKED, OTHER_CONTROLLER, RECORD_NEWER, NAME_TAKEN})
"""Codes of reports about VMs that the controller leaves alone: an admin decides."""


class PhaseWord(StrEnum):
    """`unplaced`: no host was chosen. `waiting`: for its turn, or the next try. `dirty`: for its refresh.

    `unknown`: its host is silent. `lost`: a dedicated desktop's VM is gone. `retiring`: it is being deleted.
    """

    UNPLACED = "unplaced"
    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    RUNNING = "running"
    ASSIGNED = "assigned"
    CONNECTED = "connected"
    DIRTY = "dirty"
    OFF = "off"
    FAILED = "failed"
    UNKNOWN = "unknown"
    LOST = "lost"
    RETIRING = "retiring"


class Phase(Value):
    """A phase, and why, for people."""

    word: PhaseWord
    why: str | None = None


def phase_of(desktop: Desktop, pool: Pool, host: FleetHost | None, now: float) -> Phase:
    """Return what a desktop is doing."""
    report = desktop.report
    if host is None:
        return Phase(PhaseWord.UNPLACED, None if report is None else report.error)
    if host.seen_at is None or now - host.seen_at > SILENT_SECONDS:
        return Phase(PhaseWord.UNKNOWN, host.problem or f"{host.name} does not answer")
    if desktop.absent:
        return Phase(PhaseWord.RETIRING, None if report is None else report.error)
    if report is None or not report.exists:
        return _without_vm(desktop, pool, report)
    if report.code in UNTOUCHED:
        return Phase(PhaseWord.FAILED, report.error)
    if desktop.user is None and (report.dirty or report.user is not None):
        return Phase(PhaseWord.DIRTY, report.error or "it is refreshed before the next user")
    if report.state != "running":
        return _off(desktop, report)
    if not report.ready:
        word = PhaseWord.FAILED if report.code is not None else PhaseWord.STARTING
        return Phase(word, report.error)
    if desktop.user is not None:
        return _assigned(desktop, report)
    return Phase(PhaseWord.RUNNING if pool.spec.kind is PoolKind.FIXED else PhaseWord.READY, report.error)


def _without_vm(desktop: Desktop, pool: Pool, report: DesktopReport | None) -> Phase:
    if report is not None and report.code == VM_GONE:
        if pool.spec.kind is PoolKind.DEDICATED and desktop.user is not None:
            return Phase(PhaseWord.LOST, report.error)
        return Phase(PhaseWord.RETIRING, report.error)
    if desktop.errors and report is not None:
        return Phase(PhaseWord.FAILED, report.error)
    return Phase(PhaseWord.WAITING, "its VM is not made yet")


def _off(desktop: Desktop, report: DesktopReport) -> Phase:
    if report.code is not None:
        return Phase(PhaseWord.FAILED, report.error)
    if not desktop.power_on:
        return Phase(PhaseWord.OFF)
    return Phase(PhaseWord.WAITING, f"its VM is {report.state}")


def _assigned(desktop: Desktop, report: DesktopReport) -> Phase:
    if not desktop.handed_out:
        return Phase(PhaseWord.ASSIGNED, "its host has not confirmed the user yet")
    if report.guest_users:
        return Phase(PhaseWord.CONNECTED)
    return Phase(PhaseWord.ASSIGNED, report.error)
