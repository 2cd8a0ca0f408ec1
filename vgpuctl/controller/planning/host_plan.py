# SPDX-License-Identifier: Apache-2.0
"""What a host does next: one look at its complete list of VMs, compared with the rows of its desktops.

Only an absent row leads to a deletion. A VM without a row is left alone: the database may be an older one. Where the
host's VM contradicts the row, nothing is touched, and the report says why. Each call is planned again at the next look,
so every action here must be one that is safe to repeat.

Size: what a host does next, case by case.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from vgpuctl.config.name_patterns import natural_key
from vgpuctl.controller.model import (
    Desktop,
    DesktopReport,
    FleetHost,
    FleetHostState,
    Image,
    OnLogoff,
    Pool,
    PoolKind,
    PoolState,
)
from vgpuctl.controller.planning.back_off import next_try
from vgpuctl.controller.planning.host_look import DesktopView, HostVm, view_desktop
from vgpuctl.controller.planning.logons import NOBODY, is_logon_due, wanted_logon
from vgpuctl.controller.planning.moves import leaves_live
from vgpuctl.controller.planning.phase import CRASHES_CODE, MOVE_CODE, boot_failed, is_off, is_running, was_seen
from vgpuctl.controller.planning.restarts import restart_key, wants_restart
from vgpuctl.controller.planning.restored import raised_generation
from vgpuctl.model.desktop import DesktopMark
from vgpuctl.model.vm import CLEAN_STOP, VmState
from vgpuctl.value import EMPTY_MAPPING, Value, replace


class HostAction(Value):
    """A call about one desktop. `mark`: what the VM's record says afterwards.

    `vm_name`: the VM's name; `if_generation`: of its record, in the look that this follows; None for a VM that is made.
    """

    desktop: Desktop
    mark: DesktopMark
    vm_name: str
    if_generation: int | None = None


class MakeVm(HostAction):
    """Make the VM, and start it if the desktop should run."""


class StartVm(HostAction):
    """Start the VM."""


class StopVm(HostAction):
    """Shut the guest down. `force`: stop the VM if it does not. `at_once`: do not ask the guest.

    A guest that sets itself up is not asked: one that shut down in the middle of that would count as set up.
    """

    force: bool = False
    at_once: bool = False


class RestartVm(HostAction):
    """Have the guest boot again, by a reset if it ignores the request. `at_once`: by a reset.

    `key`: names this restart, so that the host does it once however often it is asked.
    """

    key: str = ""
    at_once: bool = False


class PrepareVm(HostAction):
    """Keep the disk of a guest that has set itself up, and start the VM if the desktop should run."""


class RefreshVm(HostAction):
    """Make the first disk again, and start the VM if the desktop should run.

    `from_image`: from the desktop's image; else from what was kept when its guest had set itself up.
    """

    from_image: bool = True


class MarkVm(HostAction):
    """Write the mark, and touch nothing else."""


class AllowLogon(HostAction):
    """Have the guest's helper let in whom `let_in` names (`planning.logons`), and nobody else."""

    let_in: str = NOBODY


class DeleteVm(HostAction):
    """Delete the VM with its disks."""


class MoveVm(HostAction):
    """Move the VM as it is to the host with the id `target_id`; a move that was interrupted is ended first.

    `offline`: it is off. `begins`: if none was interrupted, it moves now; else it stays.
    """

    target_id: str = ""
    offline: bool = False
    begins: bool = True


class HostPlan(Value):
    """`reports`: the new report of each desktop of which the list says something, by id.

    `powered_off`: ids of assigned desktops that were switched off in the guest, or after a log-off; they stay off until
    their users open them, so the database's `power_on` becomes False. `strays`: names of VMs that have this database's
    mark and no row on this host. `raised`: the generations that rows need, by id, so that records of a former
    incarnation are not newer.
    """

    actions: tuple[HostAction, ...] = ()
    reports: Mapping[str, DesktopReport] = EMPTY_MAPPING
    powered_off: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()
    raised: Mapping[str, int] = EMPTY_MAPPING


class _Order:
    """In which order actions are begun: users who wait come first."""

    USER, RESTART, REFRESH, REMOVE, SPARE = range(5)


