# SPDX-License-Identifier: Apache-2.0
"""What the controller does on a host next: what is wanted there against the VMs that its agent lists.

The plan is a function of both, so a lost answer, another controller or a restart changes nothing: the next look decides
again. A VM that no row wants is never touched; only a desktop that is marked absent is deleted. A VM whose record is
newer than its row, or another controller's, is left alone: an admin decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum

from vgpuctl.controller.model import (
    Desktop,
    DesktopReport,
    FleetHost,
    FleetHostState,
    Image,
    Pool,
    PoolState,
    ReadyWhen,
)
from vgpuctl.controller.planning.phase import (
    NAME_TAKEN,
    NOT_MARKED,
    OTHER_CONTROLLER,
    RECORD_NEWER,
    UNTOUCHED,
    VM_GONE,
)
from vgpuctl.controller.planning.pool_plan import BOOT_TIMEOUT
from vgpuctl.model.desktop import DesktopMark
from vgpuctl.model.results.vms import VmRowResult
from vgpuctl.value import EMPTY_MAPPING, Value, replace

_OFF = ("stopped", "crashed")
MAX_LEAVING = 4
"""So many desktops without a user leave a host that is drained, at a time."""


class ActionKind(StrEnum):
    """What is done for a desktop; the order is that of their urgency."""

    MARK = "mark"
    START = "start"
    REFRESH = "refresh"
    MAKE = "make"
    STOP = "stop"
    DELETE = "delete"


_STARTS = frozenset({ActionKind.START, ActionKind.REFRESH, ActionKind.MAKE})
_URGENCY = {kind: number for number, kind in enumerate(ActionKind)}


class Action(Value):
    """One call of the agent for a desktop. `mark`: what the VM's record says afterwards; None: it does not change.

    `record_generation`: of the VM's record when it was looked at; None: there was no VM.
    """

    kind: ActionKind
    desktop: Desktop
    mark: DesktopMark | None = None
    image: Image | None = None
    record_generation: int | None = None


class Probe(Value):
    """What was tried with a running guest: whether it answers, its address, whether the pool's port is open."""

    answers: bool = False
    address: str | None = None
    port_is_open: bool = False


class HostLook(Value):
    """What a host's agent said: all its VMs. `probes`: by the VM's uuid."""

    vms: Sequence[VmRowResult]
    probes: Mapping[str, Probe] = EMPTY_MAPPING


class WantedOnHost(Value):
    """What is wanted on a host. `pools`, `images`: by id."""

    host: FleetHost
    desktops: Sequence[Desktop]
    pools: Mapping[str, Pool]
    images: Mapping[str, Image]
    incarnation: str


class HostPlan(Value):
    """What to do, the most urgent first, and what to store of each desktop, by id.

    `leave`: desktops, by id, that are deleted here, since the host is drained. `unmade`: those that were never made
    here, and that another host takes.
    """

    actions: tuple[Action, ...]
    reports: Mapping[str, DesktopReport]
    leave: tuple[str, ...] = ()
    unmade: tuple[str, ...] = ()


def plan_host(wanted: WantedOnHost, look: HostLook, now: float, *, in_flight: Mapping[str, str], room: int) -> HostPlan:
    """Return what to do on a host. `in_flight`: desktops by id, with their pools' ids, for which something is done now.

    `room`: how many more calls the host takes now.
    """
    by_uuid = {vm.uuid: vm for vm in look.vms}
    names = {vm.name: vm for vm in look.vms}
    reports: dict[str, DesktopReport] = {}
    actions: list[Action] = []
    starting = Counter(in_flight.values())
    for desktop in wanted.desktops:
        pool = wanted.pools[desktop.pool_id]
        vm, namesake = by_uuid.get(desktop.id), names.get(desktop.name)
        report = _report(wanted, desktop, pool, vm, namesake, look.probes.get(desktop.id, Probe()), now)
        reports[desktop.id] = report
        if report.exists and report.state == "running" and not report.ready and desktop.id not in in_flight:
            starting[pool.id] += report.code is None
        action = _action(wanted, desktop, pool, vm, report)
        if action is not None and desktop.id not in in_flight and desktop.not_before <= now:
            actions.append(action)
    actions.sort(key=lambda one: (_is_idle(one.desktop), _URGENCY[one.kind], one.desktop.created_at, one.desktop.name))
    unmade: tuple[str, ...] = ()
    if wanted.host.state is not FleetHostState.ACTIVE or wanted.host.held is not None:
        new = [one for one in wanted.desktops if one.id not in by_uuid and one.id not in in_flight and not one.absent]
        unmade = tuple(one.id for one in new if reports[one.id].code is None)
    leave = _leaving(wanted, {*in_flight, *unmade})
    return HostPlan(_within_budget(actions, wanted.pools, starting, room), reports, leave, unmade)


