# SPDX-License-Identifier: Apache-2.0
"""Several controllers on one PostgreSQL share the hosts: shares become equal, also after one died or was paused.

Each controller is an engine with a store of its own; all have the same thin hosts, whose fences are real. Leases go by
PostgreSQL's time; that 30 seconds are over is written into the database. The controllers' own timers are ten times as
fast.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, select, update

from tests.controller.conftest import add_host, add_image, add_pool, opened, wait_until
from tests.controller.thin_host import ThinHosts
from vgpuctl.agent.fleet_fence import FleetFence
from vgpuctl.agent.protocol import Fenced
from vgpuctl.controller.clock import SteppedClock
from vgpuctl.controller.database import schema
from vgpuctl.controller.database.engine import DatabaseUnreachable
from vgpuctl.controller.database.store import Store, open_store, upgrade
from vgpuctl.controller.engine import Engine
from vgpuctl.controller.fleet import FleetService
from vgpuctl.controller.hosts.link import HostLink
from vgpuctl.controller.model import FleetCaller, FleetHost, Role
from vgpuctl.errors import Unreachable
from vgpuctl.model.desktop import Fence
from vgpuctl.model.image_copy import CopyState

HOSTS, DESKTOPS = 12, 12
FASTER = 10.0


class Timers(SteppedClock):
    """The controllers' own timers. `speed`: seconds in a second."""

    speed = FASTER