MOST_RESTARTS_AT_ONCE = 2
"""Of a host: a guest may take minutes to reboot, and others wait for calls meanwhile."""


Ranked = tuple[int, HostAction]


def plan_host(
    host: FleetHost,
    desktops: Sequence[Desktop],
    vms: Sequence[HostVm],
    pools: Mapping[str, Pool],
    images: Mapping[str, Image],
    now: float,
    incarnation: str,
    in_flight: Collection[str],
    room: int,
    former_incarnations: Collection[str] = (),
    stop_at: float | None = None,
    elsewhere: Sequence[Desktop] = (),
) -> HostPlan:
    """Plan a host's next actions. `vms`: its complete list; `pools`, `images`: by id.

    Of a desktop that moves to another host nothing else is done, and nothing reported: its VM is paused, off or gone.

    `in_flight`: ids of desktops about which an operation is queued or runs on the host; `room`: how many operations may
    be in flight there at a time. `former_incarnations`: those that the database was restored from.
    `stop_at`: when all desktops of a host in maintenance stop, whoever is logged on; None: never. `elsewhere`: rows of
    `strays`, which are on other hosts now.
    """
    own = [desktop for desktop in desktops if desktop.host_id == host.id]
    views = _views(own, vms, pools, host, incarnation, now, in_flight, former_incarnations)
    raised = _raised(views, pools, former_incarnations) if host.held is None else {}
    may_stop = stop_at is not None and stop_at <= now
    due = [view for view in views if not _waits(view.desktop, now) and view.desktop.id not in {*in_flight, *raised}]
    actions = (
        _next_action(view, pools.get(view.desktop.pool_id), host, images, incarnation, now, may_stop=may_stop)
        for view in due
    )
    ranked = [action for action in actions if action is not None]
    ranked += _stops_of_copies(elsewhere, vms, (incarnation, *former_incarnations), in_flight)
    ranked += _moves(own, pools, host, incarnation, now, in_flight)
    busy = {view.desktop.id for view in views if view.desktop.id in in_flight}
    return HostPlan(
        _within_limits(ranked if host.held is None else [], views, pools, busy, max(0, room - len(in_flight)), now),
        {view.desktop.id: view.report for view in views if view.report is not None},
        tuple(view.desktop.id for view in views if view.powered_off),
        tuple(sorted(vm.name for vm in strays(own, vms, (incarnation,)))),
        raised,
    )


def _waits(desktop: Desktop, now: float) -> bool:
    """Return whether a desktop waits for its next try; one that cannot move is used, started and stopped meanwhile."""
    return desktop.not_before > now and (desktop.report is None or desktop.report.code != MOVE_CODE)


def _moves(
    own: Sequence[Desktop],
    pools: Mapping[str, Pool],
    host: FleetHost,
    incarnation: str,
    now: float,
    in_flight: Collection[str],
) -> Iterator[Ranked]:
    """Yield the moves of a host's desktops; one that its host is not to lose any more goes on only if it has begun."""
    for desktop in own:
        if desktop.moving_to is None or desktop.not_before > now or desktop.id in in_flight:
            continue
        pool, is_off_now = pools.get(desktop.pool_id), desktop.report is not None and is_off(desktop.report.state)
        begins = pool is not None and not desktop.absent and leaves_live(desktop, pool, host)
        mark = _wanted_mark(desktop, pool, incarnation)
        move = MoveVm(desktop, mark, desktop.name, target_id=desktop.moving_to, offline=is_off_now, begins=begins)
        yield _Order.USER, move


def _wanted_mark(desktop: Desktop, pool: Pool | None, incarnation: str) -> DesktopMark:
    return DesktopMark(
        desktop.id,
        pool.name if pool is not None else "",
        incarnation,
        desktop.generation,
        dirty=desktop.user is not None,
        user=desktop.user,
    )


def _views(
    own: Sequence[Desktop],
    vms: Sequence[HostVm],
    pools: Mapping[str, Pool],
    host: FleetHost,
    incarnation: str,
    now: float,
    in_flight: Collection[str],
    former: Collection[str],
) -> list[DesktopView]:
    """Return each desktop of a host with its VM, but those that move to other hosts."""
    related = _related(own, vms)
    views = []
    for desktop in (one for one in own if one.moving_to is None):
        pool, is_busy = pools.get(desktop.pool_id), desktop.id in in_flight
        view = view_desktop(
            desktop, related[desktop.id], pool, host, incarnation, now, in_flight=is_busy, former_incarnations=former
        )
        views.append(replace(view, powered_off=_stays_off(view, pool)))
    return views


