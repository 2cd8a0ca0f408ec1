# SPDX-License-Identifier: Apache-2.0
"""Pools, desktops and hosts to plan with, and a small fleet: a database and hosts that do what plans say."""

from __future__ import annotations

import itertools
from typing import Any

from tests.rooms import counted_gpu, room_of
from vgpuctl.controller.model import (
    Desktop,
    DesktopReport,
    FleetHost,
    Image,
    OnLogoff,
    Pool,
    PoolChanges,
    PoolKind,
    PoolSpec,
    PoolState,
)
from vgpuctl.controller.planning.back_off import next_try
from vgpuctl.controller.planning.fleet_room import FleetRoom
from vgpuctl.controller.planning.host_choice import choose_host
from vgpuctl.controller.planning.host_look import HostVm
from vgpuctl.controller.planning.host_plan import (
    AllowLogon,
    DeleteVm,
    HostAction,
    HostPlan,
    MakeVm,
    MarkVm,
    PrepareVm,
    RefreshVm,
    StartVm,
    StopVm,
    plan_host,
)
from vgpuctl.controller.planning.phase import is_assignable
from vgpuctl.controller.planning.pool_plan import plan_pool
from vgpuctl.model.desktop import DesktopMark
from vgpuctl.value import replace

NOW = 1_800_000_000.0
DATABASE = "db-1"
IMAGE = Image("image-1", "office", "1", "/images/office-1.qcow2", "linux")
NEW_IMAGE = Image("image-2", "office", "2", "/images/office-2.qcow2", "linux")
HOST = FleetHost("h1", "host-1", "ssh://fleet@host-1", boot_id="boot-1", seen_at=NOW)


def pool_of(kind: str = "floating", **changes: Any) -> Pool:
    pool_fields = {name: changes.pop(name) for name in ("state", "reason") if name in changes}
    spec = PoolSpec(
        **{"kind": kind, "image": "office", "names": "d-{:03}", "maximum": 10, "profiles": ("2B",), **changes}
    )
    kind_value = PoolKind(spec.kind)
    logoff = OnLogoff(changes.get("on_logoff", "refresh" if kind_value is PoolKind.FLOATING else "keep"))
    spec = replace(spec, kind=kind_value, on_logoff=logoff)
    return Pool("p1", "desk", spec, PoolState(pool_fields.pop("state", "active")), **pool_fields)


def desktop_of(number: int = 1, **changes: Any) -> Desktop:
    fields = {"host_id": "h1", "profile": "A16-2B", "created_at": NOW, **changes}
    desktop = Desktop(f"id-{number}", "p1", f"d-{number:03}", f"52:54:00:00:00:{number:02x}", "image-1")
    return replace(desktop, **fields)


def ready_report(**changes: Any) -> DesktopReport:
    fields: dict[str, Any] = {
        "state": "running",
        "generation": 1,
        "image": IMAGE.path,
        "ready": True,
        "boot_id": "boot-1",
    }
    return DesktopReport(True, **{**fields, "running_since": NOW - 600, "seen_at": NOW - 10, **changes})


def mark_of(desktop: Desktop, **changes: Any) -> DesktopMark:
    mark = DesktopMark(desktop.id, "desk", DATABASE, desktop.generation, desktop.user is not None, desktop.user)
    return replace(mark, **changes)


def vm_of(desktop: Desktop, **changes: Any) -> HostVm:
    fields: dict[str, Any] = {"state": "running", "generation": 5, "image": IMAGE.path, "guest_users": ()}
    return HostVm(**{"name": desktop.name, "uuid": desktop.id, **fields, "mark": mark_of(desktop), **changes})


def plan_of(
    desktops: list[Desktop], vms: list[HostVm], pool: Pool, host: FleetHost = HOST, now: float = NOW, **more: Any
) -> HostPlan:
    images = {image.id: image for image in (IMAGE, NEW_IMAGE)}
    settings = {"in_flight": (), "room": 10, **more}
    return plan_host(host, desktops, vms, {pool.id: pool}, images, now, DATABASE, **settings)


def without_time(report: DesktopReport | None) -> DesktopReport | None:
    return None if report is None else replace(report, seen_at=0.0)


