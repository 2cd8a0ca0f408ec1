# SPDX-License-Identifier: Apache-2.0
"""Two controllers on one store do anything in any order, and a host does late what one of them asked long ago.

Whatever happens: nobody is let into a disk that somebody else was in, no user has more desktops than his pool allows,
no pool more than its maximum, no host more than it offered, and a host has one controller.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests import examples
from tests.controller.conftest import add_host, add_image, add_pool, opened
from tests.rooms import room_of
from vgpuctl.controller.database import schema
from vgpuctl.controller.database.store import Store, upgrade
from vgpuctl.controller.model import Desktop, HostLease, Pool, PoolChanges
from vgpuctl.controller.planning.fleet_room import demand_of, room_of_fleet
from vgpuctl.controller.planning.host_choice import choose_host
from vgpuctl.controller.planning.host_look import HostVm
from vgpuctl.controller.planning.host_plan import DeleteVm, HostAction, MakeVm, MarkVm, RefreshVm, StopVm, plan_host
from vgpuctl.controller.planning.phase import SILENT_SECONDS
from vgpuctl.controller.planning.pool_plan import plan_pool
from vgpuctl.errors import NoCapacity
from vgpuctl.gpu.equal_size import EqualSizeKind
from vgpuctl.value import replace

MAXIMUM, SPARE, CAPACITY, PROFILE = 4, 2, 3, "A100-4C"
KIND = EqualSizeKind("A100", 40960, {PROFILE: 4096}, {PROFILE: CAPACITY})
USERS = ("ada", "bob", "eve")
which = st.integers(0, MAXIMUM - 1)
controllers = st.integers(0, 1)
places = st.integers(0, 1)


class ModelHost:
    """A host: its VMs, who was in each one's disk since it was made, and whom it obeys."""

    def __init__(self) -> None:
        self.vms: dict[str, HostVm] = {}
        self.disk_users: dict[str, set[str]] = {}
        self.obeys: tuple[int, str] = (0, "")
        self.is_silent = False

    def refuses(self, lease: HostLease) -> bool:
        """Return whether a call of a lease comes too late."""
        return lease.epoch < self.obeys[0] or (lease.epoch == self.obeys[0] and lease.holder != self.obeys[1])

    def carry_out(self, action: HostAction, path: str) -> bool:
        """Do what was asked, if it still is about the VM that it was asked about; False: there is no room."""
        id, vm = action.desktop.id, self.vms.get(action.desktop.id)
        state = "running" if action.desktop.power_on else "stopped"
        if isinstance(action, MakeVm) and vm is None:
            if len(self.vms) == CAPACITY:
                return False
            self.vms[id] = HostVm(action.vm_name, id, state, 1, action.mark, path, ())
            self.disk_users[id] = set()
        if vm is None or isinstance(action, MakeVm) or vm.generation != action.if_generation:
            return True
        assert vm.mark is not None
        assert action.mark.generation >= vm.mark.generation, "a mark never goes back"
        changed = replace(vm, generation=(vm.generation or 0) + 1, mark=action.mark)
        if isinstance(action, DeleteVm):
            del self.vms[id], self.disk_users[id]
            return True
        if isinstance(action, RefreshVm):
            self.disk_users[id] = set()
            changed = replace(changed, image=path)
        if not isinstance(action, MarkVm):
            changed = replace(changed, state="stopped" if isinstance(action, StopVm) else state, guest_users=())
        self.vms[id] = changed
        return True