def _raised(
    views: Sequence[DesktopView], pools: Mapping[str, Pool], former_incarnations: Collection[str]
) -> Mapping[str, int]:
    raised: dict[str, int] = {}
    for view in views:
        mark = view.vm.mark if view.vm is not None else None
        if mark is not None:
            generation = raised_generation(view.desktop, mark, pools.get(view.desktop.pool_id), former_incarnations)
            raised |= {} if generation is None else {view.desktop.id: generation}
    return raised


def _related(desktops: Sequence[Desktop], vms: Sequence[HostVm]) -> dict[str, list[HostVm]]:
    by_id: dict[str, list[HostVm]] = {}
    by_name: dict[str, list[HostVm]] = {}
    for vm in vms:
        for key in {vm.uuid, vm.mark.id if vm.mark is not None else vm.uuid}:
            by_id.setdefault(key, []).append(vm)
        by_name.setdefault(vm.name, []).append(vm)
    related = {}
    for desktop in desktops:
        ids = by_id.get(desktop.id, [])
        related[desktop.id] = [*ids, *(vm for vm in by_name.get(desktop.name, []) if vm not in ids)]
    return related


def strays(desktops: Sequence[Desktop], vms: Sequence[HostVm], incarnations: Collection[str]) -> tuple[HostVm, ...]:
    """Return the VMs that have a database's mark, and no row on this host; `desktops`: those that are on it."""
    known = {desktop.id for desktop in desktops}
    marked = [vm for vm in vms if vm.mark is not None and vm.mark.incarnation in incarnations]
    return tuple(vm for vm in marked if vm.mark is not None and vm.mark.id not in known)


def _stops_of_copies(
    elsewhere: Sequence[Desktop], vms: Sequence[HostVm], incarnations: Collection[str], in_flight: Collection[str]
) -> Iterator[Ranked]:
    """Yield the stops of VMs whose desktops were moved to other hosts: two that run would damage their disks.

    One that is moving to this host, as it is, is left alone.
    """
    rows = {row.id: row for row in elsewhere if row.id not in in_flight and row.moving_to is None}
    for vm in strays((), vms, incarnations):
        row = None if vm.mark is None else rows.get(vm.mark.id)
        if row is None or vm.mark is None or vm.mark.generation >= row.generation:
            continue
        if is_running(vm.state) or vm.should_run:
            yield _Order.USER, StopVm(row, vm.mark, vm.name, vm.generation, force=True, at_once=True)


def _stays_off(view: DesktopView, pool: Pool | None) -> bool:
    """Return whether a desktop was switched off by its user; a floating one whose user logged off is released."""
    desktop = view.desktop
    if not view.powered_off or view.report is None or desktop.user is None or desktop.absent or not desktop.power_on:
        return False
    if view.report.user != desktop.user or view.report.generation != desktop.generation:
        return False
    return not (pool is not None and pool.spec.kind is PoolKind.FLOATING and view.report.logged_off)


def _next_action(
    view: DesktopView,
    pool: Pool | None,
    host: FleetHost,
    images: Mapping[str, Image],
    incarnation: str,
    now: float,
    *,
    may_stop: bool,
) -> Ranked | None:
    """Return a desktop's next action with its order; None: nothing is to do, or nothing may be done."""
    desktop, vm = view.desktop, view.vm
    wanted = _wanted_mark(desktop, pool, incarnation)
    if vm is None or vm.mark is None:
        return _make(view, pool, host, images, wanted)
    if desktop.absent:
        mark = replace(vm.mark, generation=desktop.generation)
        return _Order.REMOVE, DeleteVm(desktop, mark, vm.name, vm.generation)
    if pool is None:
        return None
    if host.state is FleetHostState.DRAINING and desktop.user is None and not leaves_live(desktop, pool, host):
        return None
    call = _Call(desktop, vm, wanted)
    if host.state is FleetHostState.MAINTENANCE:
        return _for_maintenance(call, view, pool, images, now, may_stop=may_stop)
    if desktop.user is not None and pool.spec.kind is not PoolKind.FIXED:
        return _for_user(call, view, pool, images, now)
    return _for_nobody(call, view, pool, images, now)