def _is_idle(desktop: Desktop) -> bool:
    """Return whether nobody waits for a desktop."""
    return desktop.user is None


def _within_budget(
    actions: Sequence[Action], pools: Mapping[str, Pool], starting: Counter[str], room: int
) -> tuple[Action, ...]:
    """Return the actions that can begin now: so many starts of a pool at a time, and so many calls."""
    allowed: list[Action] = []
    for action in actions:
        if len(allowed) >= room:
            break
        pool = pools[action.desktop.pool_id]
        if action.kind in _STARTS:
            if starting[pool.id] >= pool.spec.starts_per_host:
                continue
            starting[pool.id] += 1
        allowed.append(action)
    return tuple(allowed)


def _report(
    wanted: WantedOnHost,
    desktop: Desktop,
    pool: Pool,
    vm: VmRowResult | None,
    namesake: VmRowResult | None,
    probe: Probe,
    now: float,
) -> DesktopReport:
    """Return what is stored of a desktop."""
    before = desktop.report
    if vm is None:
        return _report_without_vm(desktop, namesake, now)
    mark = vm.desktop
    problem = _find_problem(wanted, desktop, mark)
    running_since = None
    if vm.state == "running":
        running_since = before.running_since if before is not None and before.running_since is not None else now
    generation = 0 if mark is None else mark.generation
    report = DesktopReport(
        exists=True,
        state=str(vm.state),
        generation=generation,
        dirty=mark is not None and mark.dirty,
        user=None if mark is None else mark.user,
        image=vm.image,
        guest_users=vm.guest_users,
        address=probe.address,
        ready=vm.state == "running" and _is_ready(pool, vm, probe) and problem is None,
        running_since=running_since,
        seen_at=now,
    )
    report = _with_sessions(report, before, now)
    if problem is not None:
        code, error, hint = problem
        return replace(report, code=code, error=error, hint=hint)
    if running_since is not None and not report.ready and now - running_since > pool.spec.boot_minutes * 60:
        text = f"it runs for {(now - running_since) / 60:.0f} minutes and is not ready ({pool.spec.ready_when})"
        return replace(report, code=BOOT_TIMEOUT, error=text, hint=f"vgpuctl show-console {desktop.name}")
    if desktop.errors and before is not None and before.code not in (*UNTOUCHED, VM_GONE, BOOT_TIMEOUT):
        return replace(report, code=before.code, error=before.error, hint=before.hint)  # until something works
    return report


def _report_without_vm(desktop: Desktop, namesake: VmRowResult | None, now: float) -> DesktopReport:
    before = desktop.report
    if before is not None and (before.exists or before.code == VM_GONE):
        text = f"its VM is gone: somebody deleted {desktop.name} on the host"
        return DesktopReport(exists=False, code=VM_GONE, error=text, seen_at=now)
    if namesake is not None and not desktop.absent:
        text = f"the host has another VM {desktop.name}, with the uuid {namesake.uuid}"
        return DesktopReport(exists=False, code=NAME_TAKEN, error=text, hint="rename or delete that VM", seen_at=now)
    if before is None or not desktop.errors:
        return DesktopReport(exists=False, seen_at=now)
    return replace(before, seen_at=now)


