# SPDX-License-Identifier: Apache-2.0
"""Which desktops a pool has: one tick compares its rows with its spec, and says what changes.

A desktop with a user is never retired here; its user loses it by a release, and only then it counts as any other.
Rows that are absent count until their hosts confirmed that the VM is gone, so a pool never has more VMs than `maximum`,
and the numbers up to `maximum` always suffice for its names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from vgpuctl.config.name_patterns import natural_key
from vgpuctl.config.vm_spec import fill_number
from vgpuctl.controller.model import (
    Desktop,
    FleetHost,
    FleetHostState,
    Image,
    NewDesktop,
    OnLogoff,
    Pool,
    PoolChanges,
    PoolKind,
    PoolState,
)
from vgpuctl.controller.planning.back_off import error_times
from vgpuctl.controller.planning.logons import LOGON_CODES
from vgpuctl.controller.planning.moves import leaves_live
from vgpuctl.controller.planning.phase import (
    BLOCKING_CODES,
    CRASHES_CODE,
    FAILED_AFTER,
    boot_failed,
    is_lost,
    is_moved,
    is_silent,
    needs_refresh,
    was_seen,
)
from vgpuctl.controller.planning.schedules import wanted_spare
from vgpuctl.errors import Failed
from vgpuctl.model.numbers import count_text
from vgpuctl.value import EMPTY_MAPPING, replace

PAUSE_ERRORS, PAUSE_SECONDS = 3, 1200
"""A pool with so many errors in so many seconds is paused."""
SPARE_SILENT_SECONDS = 600
"""Spares of a host that is silent for so long are replaced on other hosts; a shorter silence may be a reboot."""
MAX_MAC_TRIES = 1000


def plan_pool(
    pool: Pool,
    desktops: Sequence[Desktop],
    image: Image | None,
    now: float,
    random_mac: Callable[[], str],
    hosts: Mapping[str, FleetHost] = EMPTY_MAPPING,
    with_image: Collection[str] | None = None,
) -> PoolChanges:
    """Plan what changes in a pool. `desktops`: all its rows; `image`: its present one, None: it has none.

    `hosts`: by id; without them no host counts as silent or draining. `with_image`: the ids of the hosts that have the
    present image; None: all have it.

    Raises:
        Failed: `random_mac` gives the same addresses again and again.
    """
    if pool.state is PoolState.DRAINING:
        return PoolChanges(retire=tuple(desktop.id for desktop in desktops if not desktop.absent))
    ended = _ended(pool, desktops, now)
    released = (*ended, *_doubled(pool, desktops, frozenset(ended), hosts, now))
    free = frozenset(released)
    after = [_released(desktop) if desktop.id in free else desktop for desktop in desktops]
    if pool.state is PoolState.PAUSED:
        return PoolChanges(release=released)
    pause = _why_pause(pool, after, now)
    if pause is not None:
        return PoolChanges(release=released, pause=pause)
    gone, live = _split(
        (desktop for desktop in after if not desktop.absent),
        lambda d: _is_gone(d, pool) or (d.user is None and _leaves(d, pool, hosts)),
    )
    surplus, missing = _compare(pool, live, len(after), now, hosts)
    create = _new_desktops(pool, after, missing, random_mac) if image is not None and not image.retired else ()
    retired = tuple(desktop.id for desktop in (*gone, *surplus))
    kept = _without(live, surplus)
    moved = () if image is None else _moved(pool, kept, image, with_image)
    return PoolChanges(create, retired, released, None, moved)


def _split(desktops: Iterable[Desktop], test: Callable[[Desktop], bool]) -> tuple[list[Desktop], list[Desktop]]:
    """Return those for which the test holds, and the others."""
    both: tuple[list[Desktop], list[Desktop]] = ([], [])
    for desktop in desktops:
        both[not test(desktop)].append(desktop)
    return both


def _without(desktops: Iterable[Desktop], others: Iterable[Desktop]) -> list[Desktop]:
    """Return the desktops that are not among others; by their ids, for a pool may have thousands."""
    ids = {desktop.id for desktop in others}
    return [desktop for desktop in desktops if desktop.id not in ids]


def _ended(pool: Pool, desktops: Sequence[Desktop], now: float) -> tuple[str, ...]:
    """Return the ids of the desktops whose users lose them: the lease is over, or a floating one's user is gone."""
    ended = []
    for desktop in desktops:
        report = desktop.report
        if desktop.user is None or pool.spec.kind is PoolKind.FIXED:
            continue
        current = report is not None and report.generation == desktop.generation
        logged_off = current and report is not None and report.logged_off
        floating_end = pool.spec.kind is PoolKind.FLOATING and (logged_off or is_lost(desktop))
        if floating_end or (desktop.lease_until is not None and desktop.lease_until <= now):
            ended.append(desktop.id)
    return tuple(ended)