class _Call(Value):
    """What the actions about one VM share."""

    desktop: Desktop
    vm: HostVm
    wanted: DesktopMark

    def act(self, kind: Callable[..., HostAction], mark: DesktopMark | None = None) -> HostAction:
        """Return an action on the VM; `mark`: another one than the VM has."""
        present = replace(self.vm.mark, pool=self.wanted.pool) if self.vm.mark is not None else self.wanted
        return kind(self.desktop, mark or present, self.vm.name, self.vm.generation)

    def refresh(self, mark: DesktopMark, images: Mapping[str, Image]) -> HostAction:
        """Return the refresh of the VM: from what was kept, unless the image is another one now."""
        image = images.get(self.desktop.image_id)
        is_kept = self.vm.prepared and image is not None and self.vm.image == image.path
        return RefreshVm(self.desktop, mark, self.vm.name, self.vm.generation, from_image=not is_kept)

    def stop(self, *, force: bool = False) -> HostAction:
        """Return the stop of the VM."""
        at_once = self.vm.is_preparing
        mark = self.act(StopVm).mark
        return StopVm(self.desktop, mark, self.vm.name, self.vm.generation, force=force or at_once, at_once=at_once)

    def restart(self, now: float) -> HostAction | None:
        """Return the restart that somebody asked for; None: nobody did, or the VM does not run."""
        desktop, vm = self.desktop, self.vm
        if vm.state != VmState.RUNNING or not desktop.power_on or not wants_restart(desktop, now):
            return None
        mark, key = self.act(MarkVm).mark, restart_key(desktop)
        return RestartVm(desktop, mark, vm.name, vm.generation, key=key, at_once=desktop.restart_at_once)


def _make(
    view: DesktopView, pool: Pool | None, host: FleetHost, images: Mapping[str, Image], wanted: DesktopMark
) -> Ranked | None:
    """Return the making of a VM that no host ever had."""
    desktop, report = view.desktop, view.report
    if desktop.absent or was_seen(desktop) or (report is not None and report.code is not None):
        return None
    if pool is None or pool.state is not PoolState.ACTIVE or host.state is not FleetHostState.ACTIVE:
        return None
    if desktop.image_id not in images or (desktop.profile is None and pool.spec.profiles):
        return None
    order = _Order.USER if desktop.user is not None else _Order.SPARE
    return order, MakeVm(desktop, wanted, desktop.name)


def _for_user(call: _Call, view: DesktopView, pool: Pool, images: Mapping[str, Image], now: float) -> Ranked | None:
    """Return the next action about a desktop that has a user.

    A disk that another user had, or the same one in an earlier assignment, is refreshed before this one is let in; also
    where somebody logged on just before the assignment.
    """
    desktop, vm, wanted, report = call.desktop, call.vm, call.wanted, view.report
    mark = vm.mark
    if mark is None or report is None:
        return None
    may_begin = pool.state is PoolState.ACTIVE
    has_image = desktop.image_id in images
    is_old = mark.dirty and (mark.generation, mark.user) != (desktop.generation, desktop.user)
    is_strangers = mark.user not in (None, desktop.user) or (mark.user is None and report.logged_on_seen)
    if is_old or is_strangers or _needs_everybody(call, pool, report):
        clean = replace(wanted, dirty=False, user=None)
        return (_Order.USER, call.refresh(clean, images)) if may_begin and has_image else None
    if vm.is_preparing:
        may_prepare = may_begin and has_image and _may_start_again(report, now)
        return _for_setup(call, replace(wanted, dirty=False, user=None), report, may_begin=may_prepare)
    if mark != replace(wanted, pool=mark.pool):
        return _Order.USER, call.act(MarkVm, wanted)
    logon = _logon(call, pool, report, _Order.USER)
    if logon is not None:
        return logon
    running = is_running(vm.state)
    keeps = pool.spec.kind is PoolKind.DEDICATED
    if report.logged_off and keeps and pool.spec.on_logoff is OnLogoff.REFRESH and may_begin and has_image:
        return _Order.REFRESH, call.refresh(replace(wanted, dirty=False), images)
    if running and (not desktop.power_on or (report.logged_off and keeps and pool.spec.on_logoff is OnLogoff.STOP)):
        return _Order.REMOVE, call.stop()
    restart = None if _is_ended(report, pool) else call.restart(now)
    if restart is not None:
        return _Order.RESTART, restart
    if is_off(vm.state) and desktop.power_on and not view.powered_off and not _is_ended(report, pool) and may_begin:
        return _Order.USER, call.act(StartVm)
    return None