class TwoUsers(AssertionError):
    """A user got a disk that another user had been in."""


class NotLetIn(AssertionError):
    """A user was given a desktop that lets others in, or not him."""


class Fleet:
    """One pool's rows and hosts. A call is in flight for one step, and then carried out, or it fails."""

    def __init__(self, pool: Pool, hosts: tuple[FleetHost, ...] = (HOST,), slots: int = 20) -> None:
        self.pool, self.image, self.now = pool, IMAGE, NOW
        self.hosts = {host.id: host for host in hosts}
        self.slots = slots
        self.rows: dict[str, Desktop] = {}
        self.vms: dict[str, dict[str, HostVm]] = {host.id: {} for host in hosts}
        self.disk_users: dict[str, set[str]] = {}
        self.let_in: dict[str, str] = {}
        """Whom a desktop's disk lets log on; without an entry everybody."""
        self.begun: list[tuple[str, HostAction]] = []
        self.deleted: list[Desktop] = []
        self.numbers = itertools.count(1)
        self.failures = 0

    def mac(self) -> str:
        return f"52:54:00:00:{next(self.numbers) % 65536:04x}"

    @property
    def images(self) -> dict[str, Image]:
        return {image.id: image for image in (IMAGE, NEW_IMAGE)}

    def step(self, seconds: float = 10.0) -> bool:
        """Look at each host, carry out what is in flight, plan; return whether anything changed."""
        self.now += seconds
        before = {row.id: replace(row, report=without_time(row.report)) for row in self.rows.values()}
        self.hosts = {key: replace(host, seen_at=self.now) for key, host in self.hosts.items()}
        carried, self.begun = self.begun, []
        for host_id, vms in self.vms.items():  # a guest needs a step to boot
            self.vms[host_id] = {id: self.later(vm) for id, vm in vms.items()}
        for host_id, action in carried:
            self.carry_out(host_id, action)
        for host in self.hosts.values():
            self.report_of(host)
        self.tick()
        self.place()
        after = {row.id: replace(row, report=without_time(row.report)) for row in self.rows.values()}
        return before != after or bool(carried) or bool(self.begun)

    @staticmethod
    def later(vm: HostVm) -> HostVm:
        """Return a VM after a step: its guest answers, or has set itself up and shut down.

        Who is logged on was seen a step earlier: what nobody looks at in time cannot be known.
        """
        if vm.state == "running" and vm.is_preparing and vm.guest_answers and not vm.guest_users:
            return replace(vm, state="stopped", stop_reason="shutdown", guest_users=None, guest_answers=False)
        return replace(vm, guest_answers=vm.state == "running")

    def report_of(self, host: FleetHost) -> None:
        rows = [row for row in self.rows.values() if row.host_id == host.id]
        pools = {self.pool.id: self.pool}
        plan = plan_host(host, rows, [*self.vms[host.id].values()], pools, self.images, self.now, DATABASE, (), 8)
        for id, report in plan.reports.items():
            row = replace(self.rows[id], report=report)
            seen = (report.generation, report.user, report.dirty)
            confirmed = report.exists and seen == (row.generation, row.user, True) and not report.logon_due
            kept = row.handed_out and not report.logon_due
            self.rows[id] = replace(row, handed_out=row.user is not None and (kept or confirmed))
            if row.absent and not report.exists:
                del self.rows[id]
        for id in plan.powered_off:
            self.rows[id] = replace(self.rows[id], power_on=False)
        self.begun += [(host.id, action) for action in plan.actions]

    def carry_out(self, host_id: str, action: HostAction) -> None:
        vms, id = self.vms[host_id], action.desktop.id
        row = self.rows.get(id)
        vm = vms.get(id)
        refuses = isinstance(action, PrepareVm) and vm is not None and not vm.is_set_up  # the host was booted meanwhile
        if self.failures > 0 or refuses:
            self.failures = max(0, self.failures - 1)
            if row is not None:
                errors = row.errors + 1
                report = replace(row.report or DesktopReport(False), code="failed", error="it failed")
                self.rows[id] = replace(row, errors=errors, not_before=next_try(errors, self.now), report=report)
            return
        if isinstance(action, MakeVm):
            assert vm is None, "the desktop has its VM"
            state = "running" if action.desktop.power_on else "stopped"
            path = self.images[action.desktop.image_id].path
            made = HostVm(action.vm_name, id, state, 1, action.mark, path, self.users_when(state))
            vms[id] = replace(made, off_after_setup=self.pool.spec.prepared)
            self.disk_users[id] = set()
            self.let_in.pop(id, None)
        elif isinstance(action, AllowLogon):
            if vm is None or vm.state != "running":
                return
            self.let_in[id] = action.let_in
            self.note_let_in(id, action.let_in)
        elif vm is not None and vm.generation == action.if_generation:
            self.change(host_id, vm, action)
        if row is not None and id in self.rows:
            self.rows[id] = replace(self.rows[id], errors=0, not_before=0.0)

    def change(self, host_id: str, vm: HostVm, action: HostAction) -> None:
        vms, id = self.vms[host_id], vm.uuid
        assert vm.mark is not None
        assert action.mark.generation >= vm.mark.generation, "a mark never goes back"
        if action.mark.generation == vm.mark.generation and vm.mark.user not in (None, action.mark.user):
            assert isinstance(action, RefreshVm), "a host would refuse it"
            assert action.mark.user is None, "a host would refuse it"
        if isinstance(action, DeleteVm):
            self.deleted.append(action.desktop)
            del vms[id], self.disk_users[id]
            return
        state = "running" if isinstance(action, StartVm) else "stopped" if isinstance(action, StopVm) else vm.state
        changed = replace(vm, generation=(vm.generation or 0) + 1, mark=action.mark)
        if not isinstance(action, MarkVm):
            changed = replace(changed, guest_answers=False)
        if isinstance(action, StopVm):
            assert action.at_once or not vm.is_preparing, "a guest that is asked to shut down would count as set up"
            changed = replace(changed, stop_reason="destroyed" if action.at_once else "shutdown")
        if isinstance(action, PrepareVm):
            assert not self.disk_users[id], "what somebody left is not kept for others"
            changed = replace(changed, prepared=True)
        if isinstance(action, RefreshVm):
            assert action.from_image or vm.prepared, vm
            path = self.images[action.desktop.image_id].path if action.from_image else vm.image
            changed = replace(changed, image=path, guest_users=(), prepared=not action.from_image)
            self.disk_users[id] = set()
            self.let_in.pop(id, None)
            self.note_let_in(id, None)
        if isinstance(action, PrepareVm | RefreshVm):
            state = "running" if action.desktop.power_on else "stopped"
            changed = replace(changed, stop_reason=None if isinstance(action, RefreshVm) else vm.stop_reason)
        if not isinstance(action, MarkVm):
            changed = replace(changed, state=state, guest_users=self.users_when(state))
        vms[id] = changed

    def note_let_in(self, id: str, let_in: str | None) -> None:
        row = self.rows.get(id)
        if row is not None and row.report is not None:
            self.rows[id] = replace(row, report=replace(row.report, let_in=let_in))

    @staticmethod
    def users_when(state: str) -> tuple[str, ...] | None:
        return () if state == "running" else None

    def tick(self) -> PoolChanges:
        changes = plan_pool(self.pool, [*self.rows.values()], self.image, self.now, self.mac, self.hosts)
        for id in changes.release:
            self.release(id)
        for id in changes.retire:
            self.rows[id] = replace(self.rows[id], absent=True)
        for id in changes.move_image:
            self.rows[id] = replace(self.rows[id], image_id=self.image.id)
        for new in changes.create:
            id = f"id-{next(self.numbers)}"
            self.rows[id] = Desktop(id, self.pool.id, new.name, new.mac, self.image.id, created_at=self.now)
        if changes.pause is not None:
            self.pool = replace(self.pool, state=PoolState.PAUSED, reason=changes.pause)
        return changes

    def place(self) -> None:
        for row in [row for row in self.rows.values() if row.host_id is None]:
            if row.absent:
                del self.rows[row.id]
                continue
            placed = {id: sum(r.host_id == id for r in self.rows.values()) for id in self.hosts}
            rooms = {id: room_of(counted_gpu(A16_2B=(self.slots - placed[id], self.slots))) for id in self.hosts}
            choice = choose_host(row, self.pool, [*self.hosts.values()], FleetRoom(rooms), {}, placed, self.now)
            if choice.host is not None:
                self.rows[row.id] = replace(row, host_id=choice.host.id, profile=choice.profile)

    def assign(self, user: str) -> Desktop | None:
        for row in self.rows.values():
            host = self.hosts.get(row.host_id or "")
            if is_assignable(row, self.pool, host, self.now) and not row.absent:
                self.rows[row.id] = replace(
                    row, user=user, generation=row.generation + 1, handed_out=False, assigned_at=self.now
                )
                return self.rows[row.id]
        return None

    def release(self, id: str) -> None:
        row = self.rows[id]
        if row.user is not None:
            changes = {"user": None, "generation": row.generation + 1, "handed_out": False, "lease_until": None}
            self.rows[id] = replace(row, **changes, power_on=True)

    def log_on(self, id: str) -> None:
        """The desktop's user logs on, as soon as he was given its address."""
        row = self.rows[id]
        vm = self.vms.get(row.host_id or "", {}).get(id)
        if row.user is None or not row.handed_out or vm is None or vm.state != "running":
            return
        others = self.disk_users[id] - {row.user}
        if others:
            raise TwoUsers(f"{row.user} after {others}")
        logon, let_in = self.pool.spec.logon, self.let_in.get(id)
        if let_in != (None if logon is None else f"{logon}:{row.user}"):
            raise NotLetIn(f"{row.user} was given a desktop that lets in {let_in or 'everybody'}")
        self.disk_users[id].add(row.user)
        self.vms[row.host_id or ""][id] = replace(vm, guest_users=(row.user,))

    def log_off(self, id: str) -> None:
        row = self.rows[id]
        vm = self.vms.get(row.host_id or "", {}).get(id)
        if vm is not None and vm.guest_users:
            self.vms[row.host_id or ""][id] = replace(vm, guest_users=())

    def log_on_stray(self, id: str) -> None:
        """Somebody logs on to a desktop that is nobody's."""
        row = self.rows[id]
        vm = self.vms.get(row.host_id or "", {}).get(id)
        if self.let_in.get(id) is not None:
            return  # its guest refuses him
        if row.user is None and vm is not None and vm.state == "running" and vm.mark is not None and not vm.mark.user:
            self.disk_users[id].add("stray")
            self.vms[row.host_id or ""][id] = replace(vm, guest_users=("stray",))
            self.step()  # what nobody looks at in time cannot be known

    def log_off_stray(self, id: str) -> None:
        row = self.rows[id]
        vm = self.vms.get(row.host_id or "", {}).get(id)
        if vm is not None and vm.guest_users == ("stray",):
            self.log_off(id)

    def switch_off(self, id: str) -> None:
        row = self.rows[id]
        vm = self.vms.get(row.host_id or "", {}).get(id)
        if vm is not None and vm.state == "running":
            reason = "destroyed" if vm.is_preparing else "shutdown"
            self.vms[row.host_id or ""][id] = replace(vm, state="stopped", guest_users=None, stop_reason=reason)

    def open(self, id: str) -> None:
        if self.rows[id].user is not None:
            self.rows[id] = replace(self.rows[id], power_on=True)

    def delete(self, id: str) -> None:
        if self.rows[id].user is None:
            self.rows[id] = replace(self.rows[id], absent=True)

    def reboot(self, host: str) -> None:
        self.hosts[host] = replace(self.hosts[host], boot_id=f"boot-{self.now}")
        vms = self.vms[host]
        off = {"state": "stopped", "guest_users": None, "stop_reason": None}
        self.vms[host] = {id: replace(vm, **off) for id, vm in vms.items()}

    def lose(self, id: str) -> None:
        if self.vms.get(self.rows[id].host_id or "", {}).pop(id, None) is not None:
            self.disk_users.pop(id, None)

    def settle(self, steps: int = 200) -> None:
        """Step until nothing changes any more."""
        quiet = 0
        for _ in range(steps):
            quiet = 0 if self.step() else quiet + 1
            if quiet == 5:
                return
        raise AssertionError(f"after {steps} steps it still changes: {self.begun} {self.rows}")