class WatchedFence(FleetFence):
    """A host's fence, and whom it obeyed: epoch and holder of each announcement and change that it took."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, lambda: 0.0, lambda: False)
        self.obeyed: list[tuple[int, str]] = []
        self.refused = 0

    def announce(self, fence: Fence, *, adopt: bool, is_root: bool) -> None:
        super().announce(fence, adopt=adopt, is_root=is_root)
        self.obeyed.append((fence.epoch, fence.holder))

    def check(self, fence: Fence) -> bool:
        try:
            result = super().check(fence)
        except Fenced:
            self.refused += 1
            raise
        self.obeyed.append((fence.epoch, fence.holder))
        return result


class Peer:
    """A controller. While it is paused, each of its transactions waits before its first statement."""

    def __init__(self, url: str, hosts: ThinHosts, clock: SteppedClock) -> None:
        self.store = open_store(url, clock=clock)
        self.gate, self.is_dead, self.reaches = threading.Event(), False, True
        self.gate.set()
        self.engine = Engine(self.store, lambda host: self.link(hosts, host))
        event.listen(self.store.database.engine, "begin", self._wait)
        self.engine.start()

    def link(self, hosts: ThinHosts, host: FleetHost) -> HostLink:
        if not self.reaches:
            raise Unreachable(f"{host.name}: Permission denied (publickey)", hint="-")
        link: HostLink = hosts.link(host)
        return link

    def _wait(self, _: object) -> None:
        self.gate.wait()
        if self.is_dead:
            raise DatabaseUnreachable("this controller is dead")

    @property
    def holder(self) -> str:
        return self.store.holder

    def die(self) -> None:
        """End it without giving anything back."""
        self.gate.clear()
        self.is_dead = True
        for work in (self.engine._stopping, *(runner._stopping for runner in self.engine._runners.values())):
            work.set()

    def close(self) -> None:
        self.gate.set()
        if not self.is_dead:
            self.engine.stop()
        self.store.close()


class Site:
    """A fleet with several controllers; `store` is of nobody."""

    def __init__(self, url: str, directory: Path, clock: Timers, store: Store) -> None:
        self.url, self.clock, self.store = url, clock, store
        self.hosts = ThinHosts(directory / "hosts")
        self.fences: dict[str, WatchedFence] = {}
        self.peers: list[Peer] = []
        for number in range(1, HOSTS + 1):
            self.add_host(f"gpu{number:02}")

    def add_host(self, name: str) -> None:
        host = self.hosts.add(name)
        (self.hosts._directory / name / "fence").mkdir()
        host.fence = self.fences[name] = WatchedFence(self.hosts._directory / name / "fence")
        add_host(self.store, name)

    def start(self) -> Peer:
        peer = Peer(self.url, self.hosts, self.clock)
        self.peers.append(peer)
        return peer

    def held(self) -> dict[str, int]:
        """Return how many hosts each controller has, by its name."""
        return dict(Counter(self.store.hosts.holders().values()))

    def serves(self, *counts: int) -> bool:
        """Return whether the living controllers have so many hosts each, in any order, and all of them obey."""
        living = [peer.holder for peer in self.peers if not peer.is_dead and peer.gate.is_set()]
        held = self.held()
        if sorted(held.get(one, 0) for one in living) != sorted(counts) or sum(held.values()) != sum(counts):
            return False
        leases = self.store.hosts.leases()
        by_name = {host.name: leases[host.id] for host in self.store.hosts.list()}
        return all(
            fence.obeyed[-1:] == [(by_name[name].epoch, by_name[name].holder)] for name, fence in self.fences.items()
        )

    def let_pass(self, peer: Peer, seconds: float = 30.0) -> None:
        """Have so much time go by for what a controller wrote last."""
        with self.store.database.write() as connection:
            for table in (schema.host_lease, schema.controller):
                own = update(table).where(table.c.holder == peer.holder)
                connection.execute(own.values(expires_at=table.c.expires_at - seconds))

    def slow_down(self) -> None:
        """Have the next look that only comes because time goes by be minutes away."""
        self.clock.speed = 0.2

    def check(self) -> None:
        """Check that no host was ever in two hands."""
        for name, fence in self.fences.items():
            epochs = [epoch for epoch, _ in fence.obeyed]
            assert epochs == sorted(epochs), f"{name} obeyed a former holder"
            assert len(dict(fence.obeyed)) == len(set(fence.obeyed)), f"{name} had two holders in one epoch"


@pytest.fixture
def site(postgresql: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    name = f"share_{abs(hash(request.node.name))}"
    postgresql.run(f"CREATE DATABASE {name}")
    url = postgresql.url(name)
    upgrade(url)
    with opened(url) as store, ticking() as clock:
        one = Site(url, tmp_path, clock, store)
        try:
            yield one
            one.check()
        finally:
            for peer in one.peers:
                peer.close()


@contextmanager
def ticking() -> Iterator[Timers]:
    clock, stop = Timers(time.time()), threading.Event()

    def tick() -> None:
        while not stop.wait(0.02):
            clock.advance(0.02 * clock.speed)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        yield clock
    finally:
        stop.set()
        thread.join()


def ready(store: Store) -> int:
    return sum(one.report is not None and one.report.ready for one in store.desktops.list())


def has_image(store: Store) -> int:
    """Return how many hosts have an image."""
    return sum(row.state is CopyState.READY for row in store.host_images.list())


def test_shares_become_equal_and_a_dead_controllers_hosts_are_taken_over(site: Site) -> None:
    add_image(site.store)
    add_pool(site.store, names="office-{:03}", maximum=DESKTOPS, spare=DESKTOPS, placement="spread")
    site.start()
    wait_until(lambda: site.serves(12), "the first one has all")
    second = site.start()
    wait_until(lambda: site.serves(6, 6), "two share")
    site.start()
    wait_until(lambda: site.serves(4, 4, 4), "three share")
    wait_until(lambda: ready(site.store) == DESKTOPS, "the desktops")
    site.add_host("gpu99")
    wait_until(lambda: site.serves(5, 4, 4), "the new host has a controller")
    second.die()
    assert sum(site.held().values()) == 13, "its leases hold for 30 s"
    site.let_pass(second)
    wait_until(lambda: site.serves(7, 6), "its hosts are taken over")
    site.start()
    wait_until(lambda: site.serves(5, 5, 3), "it comes back")
    assert len(site.store.hosts.holders()) == 13


def test_a_paused_controller_is_fenced_and_gets_its_share_again(site: Site) -> None:
    first, second = site.start(), site.start()
    wait_until(lambda: site.serves(6, 6), "two share")
    second.gate.clear()
    epochs = {one.host_id: one.epoch for one in site.store.hosts.leases().values() if one.holder == second.holder}
    site.let_pass(second)
    wait_until(lambda: site.serves(12), "the other one has all")
    leases = site.store.hosts.leases()
    assert {leases[one].holder for one in epochs} == {first.holder}
    assert all(leases[one].epoch == epoch + 1 for one, epoch in epochs.items())
    for host in site.store.hosts.list():
        if host.id in epochs:
            late = Fence(second.store.incarnation, epochs[host.id], second.holder)
            with pytest.raises(Fenced):
                site.fences[host.name].check(late)
            with pytest.raises(Fenced):
                site.fences[host.name].announce(late, adopt=False, is_root=False)
    second.gate.set()
    wait_until(lambda: site.serves(6, 6), "two share again")


def test_a_dead_controllers_hosts_are_taken_above_the_share(site: Site) -> None:
    first, second = site.start(), site.start()
    wait_until(lambda: site.serves(6, 6), "two share")
    second.reaches = False
    for runner in second.engine._runners.values():
        runner._drop_link()
    with site.store.database.write() as connection:  # it lives, and has lost its hosts
        table = schema.host_lease
        own = update(table).where(table.c.holder == second.holder)
        connection.execute(own.values(expires_at=table.c.expires_at - 45))
    wait_until(lambda: site.held() == {first.holder: 12}, "who reaches them has them, above its share")
    assert second.engine.is_alive
    assert site.store.controllers.renew(first.holder, 30.0) == 2, "both live"
    problems = {host.problem for host in site.store.hosts.list()}
    assert problems <= {None} | {f"{host.name}: Permission denied (publickey)" for host in site.store.hosts.list()}


def test_a_controller_that_stops_gives_its_hosts_back_at_once(site: Site) -> None:
    first, second = site.start(), site.start()
    wait_until(lambda: site.serves(6, 6), "two share")
    second.engine.stop()
    site.peers.remove(second)
    second.store.close()
    wait_until(lambda: site.serves(12), "the other one has all")
    with site.store.database.read() as connection:
        assert connection.execute(select(schema.controller.c.holder)).scalars().all() == [first.holder]


def test_what_another_controller_changes_is_carried_out_at_once(site: Site) -> None:
    first, second = site.start(), site.start()
    wait_until(lambda: site.serves(6, 6) and len(site.store.rooms.list()[0]) == HOSTS, "two share")
    add_image(site.store)
    pool: dict[str, Any] = {"names": "office-{:03}", "maximum": DESKTOPS, "placement": "spread"}
    add_pool(site.store, **pool, spare=0)
    wait_until(lambda: has_image(site.store) == HOSTS, "its image: else hosts that have it sooner get all desktops")
    add_pool(site.store, **pool, spare=DESKTOPS)
    wait_until(lambda: ready(site.store) == DESKTOPS, "the desktops")
    site.slow_down()
    holders = site.store.hosts.holders()
    for number, asked in enumerate((first, second)):
        other = next(one for one in site.store.desktops.list() if holders[one.host_id or ""] != asked.holder)
        with asked.store.database.write() as connection:  # the only one that can be taken
            connection.execute(update(schema.desktop).values(can_take=schema.desktop.c.id == other.id))
        given, is_new = asked.store.desktops.assign("office", f"user{number}", "test")
        assert is_new
        assert given.id == other.id, "it is on a host of the other one"
        wait_until(lambda name=given.name: site.store.desktops.find(name).handed_out, "its host has confirmed it", 20)


def test_a_held_host_is_accepted_by_a_controller_that_does_not_have_it(site: Site) -> None:
    first, second = site.start(), site.start()
    wait_until(lambda: site.serves(6, 6), "two share")
    before = {host.id: site.store.hosts.leases()[host.id] for host in site.store.hosts.list()}
    theirs = next(host for host in site.store.hosts.list() if before[host.id].holder == second.holder)
    fence = site.fences[theirs.name]
    lease = before[theirs.id]
    fence.announce(Fence(site.store.incarnation, lease.epoch + 7, "a copy of it"), adopt=False, is_root=False)
    site.store.hosts.hold(theirs.id, "it obeys a copy of the database")
    FleetService(first.store, site.hosts.link).accept_host(FleetCaller("ada", Role.ADMIN), theirs.name)
    assert site.store.hosts.find(theirs.name).held is None
    assert fence.state is not None
    assert (fence.state.epoch, fence.state.holder) == (lease.epoch + 8, second.holder)
    after = site.store.hosts.leases()[theirs.id]
    assert (after.epoch, after.holder) == (lease.epoch + 8, second.holder)
    site.store.hosts.raise_epoch(theirs.id, after.epoch)
    wait_until(lambda: fence.state is not None and fence.state.epoch == after.epoch + 1, "its holder follows")
    assert site.store.hosts.raise_epoch("none", 1) is None