def _for_maintenance(
    call: _Call, view: DesktopView, pool: Pool, images: Mapping[str, Image], now: float, *, may_stop: bool
) -> Ranked | None:
    """Return the stop of a desktop of a host that is to be changed; nothing is made or started there.

    A desktop with a user stops when nobody is logged on, as far as that is known, or when it must (`may_stop`); what a
    VM of a fixed pool does is not known. A stop also notes that the host's agent does not start it after a boot.
    """
    desktop, vm, report = call.desktop, call.vm, view.report
    is_fixed = pool.spec.kind is PoolKind.FIXED
    is_used = desktop.user is not None or is_fixed
    is_empty = report is not None and (
        report.logged_off or (report.guest_users == () and not report.logged_on_seen and not is_fixed)
    )
    if is_used and not is_empty and not may_stop:
        marking = None if desktop.user is None else _for_user(call, view, pool, images, now)
        return marking if marking is not None and isinstance(marking[1], MarkVm) else None
    if is_running(vm.state) or vm.should_run:
        return _Order.REMOVE, call.stop(force=may_stop or not is_used)
    return None


def _is_ended(report: DesktopReport, pool: Pool) -> bool:
    """Return whether a floating desktop's user is gone: it is released, and not started for him again."""
    return pool.spec.kind is PoolKind.FLOATING and report.logged_off


def _for_nobody(call: _Call, view: DesktopView, pool: Pool, images: Mapping[str, Image], now: float) -> Ranked | None:
    """Return the next action about a desktop without a user, or about a VM of a fixed pool."""
    desktop, vm, report = call.desktop, call.vm, view.report
    mark, image = vm.mark, images.get(desktop.image_id)
    if mark is None or report is None:
        return None
    clean = replace(call.wanted, dirty=False, user=None)
    may_begin = pool.state is PoolState.ACTIVE
    if pool.spec.kind is PoolKind.FIXED:
        if mark != replace(clean, pool=mark.pool):
            return _Order.REFRESH, call.act(MarkVm, clean)
    elif report.dirty and not mark.dirty and mark.generation == desktop.generation:
        return _Order.USER, call.act(MarkVm, replace(clean, dirty=True))
    elif mark.generation == desktop.generation and vm.guest_users and mark.user is None:
        return None  # somebody uses a desktop that is nobody's: it is refreshed after him
    elif mark.dirty or mark.generation != desktop.generation or _needs_everybody(call, pool, report):
        lock_out = _logon(call, pool, report, _Order.USER)  # its former user, where the refresh cannot begin
        return (_Order.REFRESH, call.refresh(clean, images)) if may_begin and image is not None else lock_out
    elif mark.incarnation != clean.incarnation:
        return _Order.REFRESH, call.act(MarkVm, clean)
    if image is not None and vm.image not in (None, image.path) and may_begin:
        return _Order.REFRESH, call.refresh(clean, images)
    may_start = _may_start_again(report, now)
    if vm.is_preparing:
        return _for_setup(call, clean, report, may_begin=may_begin and may_start and image is not None)
    logon = _logon(call, pool, report, _Order.SPARE)
    return logon or _power(call, report, now, may_begin=may_begin, may_start=may_start)


def _for_setup(call: _Call, clean: DesktopMark, report: DesktopReport, *, may_begin: bool) -> Ranked | None:
    """Return the next action about a guest that sets itself up; nobody is let in before its disk was kept.

    One that went off in another way than by its own shutdown begins again, and so does one to which somebody logged on:
    what he left would be kept for others.
    """
    desktop, vm = call.desktop, call.vm
    if is_running(vm.state):
        return None if desktop.power_on else (_Order.REMOVE, call.stop())
    if not is_off(vm.state) or not desktop.power_on or not may_begin:
        return None
    if vm.is_set_up and not report.logged_on_seen:
        return _Order.SPARE, call.act(PrepareVm)
    return _Order.SPARE, call.act(RefreshVm, clean)


