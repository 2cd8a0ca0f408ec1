# SPDX-License-Identifier: Apache-2.0
"""What a host's complete list of VMs says of each desktop: its VM, contradictions, and the new report.

A report remembers what one list cannot say: since when a VM runs, and whether its user logged on and off. That memory
holds for one assignment: it ends where the mark in the VM's record changes.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence

from vgpuctl.controller.model import (
    Desktop,
    DesktopReport,
    DesktopVgpu,
    FleetHost,
    FleetHostState,
    Pool,
    PoolKind,
    ReadyWhen,
)
from vgpuctl.controller.planning.back_off import WAITING_CODES
from vgpuctl.controller.planning.log_offs import follow_log_off
from vgpuctl.controller.planning.logons import NO_HELPER_CODE, is_logon_due, remembered
from vgpuctl.controller.planning.phase import (
    BLOCKING_CODES,
    COPY_CODE,
    CRASH_SECONDS,
    CRASHES_CODE,
    LOGGED_ON_CODE,
    MOST_RESTARTS,
    MOVE_CODE,
    RECORD_CODES,
    boot_failed,
    is_moved,
    is_off,
    is_running,
    was_seen,
)
from vgpuctl.controller.planning.restarts import wants_restart
from vgpuctl.model.desktop import DesktopMark
from vgpuctl.model.vm import CLEAN_STOP
from vgpuctl.value import Value, replace

_OWN_CODES = frozenset((LOGGED_ON_CODE, NO_HELPER_CODE, *BLOCKING_CODES))
"""Those that follow from a look; the others are of an action that failed."""


class HostVm(Value):
    """A VM of a host, as the controller sees it; of its agent's list, with what further calls say of the guest.

    `generation`: of the VM's record, for `if_generation`. `mark`: of its record, None: it has none. `image`: the file
    that its first disk was made from. `guest_users`: as the helper in the guest reports; None without one, or while the
    guest does not run. `guest_answers`: the guest's agent or helper does; `port_open`: the pool's port is; False: not
    asked. `driver`: NVIDIA's in the guest. `should_run`: its host's agent starts it after a boot. `off_after_setup`,
    `prepared`, `stop_reason`: as the list has them. `disks`: the files of its disks, empty: not asked.
    `vgpus`: what of GPUs it has, or keeps while it is off.
    """

    name: str
    uuid: str
    state: str
    generation: int | None = None
    mark: DesktopMark | None = None
    image: str | None = None
    guest_users: tuple[str, ...] | None = None
    address: str | None = None
    address_problem: str | None = None
    guest_answers: bool = False
    port_open: bool = False
    driver: str | None = None
    should_run: bool = False
    off_after_setup: bool = False
    prepared: bool = False
    stop_reason: str | None = None
    disks: tuple[str, ...] = ()
    vgpus: tuple[DesktopVgpu, ...] = ()

    @property
    def is_preparing(self) -> bool:
        """Whether its guest sets itself up, once, and its disk is to be kept then."""
        return self.off_after_setup and not self.prepared

    @property
    def is_set_up(self) -> bool:
        """Whether its guest has set itself up and shut down, so that its disk can be kept now."""
        return self.is_preparing and is_off(self.state) and self.stop_reason == CLEAN_STOP


class DesktopView(Value):
    """A desktop, its VM (None: it has none, or not one that may be touched) and what is reported of it now.

    `powered_off`: it was seen running in this assignment, and now it is off without the controller.
    """

    desktop: Desktop
    vm: HostVm | None
    report: DesktopReport | None
    powered_off: bool = False


def view_desktop(
    desktop: Desktop,
    vms: Sequence[HostVm],
    pool: Pool | None,
    host: FleetHost,
    incarnation: str,
    now: float,
    *,
    in_flight: bool,
    former_incarnations: Collection[str] = (),
) -> DesktopView:
    """Return what the host has of a desktop; `vms`: those of its list with its uuid, its name, or its id in a mark.

    `in_flight`: an operation about it runs: what is seen now is not the end of it. `former_incarnations`: those that
    the database was restored from.
    """
    named, own = [vm for vm in vms if vm.name == desktop.name], [vm for vm in vms if vm.uuid == desktop.id]
    marked = [vm for vm in vms if vm.mark is not None and vm.mark.id == desktop.id]
    if in_flight and own and own[0].mark is None:
        return DesktopView(desktop, None, None)  # it is being made, and is marked in a moment
    error = _contradiction(desktop, own, marked, incarnation, former_incarnations)
    if error is not None:
        vm = next(iter(own or marked))
        return DesktopView(desktop, None, _contradicted(desktop, vm, host, error, now))
    if own and own[0].mark is not None:
        return _seen(desktop, own[0], own[0].mark, pool, host, now, in_flight)
    if was_seen(desktop) or desktop.absent:
        former = desktop.report or DesktopReport(False)
        return DesktopView(desktop, None, None if in_flight else _without_vm(former, host, now))
    if named and not in_flight:
        error = ("name-taken", f"{host.name} has a VM {desktop.name} that is none of this desktop")
        return DesktopView(desktop, None, _contradicted(desktop, None, host, error, now))
    report = desktop.report
    if report is not None and report.code in BLOCKING_CODES:
        report = replace(report, code=None, error=None, hint=None, seen_at=now, record_generation=None)
        return DesktopView(desktop, None, report)
    return DesktopView(desktop, None, None)


def has_new(desktops: Sequence[Desktop], vms: Sequence[HostVm]) -> bool:
    """Return whether a host has a desktop that it never reported before."""
    listed = {vm.mark.id for vm in vms if vm.mark is not None and vm.mark.id == vm.uuid}
    return any(one.id in listed and (one.report is None or one.report.generation == 0) for one in desktops)


def names_another(desktop: Desktop, mark: DesktopMark) -> bool:
    """Return whether a VM's record names another person than the row."""
    return mark.user is not None and mark.user != desktop.user