def _find_problem(wanted: WantedOnHost, desktop: Desktop, mark: DesktopMark | None) -> tuple[str, str, str] | None:
    """Return why a VM is left alone: code, text and hint."""
    show = f"vgpuctl show-vm {desktop.name}"
    if mark is None:
        return NOT_MARKED, f"the VM {desktop.name} has no mark of a controller any more", show
    if mark.incarnation != wanted.incarnation:
        return OTHER_CONTROLLER, f"the VM {desktop.name} belongs to another controller's database", show
    if mark.generation > desktop.generation:
        text = f"the VM's record is newer than the database: {mark.generation} > {desktop.generation}"
        return RECORD_NEWER, f"{text}; was the database restored?", show
    return None


def _is_ready(pool: Pool, vm: VmRowResult, probe: Probe) -> bool:
    match pool.spec.ready_when:
        case ReadyWhen.RUNNING:
            return True
        case ReadyWhen.GUEST:
            return vm.guest_users is not None or vm.driver is not None or probe.answers
        case ReadyWhen.PORT:
            return probe.port_is_open


def _with_sessions(report: DesktopReport, before: DesktopReport | None, now: float) -> DesktopReport:
    """Return a report with what is known of log-ons in this assignment; an unknown user list changes nothing."""
    same = before is not None and before.exists and before.generation == report.generation
    logged_on = before is not None and same and before.logged_on
    empty_since = before.empty_since if before is not None and same else None
    if report.guest_users is not None and report.user is not None:
        logged_on = logged_on or bool(report.guest_users)
        empty_since = None if report.guest_users or not logged_on else (now if empty_since is None else empty_since)
    return replace(report, logged_on=logged_on, empty_since=empty_since)


def _action(
    wanted: WantedOnHost, desktop: Desktop, pool: Pool, vm: VmRowResult | None, report: DesktopReport
) -> Action | None:
    """Return what a desktop needs next; None: nothing, or nobody may decide but an admin."""
    if wanted.host.held is not None or report.code in UNTOUCHED:
        return None
    image = wanted.images.get(desktop.image_id)
    clean = DesktopMark(desktop.id, pool.name, wanted.incarnation, desktop.generation)
    if vm is None:
        may_make = wanted.host.state is FleetHostState.ACTIVE and pool.state is PoolState.ACTIVE
        if desktop.absent or report.code == VM_GONE or image is None or not may_make:
            return None
        return Action(ActionKind.MAKE, desktop, clean, image)
    if desktop.absent:
        return Action(ActionKind.DELETE, desktop, record_generation=vm.generation)
    may_refresh = pool.state is PoolState.ACTIVE and image is not None
    if desktop.user is None and (report.dirty or _has_old_image(pool, report, image)):
        return Action(ActionKind.REFRESH, desktop, clean, image, vm.generation) if may_refresh else None
    mark = clean if desktop.user is None else replace(clean, dirty=True, user=desktop.user)
    if vm.desktop != replace(mark, pool=mark.pool if vm.desktop is None else vm.desktop.pool):
        return Action(ActionKind.MARK, desktop, mark, record_generation=vm.generation)
    if desktop.power_on and report.state in _OFF and (pool.state is PoolState.ACTIVE or desktop.user is not None):
        return Action(ActionKind.START, desktop, record_generation=vm.generation)
    if not desktop.power_on and report.state == "running":
        return Action(ActionKind.STOP, desktop, record_generation=vm.generation)
    return None


def _has_old_image(pool: Pool, report: DesktopReport, image: Image | None) -> bool:
    return image is not None and report.image is not None and report.image != image.path


def _leaving(wanted: WantedOnHost, in_flight: Collection[str]) -> tuple[str, ...]:
    """Return desktops without a user that leave a host that is drained: they are deleted, and made elsewhere."""
    if wanted.host.state is not FleetHostState.DRAINING or wanted.host.held is not None:
        return ()
    can_leave = [
        one.id
        for one in wanted.desktops
        if one.user is None
        and not one.absent
        and one.id not in in_flight
        and (one.report is None or one.report.code not in UNTOUCHED)
    ]
    return tuple(can_leave[:MAX_LEAVING])