def _doubled(
    pool: Pool, desktops: Sequence[Desktop], ended: Collection[str], hosts: Mapping[str, FleetHost], now: float
) -> tuple[str, ...]:
    """Return the ids of floating desktops that users lose who got another one while a host was silent.

    It is decided when all of a user's hosts answer. He keeps the one in which he is or was logged on, or the last one;
    nobody is thrown out of a desktop.
    """
    by_user: dict[str, list[Desktop]] = {}
    for desktop in desktops if pool.spec.kind is PoolKind.FLOATING else ():
        if desktop.user is not None and not desktop.absent and desktop.id not in ended:
            by_user.setdefault(desktop.user, []).append(desktop)
    lost: list[str] = []
    for own in by_user.values():
        if len(own) <= pool.spec.per_user or not any(one.report and one.report.superseded for one in own):
            continue
        if not any(is_silent(hosts.get(one.host_id or ""), now) for one in own):
            own.sort(key=_use, reverse=True)
            lost += [one.id for one in own[pool.spec.per_user :] if not _use(one)[0]]
    return tuple(lost)


def _use(desktop: Desktop) -> tuple[bool, bool, float]:
    """Return how much a user uses a desktop: he is logged on, he was, and since when it is his."""
    report = desktop.report
    if report is None or (report.generation, report.user) != (desktop.generation, desktop.user):
        return False, False, desktop.assigned_at or 0.0
    return bool(report.guest_users), report.logged_on_seen, desktop.assigned_at or 0.0


def _released(desktop: Desktop) -> Desktop:
    """Return a row as the database's release leaves it."""
    return replace(desktop, user=None, generation=desktop.generation + 1, power_on=True, lease_until=None)


def _is_gone(desktop: Desktop, pool: Pool) -> bool:
    """Return whether a desktop's VM is gone and another may take its place; a dedicated one is a person's loss."""
    return is_lost(desktop) and (pool.spec.kind is not PoolKind.DEDICATED or desktop.user is None)


def _leaves(desktop: Desktop, pool: Pool, hosts: Mapping[str, FleetHost]) -> bool:
    """Return whether a desktop without a user must be made on another host, or was never made on its own and cannot be.

    One that moves there as it is, or will, is not made again.
    """
    host = hosts.get(desktop.host_id or "")
    if host is None or host.state is FleetHostState.ACTIVE or desktop.moving_to is not None:
        return False
    if was_seen(desktop) and leaves_live(desktop, pool, host):
        return False
    return not is_moved(desktop) and (host.state is FleetHostState.DRAINING or not was_seen(desktop))


def _why_pause(pool: Pool, desktops: Sequence[Desktop], now: float) -> str | None:
    errors = 0
    last: Desktop | None = None
    for desktop in desktops:
        if desktop.user is not None and desktop.report is not None and desktop.report.code in LOGON_CODES:
            continue  # it is about this user, or about what he did to the helper
        times = [at for at in error_times(desktop) if now - at < PAUSE_SECONDS]
        failed_since = desktop.report.running_since if desktop.report is not None else None
        if failed_since is not None and boot_failed(desktop, pool, now):
            times += [now] if now - failed_since - 60 * pool.spec.boot_minutes < PAUSE_SECONDS else []
        if desktop.report is not None and _has_crashed(desktop):
            times += [at for at in desktop.report.crashes[-1:] if now - at < PAUSE_SECONDS]
        errors += len(times)
        if times and (last is None or desktop.not_before > last.not_before):
            last = desktop
    if errors < PAUSE_ERRORS or last is None:
        return None
    report = last.report
    text = (report.error or report.code) if report is not None else None
    why = f"{last.name}: {text}" if text else f"{last.name} was not ready in {pool.spec.boot_minutes} minutes"
    return f"{count_text(errors, 'error')} in {PAUSE_SECONDS // 60} minutes; the last one of {why}"


def _compare(
    pool: Pool, live: list[Desktop], rows: int, now: float, hosts: Mapping[str, FleetHost]
) -> tuple[list[Desktop], int]:
    """Return the desktops without a user that are too many, and how many are missing."""
    spec = pool.spec
    unused = sorted((d for d in live if d.user is None and not _is_blocked(d)), key=lambda d: _rank(d, pool, now))
    free_rows = max(0, spec.maximum - rows)
    if spec.kind is PoolKind.FIXED:
        return unused[: max(0, len(live) - spec.maximum)], free_rows
    spares = [desktop for desktop in unused if _counts_as_spare(desktop, pool, now, hosts)]
    wanted = wanted_spare(spec, now)
    surplus = spares[: max(0, len(spares) - wanted)]
    others = _without(unused, surplus)
    surplus += others[: max(0, len(live) - len(surplus) - spec.maximum)]
    return surplus, min(free_rows, max(0, wanted - len(spares)))