class StoreMachine(RuleBasedStateMachine):
    """Anything in any order, on one of two stores."""

    def __init__(self, stores: tuple[Store, Store]) -> None:
        super().__init__()
        self.stores = stores
        self.macs = itertools.count(1)
        self.pending: list[tuple[int, HostLease, HostAction]] = []
        self.saved: dict[str, dict[str, Any]] = {}
        self.unlooked: set[str] = set()
        """Restored rows whose host was not looked at since: nobody is told their addresses before `confirm-restore`."""
        self.was_restored = False
        self.is_quicker = False
        """Whether another controller places each desktop just before."""

    @initialize()
    def begin(self) -> None:
        store = self.stores[0]
        with store.database.write() as connection:
            for table in reversed(schema.metadata.sorted_tables):
                if table not in (schema.meta, schema.event):  # nobody deletes from the journal
                    connection.execute(table.delete())
        self.image = add_image(store)
        self.pool_id = add_pool(store, maximum=MAXIMUM, spare=SPARE, profile=PROFILE).id
        self.ids = [add_host(store, name).id for name in ("gpu01", "gpu02")]
        self.hosts = [ModelHost(), ModelHost()]
        self.work(0)

    def row(self, number: int) -> Desktop | None:
        rows = self.stores[0].desktops.list()
        return rows[number % len(rows)] if rows else None

    def vm_of(self, row: Desktop) -> tuple[ModelHost, HostVm] | None:
        """Return a row's host and VM there."""
        host = None if row.host_id is None else self.hosts[self.ids.index(row.host_id)]
        return None if host is None or row.id not in host.vms else (host, host.vms[row.id])

    @rule(one=controllers)
    def tick(self, one: int) -> None:
        hosts = {host.id: host for host in self.stores[one].hosts.list()}

        def plan(pool: Pool, desktops: tuple[Desktop, ...], now: float) -> PoolChanges:
            return plan_pool(pool, desktops, self.image, now, lambda: f"52:54:00:00:00:{next(self.macs):02x}", hosts)

        self.stores[one].desktops.tick(self.pool_id, plan)

    @rule(one=controllers)
    def place(self, one: int) -> None:
        store = self.stores[one]
        pool, hosts = store.pools.find("office"), store.hosts.list()
        reported, on_their_way = store.rooms.list()
        room = room_of_fleet(reported, on_their_way, {pool.id: pool})
        versions = {host_id: one.version for host_id, one in reported.items()}
        for row in store.desktops.unplaced():
            choice = choose_host(row, pool, hosts, room, {}, {}, store.now())
            if choice.host is None:
                continue
            host_id = choice.host.id
            assert room.take(host_id, demand_of(pool.spec, row.name, choice.profile)) == PROFILE
            other = self.stores[1 - one]
            if self.is_quicker:  # another one counts the same room, and places first
                other.desktops.place(row.id, host_id, PROFILE, other.rooms.list()[0][host_id].version)
            if store.desktops.place(row.id, host_id, choice.profile, versions[host_id]):
                assert not self.is_quicker
                versions[host_id] += 1

    @rule()
    def race(self) -> None:
        """From now on, or no more, another controller is quicker."""
        self.is_quicker = not self.is_quicker

    @rule(one=controllers, place=places)
    def report_host(self, one: int, place: int) -> None:
        store, model, host_id = self.stores[one], self.hosts[place], self.ids[place]
        before = store.hosts.leases().get(host_id)
        lease = store.hosts.take_lease(host_id, store.holder, 300.0)
        if before is not None and before.expires_at > store.now() and before.holder != store.holder:
            assert lease is None, "a host has one controller"
        if lease is None or model.is_silent:
            return
        assert not model.refuses(lease), "who has the lease is obeyed"
        model.obeys = (lease.epoch, lease.holder)
        host, rows = store.hosts.find_id(host_id), store.desktops.of_host(host_id)
        assert host is not None
        flying = [a.desktop.id for at, holder, a in self.pending if at == place and holder.holder == store.holder]
        pools, images = {self.pool_id: store.pools.find("office")}, {self.image.id: self.image}
        vms = list(model.vms.values())
        plan = plan_host(host, rows, vms, pools, images, store.now(), store.incarnation, flying, 4)
        taken = ((KIND.sizes[PROFILE], len(vms)) if vms else KIND.empty,)
        store.rooms.set(host_id, room_of(*((KIND, state) for state in taken)))
        assert store.desktops.report(host_id, store.holder, lease.epoch, plan.reports, rows)
        for row in store.desktops.of_host(host_id):
            if row.handed_out and row.id in model.vms:
                mark = model.vms[row.id].mark
                assert mark is not None
                assert (mark.user, mark.generation) == (row.user, row.generation), "its host has confirmed it"
        store.hosts.note_seen(host, None, store.now())
        store.hosts.store_seen()
        for desktop_id in plan.powered_off:
            store.desktops.note_off(desktop_id)
        self.pending += [(place, lease, action) for action in plan.actions]
        self.unlooked -= {row.id for row in rows}

    @rule(one=controllers)
    def work(self, one: int) -> None:
        """Let both controllers do what they can: else the deep states are rare."""
        for _ in range(2):
            for store in (one, 1 - one):
                self.tick(store)
                self.place(store)
                for place in (0, 1):
                    self.report_host(store, place)
                while self.pending:
                    self.carry_out(0)

    @rule(one=controllers, user=st.sampled_from(USERS))
    def work_for(self, one: int, user: str) -> None:
        """Have a user get a desktop and log on."""
        self.assign(one, user)
        self.work(one)
        self.log_on()

    @precondition(lambda self: self.pending)
    @rule(number=st.integers(0, 7))
    def carry_out(self, number: int) -> None:
        """Have a host do one of the things that it was asked, maybe after its controller has lost it."""
        place, lease, action = self.pending.pop(number % len(self.pending))
        store = next(one for one in self.stores if one.holder == lease.holder)
        if self.hosts[place].refuses(lease):
            return
        if self.hosts[place].carry_out(action, self.image.path):
            store.desktops.note_success(action.desktop.id)
        else:
            store.rooms.refuse(self.ids[place], PROFILE, "no room")
            store.desktops.unplace(action.desktop.id)

    @rule(one=controllers, user=st.sampled_from(USERS))
    def assign(self, one: int, user: str) -> None:
        try:
            desktop, is_new = self.stores[one].desktops.assign("office", user, "test")
        except NoCapacity:
            return
        assert desktop.user == user
        assert not (is_new and desktop.handed_out), "its host has not confirmed it"
        vm_and_host = self.vm_of(desktop)
        if is_new and not self.was_restored:
            assert vm_and_host is not None
            assert vm_and_host[0].disk_users[desktop.id] == set(), "a dirty desktop is nobody's"

    @rule(one=controllers, number=which)
    def release(self, one: int, number: int) -> None:
        used = [row.name for row in self.stores[0].desktops.list() if row.user is not None]
        if used:
            assert self.stores[one].desktops.release(used[number % len(used)], "test")[0].user is None

    @rule()
    def log_on(self) -> None:
        """Have everybody log on who was told an address."""
        for row in self.stores[0].desktops.list():
            vm_and_host = self.vm_of(row)
            if row.user is None or not row.handed_out or row.id in self.unlooked or vm_and_host is None:
                continue
            host, vm = vm_and_host
            if vm.state == "running":
                assert host.disk_users[row.id] <= {row.user}, f"{row.user} after {host.disk_users[row.id]}"
                host.disk_users[row.id].add(row.user)
                host.vms[row.id] = replace(vm, guest_users=(row.user,))

    @rule(number=which)
    def log_off(self, number: int) -> None:
        row = self.row(number)
        vm_and_host = None if row is None else self.vm_of(row)
        if row is not None and vm_and_host is not None and vm_and_host[1].guest_users:
            vm_and_host[0].vms[row.id] = replace(vm_and_host[1], guest_users=())

    @rule(number=which)
    def stop_by_itself(self, number: int) -> None:
        row = self.row(number)
        vm_and_host = None if row is None else self.vm_of(row)
        if row is not None and vm_and_host is not None:
            vm_and_host[0].vms[row.id] = replace(vm_and_host[1], state="stopped", guest_users=None)

    @rule(one=controllers, number=which)
    def delete(self, one: int, number: int) -> None:
        row = self.row(number)
        if row is not None and row.user is None:
            self.stores[one].desktops.delete(row.name, "test")

    @rule(place=places)
    def lose_lease(self, place: int) -> None:
        with self.stores[0].database.write() as connection:
            lease = schema.host_lease
            connection.execute(lease.update().where(lease.c.host_id == self.ids[place]).values(expires_at=0.0))

    @rule(place=places)
    def go_silent(self, place: int) -> None:
        self.hosts[place].is_silent = True
        with self.stores[0].database.write() as connection:
            seen_at = self.stores[0].database.now(connection) - SILENT_SECONDS - 1
            host = schema.host
            connection.execute(host.update().where(host.c.id == self.ids[place]).values(seen_at=seen_at))

    @rule(place=places)
    def answer_again(self, place: int) -> None:
        self.hosts[place].is_silent = False

    @rule(number=which)
    def save(self, number: int) -> None:
        row = self.row(number)
        if row is not None:
            with self.stores[0].database.read() as connection:
                vm_and_host = (
                    connection.execute(schema.desktop.select().where(schema.desktop.c.id == row.id)).mappings().one()
                )
                self.saved[row.id] = dict(vm_and_host)

    @rule(number=which)
    def restore(self, number: int) -> None:
        """Bring an earlier state of a row back, as a restored database has it."""
        row = self.row(number)
        if row is not None and row.id in self.saved:
            self.unlooked.add(row.id)
            self.was_restored = True
            with self.stores[0].database.write() as connection:
                table = schema.desktop
                connection.execute(table.update().where(table.c.id == row.id).values(**self.saved[row.id]))

    @invariant()
    def numbers_hold(self) -> None:
        rows = self.stores[1].desktops.list()
        assert len(rows) <= MAXIMUM, "no more than the pool's maximum"
        if not self.was_restored:
            for host_id, host in zip(self.ids, self.hosts, strict=True):
                coming = {row.id for row in rows if row.host_id == host_id and row.report is None}
                assert len(coming | host.vms.keys()) <= CAPACITY, "no more is placed than a host has room for"
        assert all(len(host.vms) <= CAPACITY for host in self.hosts)
        counts = Counter(
            row.user
            for row in rows
            if row.user is not None and not row.absent and (row.report is None or not row.report.superseded)
        )
        if not self.was_restored:
            assert all(count <= 1 for count in counts.values()), "per_user is 1"


def test_whatever_controllers_and_hosts_do(url: str) -> None:
    upgrade(url)
    with opened(url) as first, opened(url) as second:
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            lambda: StoreMachine((first, second)),
            settings=settings(max_examples=examples(50), stateful_step_count=30, deadline=None),
        )