def _contradiction(
    desktop: Desktop,
    own: Sequence[HostVm],
    marked: Sequence[HostVm],
    incarnation: str,
    former_incarnations: Collection[str],
) -> tuple[str, str] | None:
    """Return code and text where the host's VM is not the one that the database means; None: it is, or there is none.

    A mark with the row's generation and another user, or a newer one, is of another history: the database was restored.
    Where it is known to be, a mark of a former incarnation may be newer; it must not name another person.
    """
    if len(own) > 1 or any(vm.uuid != desktop.id for vm in marked):
        names = ", ".join(sorted({vm.name for vm in (*own, *marked)}))
        return "duplicate-uuid", f"more than one VM is this desktop: {names}"
    if not own:
        return None
    mark = own[0].mark
    if mark is None or mark.id != desktop.id:
        return "not-marked", f"the VM {own[0].name} has this desktop's uuid, and is not marked as a desktop of a pool"
    if is_moved(desktop) and mark.generation < desktop.generation:
        return COPY_CODE, f"the VM {own[0].name} is what the host had before the desktop was moved"
    if mark.incarnation != incarnation and mark.incarnation in former_incarnations:
        text = f"the VM is {mark.user}'s, and in the restored database {desktop.user or 'nobody'}'s"
        return ("other-user", text) if names_another(desktop, mark) else None
    if mark.incarnation != incarnation:
        return "other-controller", f"the VM {own[0].name} belongs to another controller's database ({mark.incarnation})"
    if mark.generation > desktop.generation:
        text = f"the VM's generation {mark.generation} is newer than the database's {desktop.generation}"
        return "record-newer", f"{text}: was the database restored?"
    if mark.generation == desktop.generation and names_another(desktop, mark):
        return "other-user", f"the VM is {mark.user}'s, and in the database {desktop.user or 'nobody'}'s"
    return None


def _contradicted(
    desktop: Desktop, vm: HostVm | None, host: FleetHost, error: tuple[str, str], now: float
) -> DesktopReport:
    """Return the report of a desktop of which nothing is touched; what the row's own VM last was is kept."""
    former = desktop.report or DesktopReport(False)
    code, text = error
    mark = vm.mark if vm is not None else None
    at_host, name = f"vgpuctl --host {shlex.quote(host.address)}", vm.name if vm is not None else desktop.name
    hint = f"{at_host} show-vm {name}"
    record = mark if code in RECORD_CODES else None
    if record is not None:
        hint += f"; if the host is right: vgpuctl controller accept-desktop {desktop.name}"
    if code == COPY_CODE:
        hint = f"as root: {at_host} --override-controller delete-vm {name} --keep-disks; then it is made here with them"
    return replace(
        former,
        exists=code != COPY_CODE and (vm is not None or (former.exists and was_seen(desktop))),
        state=vm.state if vm is not None else former.state,
        dirty=former.dirty or (mark is not None and mark.dirty),
        ready=False,
        code=code,
        error=text,
        hint=hint,
        seen_at=now,
        boot_id=host.boot_id,
        record_user=None if record is None else record.user,
        record_generation=None if record is None else record.generation,
    )