def _is_blocked(desktop: Desktop) -> bool:
    """Return whether its host has something else than the database says: a person decides about the desktop."""
    return desktop.report is not None and desktop.report.code in BLOCKING_CODES


def _rank(desktop: Desktop, pool: Pool, now: float) -> tuple[int, tuple[tuple[int, int, str], ...]]:
    """Return the sort key by which desktops go: those that take longest to be of use, then the highest number."""
    report = desktop.report
    if is_moved(desktop):
        order = 4
    elif desktop.host_id is None:
        order = 0
    elif not was_seen(desktop) or report is None:
        order = 1
    elif needs_refresh(desktop, report, pool.spec.kind):
        order = 2
    else:
        order = 4 if report.ready else 3
    key = natural_key(desktop.name)
    return order, tuple((-kind, -number, text) for kind, number, text in key)


def _counts_as_spare(desktop: Desktop, pool: Pool, now: float, hosts: Mapping[str, FleetHost]) -> bool:
    """Return whether a desktop without a user is one that can take a user now, or soon."""
    host = hosts.get(desktop.host_id or "")
    if host is not None and host.state is FleetHostState.MAINTENANCE:
        return False
    if host is not None and (host.seen_at is None or now - host.seen_at > SPARE_SILENT_SECONDS):
        return False
    has_failed = desktop.errors >= FAILED_AFTER or boot_failed(desktop, pool, now) or _has_crashed(desktop)
    return desktop.power_on and not has_failed


def _has_crashed(desktop: Desktop) -> bool:
    """Return whether a desktop stopped by itself too often; of three, the pool is paused."""
    return desktop.report is not None and desktop.report.code == CRASHES_CODE


def _new_desktops(
    pool: Pool, desktops: Sequence[Desktop], count: int, random_mac: Callable[[], str]
) -> tuple[NewDesktop, ...]:
    taken = {desktop.name for desktop in desktops}
    macs = {desktop.mac for desktop in desktops}
    created: list[NewDesktop] = []
    for number in range(1, pool.spec.maximum + 1):
        if len(created) == count:
            break
        name = fill_number(pool.spec.names, number)
        if name not in taken:
            created.append(NewDesktop(name, _new_mac(macs, random_mac)))
    return tuple(created)


def _new_mac(macs: set[str], random_mac: Callable[[], str]) -> str:
    for _ in range(MAX_MAC_TRIES):
        mac = random_mac()
        if mac not in macs:
            macs.add(mac)
            return mac
    raise Failed(f"no unused MAC address after {MAX_MAC_TRIES} random ones")


def _moved(pool: Pool, desktops: list[Desktop], image: Image, with_image: Collection[str] | None) -> tuple[str, ...]:
    """Return the ids of those that get the pool's present image now, on hosts that have it.

    First those that are not ready anyway, for it costs nobody a desktop; then ready ones, as long as at most
    `max_unavailable` are not ready. A used floating desktop gets it after its release, a used dedicated one at its next
    log-off if it is refreshed then, else never: its disk is its user's.
    """
    if pool.spec.max_unavailable == 0:
        return ()
    refreshes = pool.spec.on_logoff is OnLogoff.REFRESH
    unused = [desktop for desktop in desktops if desktop.user is None]
    moved = [
        desktop.id
        for desktop in desktops
        if desktop.image_id != image.id
        and _can_have(desktop, with_image)
        and (
            (desktop.user is None and not _is_available(desktop, pool, None))
            or (desktop.user is not None and pool.spec.kind is PoolKind.DEDICATED and refreshes)
        )
    ]
    available, unavailable = _split(unused, lambda desktop: _is_available(desktop, pool, image))
    budget = pool.spec.max_unavailable - sum(desktop.host_id is not None for desktop in unavailable)
    outdated = [one for one in available if one.image_id != image.id and _can_have(one, with_image)]
    outdated.sort(key=lambda desktop: natural_key(desktop.name))
    return tuple(moved) + tuple(desktop.id for desktop in outdated[: max(0, budget)])


def _can_have(desktop: Desktop, with_image: Collection[str] | None) -> bool:
    return with_image is None or desktop.host_id is None or desktop.host_id in with_image


def _is_available(desktop: Desktop, pool: Pool, image: Image | None) -> bool:
    """Return whether a desktop without a user is ready; with `image`: and is not one whose refresh to it is due."""
    report = desktop.report
    if report is None or not report.exists or not report.ready or needs_refresh(desktop, report, pool.spec.kind):
        return False
    due = image is not None and desktop.image_id == image.id and report.image not in (None, image.path)
    return not due
