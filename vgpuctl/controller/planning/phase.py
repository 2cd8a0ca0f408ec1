# SPDX-License-Identifier: Apache-2.0
"""What people see of a desktop: computed from what is wanted, the host's last report and its age, and never stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from vgpuctl.controller.model import (
    Desktop,
    DesktopReport,
    FleetHost,
    FleetHostState,
    Pool,
    PoolKind,
    PoolState,
    ReadyWhen,
)
from vgpuctl.controller.planning.restarts import wants_restart
from vgpuctl.model.vm import VmState
from vgpuctl.value import Value

SILENT_SECONDS = 45
"""A host that did not answer for so long is silent, and what it reported is not known to hold."""
NO_LOGON_SECONDS = 1800
FAILED_AFTER = 3
"""So many errors after each other are no accident."""
BLOCKING_CODES = frozenset(
    ("record-newer", "other-controller", "other-user", "not-marked", "duplicate-uuid", "name-taken", "old-copy")
)
"""What a host has contradicts the database: the controller touches nothing, and a person decides."""
NEWER_CODE, COPY_CODE = "record-newer", "old-copy"
RECORD_CODES = frozenset((NEWER_CODE, "other-user"))
"""Those of them where the host's record says more than the row; `accept-desktop` makes the row follow it."""
LOGGED_ON_CODE = "logged-on"
CRASHES_CODE, NO_HOST_CODE = "crashes", "no-host"
MOVE_CODE = "cannot-move"
"""It does not leave its draining host yet. That says nothing about what else is done with it."""
MOST_RESTARTS, CRASH_SECONDS = 3, 1200
"""A desktop that nobody has is started again so often in so many seconds; then a person decides."""


class PhaseWord(StrEnum):
    """`unplaced`: it has no host yet; `waiting`: for its next try, or until something is made at all.

    `dirty`: a user was in it, and its refresh cannot begin; `refreshing`: it is due or runs. `unknown`: its host is
    silent. `retiring`: it is being deleted. `lost`: its VM is gone. `preparing`: its guest sets itself up, once.
    """

    UNPLACED = "unplaced"
    WAITING = "waiting"
    MAKING = "making"
    PREPARING = "preparing"
    STARTING = "starting"
    READY = "ready"
    ASSIGNED = "assigned"
    CONNECTED = "connected"
    DIRTY = "dirty"
    REFRESHING = "refreshing"
    STOPPING = "stopping"
    OFF = "off"
    RESTARTING = "restarting"
    FAILED = "failed"
    UNKNOWN = "unknown"
    RETIRING = "retiring"
    LOST = "lost"


class Phase(Value):
    """A word, and a sentence that says why; empty where the word says all."""

    word: PhaseWord
    why: str = ""


def was_seen(desktop: Desktop) -> bool:
    """Return whether a host had the desktop's VM: a report without one may be of an error while it was made."""
    report = desktop.report
    return report is not None and (report.exists or report.generation > 0)


def is_moved(desktop: Desktop) -> bool:
    """Return whether the desktop was taken from a lost host, and no other one has made it with its disks yet."""
    report = desktop.report
    return report is not None and not report.exists and report.moved


def is_lost(desktop: Desktop) -> bool:
    """Return whether the desktop's VM is gone though a host had it."""
    return was_seen(desktop) and desktop.report is not None and not desktop.report.exists


def is_running(state: str | None) -> bool:
    """Return whether a VM with this state has a QEMU: paused and sleeping guests count."""
    return state not in (None, VmState.STOPPED, VmState.CRASHED, VmState.UNKNOWN, "absent")


def is_off(state: str | None) -> bool:
    """Return whether a VM with this state can be started; of an unknown state nothing follows."""
    return state in (VmState.STOPPED, VmState.CRASHED)


def is_silent(host: FleetHost | None, now: float) -> bool:
    """Return whether a host did not answer for 45 s, or never."""
    return host is None or host.seen_at is None or now - host.seen_at > SILENT_SECONDS