def _without_vm(former: DesktopReport, host: FleetHost, now: float) -> DesktopReport:
    """Return the report of a VM that is gone; its last mark stays, so that it counts as seen."""
    return DesktopReport(
        False, generation=former.generation, dirty=former.dirty, user=former.user, seen_at=now, boot_id=host.boot_id
    )


def _seen(
    desktop: Desktop, vm: HostVm, mark: DesktopMark, pool: Pool | None, host: FleetHost, now: float, in_flight: bool
) -> DesktopView:
    former, running = desktop.report, is_running(vm.state)
    memory = former if former is not None and _is_same_disk(former, vm, mark) else DesktopReport(True)
    stray = bool(vm.guest_users) and mark.user is None and (pool is None or pool.spec.kind is not PoolKind.FIXED)
    unmarked = not mark.dirty and mark.user is None and (stray or memory.logged_on_seen)
    since, restarts = memory.running_since, wants_restart(desktop, now)
    ended = since is not None and is_off(vm.state) and not in_flight
    may_be_user = not (desktop.errors or restarts or vm.is_set_up) and _may_user_stop(host, pool, memory)
    powered_off = ended and memory.boot_id == host.boot_id and may_be_user
    is_done = ended or (is_off(vm.state) and not desktop.power_on)  # the stop that the controller wanted
    let_in = None if former is None else remembered(former, mark, vm.image)
    is_due = is_logon_due(desktop, pool, let_in) and not vm.is_preparing  # nobody is let in before its disk is kept
    is_new = since is None or (is_due and not memory.logon_due)  # its helper gets the time of a boot for that
    running_since = now if running and is_new else None if is_done else since
    is_ready = running and not vm.is_preparing and _is_ready(vm, pool) and not is_due
    log_off = follow_log_off(vm.guest_users, mark, memory, now, powered_off=powered_off, restarts=restarts)
    report = DesktopReport(
        True,
        state=vm.state,
        generation=mark.generation,
        dirty=mark.dirty or unmarked,
        user=mark.user,
        image=vm.image,
        guest_users=vm.guest_users,
        address=vm.address,
        address_problem=None if vm.address is not None else vm.address_problem or memory.address_problem,
        ready=is_ready,
        running_since=running_since,
        seen_at=now,
        boot_id=host.boot_id,
        logged_on_seen=log_off.logged_on_seen or unmarked,
        empty_since=log_off.empty_since,
        logged_off=log_off.logged_off,
        crashes=_crashes(desktop, memory, mark, powered_off, now),
        driver=vm.driver or memory.driver,
        superseded=former is not None and former.superseded and desktop.user is not None,
        preparing=vm.is_preparing,
        disks=vm.disks or (() if former is None else former.disks),
        disks_generation=vm.generation if vm.disks else (None if former is None else former.disks_generation),
        moved=former is not None and former.moved,
        let_in=let_in,
        logon_due=is_due,
        vgpus=vm.vgpus,
        boot_seconds=_boot_seconds(former, running_since, is_ready, now),
        after_silence=log_off.after_silence,
    )
    report = _with_logon_error(_with_error(report, desktop, vm, host, stray or unmarked, now), desktop, pool, now)
    return DesktopView(desktop, vm, _with_crashes(report, memory, desktop, host), powered_off)


def _may_user_stop(host: FleetHost, pool: Pool | None, memory: DesktopReport) -> bool:
    """Return whether a VM that is off may have been shut down in its guest: in maintenance its host stops it."""
    is_floating = pool is not None and pool.spec.kind is PoolKind.FLOATING
    return host.state is not FleetHostState.MAINTENANCE or (is_floating and memory.logged_on_seen)


def _with_logon_error(report: DesktopReport, desktop: Desktop, pool: Pool | None, now: float) -> DesktopReport:
    """Return a report with what keeps its guest from letting a user in, if nothing else is wrong."""
    is_asked = report.logon_due and is_running(report.state) and report.code is None
    return _with_logon(report, desktop, pool, now) if is_asked and pool is not None else report


def _boot_seconds(
    former: DesktopReport | None, running_since: float | None, is_ready: bool, now: float
) -> float | None:
    """Return how long the last start took, as far as it was seen; letting a user in later is no part of it."""
    if former is None:
        return None
    has_waited = not former.ready and not former.logon_due and running_since == former.running_since
    return now - running_since if is_ready and has_waited and running_since is not None else former.boot_seconds


