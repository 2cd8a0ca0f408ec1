# SPDX-License-Identifier: Apache-2.0
"""What a pool's desktops need: more of them, fewer, other images, and users who are gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from vgpuctl.controller.model import Desktop, NewDesktop, OnLogoff, Pool, PoolChanges, PoolKind, PoolState
from vgpuctl.controller.planning.phase import UNTOUCHED, VM_GONE
from vgpuctl.controller.planning.pool_names import free_names
from vgpuctl.controller.planning.schedules import wanted_spare

LOGOFF_SECONDS = 30.0
"""Nobody has been seen in a guest for so long: its user has logged off."""
MAX_ERRORS, ERROR_SECONDS = 3, 1200.0
MAX_NEW = 20
"""So many desktops are added at a time; the next tick adds more."""
BOOT_TIMEOUT = "boot-timeout"


def plan_pool(
    pool: Pool, desktops: Sequence[Desktop], now: float, *, recent_errors: int, make_mac: Callable[[], str]
) -> PoolChanges:
    """Return what a pool's desktops need now. `recent_errors`: in the last ERROR_SECONDS, since people looked after it.

    A desktop with a user is never deleted because the pool shrinks: it goes when its user is gone.
    """
    active = [one for one in desktops if not one.absent]
    if pool.state is PoolState.DRAINING:
        return PoolChanges(retire=tuple(one.id for one in active))
    release = tuple(one.id for one in active if _is_over(pool, one, now))
    switch_off = tuple(one.id for one in active if one.id not in release and _is_switched_off(pool, one, now))
    gone = [one for one in active if _is_gone(pool, one)]
    if pool.state is PoolState.PAUSED:
        return PoolChanges(release=release, switch_off=switch_off)
    kept = [one for one in active if one not in gone]
    surplus = _surplus(pool, kept, now)
    kept = [one for one in kept if one not in surplus]
    lacking = _lacking(pool, kept, now)
    pause = None
    if recent_errors >= MAX_ERRORS and (lacking or gone):
        pause = f"{recent_errors} errors in {ERROR_SECONDS / 60:.0f} minutes"
        return PoolChanges(release=release, switch_off=switch_off, pause=pause)
    names = free_names(pool.spec.names, {one.name for one in desktops})
    return PoolChanges(
        create=tuple(NewDesktop(name, make_mac()) for name in islice(names, min(lacking, MAX_NEW))),
        retire=tuple(one.id for one in (*gone, *surplus)),
        release=release,
        move_image=_moving(pool, kept),
        switch_off=switch_off,
    )


def _is_over(pool: Pool, desktop: Desktop, now: float) -> bool:
    """Return whether a desktop's user is gone: his lease is over, or he has logged off a floating one."""
    if desktop.user is None:
        return False
    if desktop.lease_until is not None and desktop.lease_until <= now:
        return True
    report = desktop.report
    if pool.spec.kind is not PoolKind.FLOATING or report is None:
        return False
    if report.code == VM_GONE:
        return True
    return desktop.handed_out and _has_logged_off(desktop, now)


def _has_logged_off(desktop: Desktop, now: float) -> bool:
    report = desktop.report
    if report is None or not report.logged_on or report.empty_since is None:
        return False
    return report.generation == desktop.generation and now - report.empty_since >= LOGOFF_SECONDS


def _is_switched_off(pool: Pool, desktop: Desktop, now: float) -> bool:
    """Return whether a dedicated desktop should be off: its user shut it down, or logged off where that stops it."""
    report = desktop.report
    if pool.spec.kind is not PoolKind.DEDICATED or report is None or desktop.user is None or not desktop.power_on:
        return False
    if not desktop.handed_out or not report.exists:
        return False
    if report.state == "stopped" and report.logged_on:
        return True
    return pool.spec.on_logoff is OnLogoff.STOP and _has_logged_off(desktop, now)


def _is_gone(pool: Pool, desktop: Desktop) -> bool:
    """Return whether a desktop is of no use any more, and another one should take its place."""
    report = desktop.report
    if report is None:
        return False
    if report.code == VM_GONE:
        return desktop.user is None or pool.spec.kind is PoolKind.FLOATING
    return report.code == BOOT_TIMEOUT and desktop.user is None and pool.spec.kind is not PoolKind.FIXED


def _is_whole(desktop: Desktop) -> bool:
    return desktop.report is not None and desktop.report.exists and desktop.report.ready and not desktop.report.dirty


def _unused_first(desktops: Iterable[Desktop]) -> list[Desktop]:
    """Return the desktops without a user, those first that cost least to lose: not made, not ready, the newest."""
    unused = [one for one in desktops if one.user is None and not _is_left_alone(one)]
    return sorted(unused, key=lambda one: (one.report is not None, _is_whole(one), -one.created_at, one.name))


def _is_left_alone(desktop: Desktop) -> bool:
    return desktop.report is not None and desktop.report.code in UNTOUCHED


def _surplus(pool: Pool, desktops: Sequence[Desktop], now: float) -> list[Desktop]:
    """Return the desktops that are too many. Some more than `spare` stay: who logs off comes back, or another does."""
    unused = _unused_first(desktops)
    too_many = len(desktops) - pool.spec.maximum
    if pool.spec.kind is not PoolKind.FIXED:
        spare = wanted_spare(pool.spec, now)
        too_many = max(too_many, len(unused) - spare - max(1, spare // 2))
    return unused[: max(0, too_many)]


def _lacking(pool: Pool, desktops: Sequence[Desktop], now: float) -> int:
    room = pool.spec.maximum - len(desktops)
    if pool.spec.kind is PoolKind.FIXED:
        return max(0, room)
    unused = sum(one.user is None for one in desktops)
    return max(0, min(room, wanted_spare(pool.spec, now) - unused))


def _moving(pool: Pool, desktops: Sequence[Desktop]) -> tuple[str, ...]:
    """Return the desktops that get the pool's present image: at most so many are not ready at a time.

    One that is refreshed anyway, or not made yet, costs nobody anything. A dedicated one with a user keeps its own.
    """
    old = [one for one in desktops if one.image_id != pool.image_id and one.user is None and not _is_left_alone(one)]
    idle = [one for one in old if not _is_whole(one)]
    unavailable = sum(not _is_whole(one) for one in desktops if one.user is None) - len(idle)
    ready = sorted((one for one in old if _is_whole(one)), key=lambda one: (one.created_at, one.name))
    return tuple(one.id for one in (*idle, *ready[: max(0, pool.spec.max_unavailable - unavailable - len(idle))]))