def needs_refresh(desktop: Desktop, report: DesktopReport, kind: PoolKind) -> bool:
    """Return whether a desktop without a user must be refreshed before anybody may have it."""
    if kind is PoolKind.FIXED or desktop.user is not None:
        return False
    return report.dirty or report.generation < desktop.generation


def boot_failed(desktop: Desktop, pool: Pool, now: float) -> bool:
    """Return whether a desktop is not ready though it has run for the pool's `boot_minutes`."""
    report = desktop.report
    since = report.running_since if report is not None and report.exists and not report.ready else None
    return since is not None and now - since >= 60 * pool.spec.boot_minutes


def is_assignable(desktop: Desktop, pool: Pool, host: FleetHost | None, now: float) -> bool:
    """Return whether the desktop can be given to a user: it is ready, clean, and its host can confirm that.

    The database's query for an assignment is the same rule; a test holds them together.
    """
    report = desktop.report
    if report is None or report.user is not None or report.code:
        return False
    if pool.state is not PoolState.ACTIVE or pool.spec.kind is PoolKind.FIXED or desktop.user is not None:
        return False
    if host is None or host.held is not None or host.state is FleetHostState.MAINTENANCE:
        return False
    return phase_of(desktop, pool, host, now).word is PhaseWord.READY


def phase_of(desktop: Desktop, pool: Pool, host: FleetHost | None, now: float, image_wait: str = "") -> Phase:
    """Return a desktop's phase; `host`: the one it is on, None where it has none or the fleet has it no more.

    `image_wait`: why its image is not on its host; empty: it is.
    """
    report = desktop.report
    if desktop.absent:
        why = f"{host.name} is silent" if host is not None and is_silent(host, now) else ""
        return Phase(PhaseWord.RETIRING, why or (host.held or "" if host is not None else ""))
    if desktop.host_id is None:
        return Phase(PhaseWord.UNPLACED, _why_not_begun(desktop, pool, None, now))
    if is_silent(host, now):
        name = host.name if host is not None else "its host"
        seen = "" if host is None or host.seen_at is None else f" for {int(now - host.seen_at)} s"
        return Phase(PhaseWord.UNKNOWN, f"{name} is silent{seen}")
    if is_lost(desktop):
        return Phase(PhaseWord.LOST, "its VM is gone, and nobody here deleted it")
    if report is not None and report.code in (*BLOCKING_CODES, CRASHES_CODE):
        return Phase(PhaseWord.FAILED, _error_text(report))
    if desktop.errors >= FAILED_AFTER:
        return Phase(PhaseWord.FAILED, _error_text(report) or f"{desktop.errors} errors after each other")
    waits = _why_not_begun(desktop, pool, host, now)
    if report is None or not report.exists:
        waits = waits or image_wait
        return Phase(PhaseWord.WAITING, waits) if waits else Phase(PhaseWord.MAKING)
    if desktop.user is not None:
        return _phase_of_used(desktop, report, pool, _maintenance_text(host), now)
    if needs_refresh(desktop, report, pool.spec.kind):
        waits = waits or image_wait or (_error_text(report) if report.code == LOGGED_ON_CODE else "")
        return Phase(PhaseWord.DIRTY, waits) if waits else Phase(PhaseWord.REFRESHING)
    return _phase_of_power(desktop, report, pool, waits, now)


def _phase_of_used(desktop: Desktop, report: DesktopReport, pool: Pool, waits: str, now: float) -> Phase:
    if report.logon_due and (report.generation, report.user) == (desktop.generation, desktop.user):
        return _phase_of_power(desktop, report, pool, waits, now)
    if not desktop.handed_out or report.generation != desktop.generation:
        return Phase(PhaseWord.ASSIGNED, "its host has not confirmed it yet")
    power = _phase_of_power(desktop, report, pool, waits, now)
    if power.word is not PhaseWord.READY:
        return power
    if report.guest_users:
        return Phase(PhaseWord.CONNECTED, f"logged on: {', '.join(report.guest_users)[:200]}")
    since = max(desktop.assigned_at or now, report.running_since or 0.0)
    if not report.logged_on_seen and now - since >= NO_LOGON_SECONDS:
        return Phase(
            PhaseWord.ASSIGNED, "no log-on was seen in 30 minutes; does the image have vgpuctl's guest helper?"
        )
    return Phase(PhaseWord.ASSIGNED, "its user has logged off" if report.logged_off else "")