def _is_same_disk(former: DesktopReport, vm: HostVm, mark: DesktopMark) -> bool:
    """Return whether what was remembered still holds: since then there was no assignment and no refresh.

    A log-on to a desktop that is nobody's is remembered until its mark says that it is dirty.
    """
    same_mark = (former.generation, former.user) == (mark.generation, mark.user)
    return former.exists and same_mark and not was_refreshed(former, vm, mark)


def was_refreshed(former: DesktopReport, vm: HostVm, mark: DesktopMark) -> bool:
    """Return whether a VM has another disk than the one that was reported: then it has booted since, too."""
    is_unmarked = mark.user is None and former.logged_on_seen
    return (former.dirty and not mark.dirty and not is_unmarked) or former.image not in (None, vm.image)


def _crashes(
    desktop: Desktop, memory: DesktopReport, mark: DesktopMark, powered_off: bool, now: float
) -> tuple[float, ...]:
    """Return when a desktop of nobody stopped by itself in the last 20 minutes; `powered_off`: also now.

    What an action of the controller left off when it failed did not stop by itself.
    """
    recent = tuple(at for at in memory.crashes if now - at < CRASH_SECONDS)
    is_nobodys = desktop.user is None and mark.user is None and desktop.power_on and not desktop.absent
    return (*recent, now) if powered_off and is_nobodys and memory.code in (None, MOVE_CODE) else recent


def _with_crashes(report: DesktopReport, memory: DesktopReport, desktop: Desktop, host: FleetHost) -> DesktopReport:
    """Return a report with the error of a desktop that stopped too often; it stays until somebody starts it."""
    if not is_off(report.state) or (memory.code != CRASHES_CODE and len(report.crashes) <= MOST_RESTARTS):
        return report
    count = max(len(report.crashes), MOST_RESTARTS + 1)
    return replace(
        report,
        code=CRASHES_CODE,
        error=f"{host.name}: it stopped by itself {count} times in {CRASH_SECONDS // 60} minutes",
        hint=f"vgpuctl --host {shlex.quote(host.address)} events; then vgpuctl controller start-desktop {desktop.name}",
    )


def _is_ready(vm: HostVm, pool: Pool | None) -> bool:
    when = pool.spec.ready_when if pool is not None else ReadyWhen.RUNNING
    return {ReadyWhen.RUNNING: vm.state == "running", ReadyWhen.GUEST: vm.guest_answers, ReadyWhen.PORT: vm.port_open}[
        when
    ]


def _with_logon(report: DesktopReport, desktop: Desktop, pool: Pool, now: float) -> DesktopReport:
    """Return a report that says so where no helper reports in time whom it could let in."""
    if report.guest_users is not None or not boot_failed(replace(desktop, report=report), pool, now):
        return report
    return replace(
        report,
        code=NO_HELPER_CODE,
        error=f"no guest helper reports who is logged on, which logon: {pool.spec.logon} of pool {pool.name} needs",
        hint="put vgpuctl-guest into the image (vgpuctl print-helper), or take logon out of the pool's spec",
    )


def _with_error(
    report: DesktopReport, desktop: Desktop, vm: HostVm, host: FleetHost, stray: bool, now: float
) -> DesktopReport:
    """Return a report with the last action's error as long as it counts, or with what is unusual in the guest.

    One that waits for a person counts until the desktop is refreshed, or nothing is to be tried again. Why it does not
    leave its host, and where it could not go, counts as long as it should leave.
    """
    former = desktop.report
    if former is not None and host.moves_live:
        report = replace(report, refused_by=former.refused_by)
    is_due = report.dirty or report.generation < desktop.generation or desktop.not_before > now
    counts = desktop.errors or (is_due and former is not None and former.code in WAITING_CODES)
    if former is not None and former.code == MOVE_CODE:
        counts = host.moves_live
    if counts and former is not None and former.code not in (None, *_OWN_CODES):
        return replace(report, code=former.code, error=former.error, hint=former.hint)
    if not stray:
        return report
    users = ", ".join(vm.guest_users or ())[:200]
    text = f"logged on, though the desktop was nobody's: {users or 'somebody who has logged off'}"
    return replace(report, code=LOGGED_ON_CODE, error=text, hint="it is refreshed when nobody is logged on")