def _logon(call: _Call, pool: Pool, report: DesktopReport, order: int) -> Ranked | None:
    """Return the request to a running guest's helper to let in another one than it does; None: nothing is to ask.

    One that does not report cannot be asked; it may come yet.
    """
    desktop, vm = call.desktop, call.vm
    wanted = wanted_logon(desktop, pool)
    is_wanted = wanted is not None and is_logon_due(desktop, pool, report.let_in) and desktop.power_on
    if not is_wanted or wanted is None or vm.state != VmState.RUNNING or vm.guest_users is None or vm.mark is None:
        return None
    return order, AllowLogon(desktop, vm.mark, vm.name, vm.generation, let_in=wanted)


def _needs_everybody(call: _Call, pool: Pool, report: DesktopReport) -> bool:
    """Return whether a guest lets nobody in, and its pool does not want that any more: only a new disk is as before."""
    return report.let_in == NOBODY and wanted_logon(call.desktop, pool) is None


def _power(call: _Call, report: DesktopReport, now: float, *, may_begin: bool, may_start: bool) -> Ranked | None:
    """Return the start, stop or restart of a desktop without a user.

    Where a guest that is set up shuts down though nobody was there, its disk was kept before that: whoever shut it down
    in the middle of its setup, libvirt calls that a shutdown, too. It begins again from the image.
    """
    desktop, vm = call.desktop, call.vm
    running = is_running(vm.state)
    if running and not desktop.power_on:
        return _Order.REMOVE, call.stop()
    restart = call.restart(now)
    if restart is not None:
        return _Order.SPARE, restart
    if not is_off(vm.state) or not desktop.power_on or not may_begin or not may_start:
        return None
    if vm.prepared and vm.stop_reason == CLEAN_STOP and report.crashes:
        return _Order.SPARE, call.act(RefreshVm, replace(call.wanted, dirty=False, user=None))
    return _Order.SPARE, call.act(StartVm)


def _may_start_again(report: DesktopReport, now: float) -> bool:
    """Return whether a desktop of nobody can be started: it did not stop by itself too often, or a moment ago."""
    if report.code == CRASHES_CODE:
        return False
    return not report.crashes or next_try(len(report.crashes) - 1, report.crashes[-1]) <= now  # the first time at once


def _within_limits(
    ranked: list[Ranked],
    views: Sequence[DesktopView],
    pools: Mapping[str, Pool],
    busy: Collection[str],
    room: int,
    now: float,
) -> tuple[HostAction, ...]:
    """Return as many actions as may be begun now, the most urgent ones first.

    What starts counts for the pool until it is ready: twenty guests that boot at once need longer than five times four.
    """
    starting: dict[str, set[str]] = {pool_id: set() for pool_id in pools}
    for view in views:
        if view.desktop.pool_id in pools and (view.desktop.id in busy or _is_starting(view, pools, now)):
            starting[view.desktop.pool_id].add(view.desktop.id)
    restarts = sum(view.desktop.id in busy and wants_restart(view.desktop, now) for view in views)
    begun: list[HostAction] = []
    for _, action in sorted(ranked, key=lambda entry: (entry[0], natural_key(entry[1].desktop.name))):
        if len(begun) >= room:
            break
        pool, desktop = pools.get(action.desktop.pool_id), action.desktop
        if isinstance(action, RestartVm):
            if restarts >= MOST_RESTARTS_AT_ONCE:
                continue
            restarts += 1
        if isinstance(action, MakeVm | StartVm | PrepareVm | RefreshVm) and pool is not None:
            if len(starting[pool.id] - {desktop.id}) >= pool.spec.starts_per_host:
                continue
            starting[pool.id].add(desktop.id)
        begun.append(action)
    return tuple(begun)


def _is_starting(view: DesktopView, pools: Mapping[str, Pool], now: float) -> bool:
    report, pool = view.report, pools.get(view.desktop.pool_id)
    if view.vm is None or report is None or pool is None or report.ready or report.running_since is None:
        return False
    return not boot_failed(replace(view.desktop, report=report), pool, now)