def _phase_of_power(desktop: Desktop, report: DesktopReport, pool: Pool, waits: str, now: float) -> Phase:
    if not desktop.power_on:
        return Phase(PhaseWord.STOPPING if is_running(report.state) else PhaseWord.OFF)
    if not is_running(report.state):
        word = PhaseWord.PREPARING if report.preparing else PhaseWord.STARTING
        return Phase(PhaseWord.WAITING, waits) if waits else Phase(word)
    if wants_restart(desktop, now):
        return Phase(PhaseWord.RESTARTING)
    if report.ready:
        return Phase(PhaseWord.READY)
    if boot_failed(desktop, pool, now):
        minutes = pool.spec.boot_minutes
        text = f"not ready ({pool.spec.ready_when}) {minutes} minutes after its start{_no_address(report, pool)}"
        if report.preparing:
            text = f"its guest has not set itself up and shut down {minutes} minutes after its start"
        return Phase(PhaseWord.FAILED, _error_text(report) or text)
    if report.preparing:
        return Phase(PhaseWord.PREPARING, "its guest sets itself up, and shuts down then")
    if report.logon_due:
        text = "its guest helper has not confirmed yet who may log on"
        return Phase(PhaseWord.STARTING, _error_text(report) or text)
    return Phase(PhaseWord.STARTING, f"not ready yet ({pool.spec.ready_when}){_no_address(report, pool)}")


def _no_address(report: DesktopReport, pool: Pool) -> str:
    """Return why a port of a desktop cannot be reached, if that is for want of an address; else nothing."""
    is_asked = pool.spec.ready_when is ReadyWhen.PORT and report.address_problem is not None
    return f": {report.address_problem}" if is_asked else ""


def _why_not_begun(desktop: Desktop, pool: Pool, host: FleetHost | None, now: float) -> str:
    """Return why nothing is made, started or refreshed now; empty: it is."""
    if pool.state is not PoolState.ACTIVE:
        return f"the pool {pool.name} is {pool.state}" + (f": {pool.reason}" if pool.reason else "")
    if host is not None and host.held is not None:
        return f"nothing is changed on {host.name}: {host.held}"
    if _maintenance_text(host):
        return _maintenance_text(host)
    if desktop.not_before > now:
        text = f"it tries again in {max(1, round(desktop.not_before - now))} s"
        error = _error_text(desktop.report)
        return f"{text}: {error}" if error else text
    return ""


def _maintenance_text(host: FleetHost | None) -> str:
    is_there = host is not None and host.state is FleetHostState.MAINTENANCE
    return f"{host.name} is in maintenance" if host is not None and is_there else ""


def _error_text(report: DesktopReport | None) -> str:
    if report is None or report.code is None:
        return ""
    text = report.error or report.code
    return f"{text}; {report.hint}" if report.hint else text


def is_in_motion(desktops: Iterable[Desktop], reports: Mapping[str, DesktopReport]) -> bool:
    """Return whether a desktop starts, moves, waits for its next try, stopped by itself, or its guest may be empty."""
    for desktop in desktops:
        report = reports.get(desktop.id)
        is_empty = report is not None and report.empty_since is not None and not report.logged_off
        if (
            desktop.errors
            or desktop.moving_to is not None
            or (is_empty and report is not None and not report.after_silence)
        ):
            return True
        if report is not None and (report.crashes or (report.state == "running" and not report.ready)):
            return True
    return False
