# SPDX-License-Identifier: Apache-2.0
"""Fifty hosts with eight GPUs each and a thousand desktops, on both databases; the hosts are thin (`thin_host`)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import event

from tests.controller.conftest import add_host, add_image, add_pool, wait_until
from tests.controller.thin_host import ThinHosts
from vgpuctl.controller.database.store import Store
from vgpuctl.controller.engine import Engine
from vgpuctl.controller.fleet import FleetService
from vgpuctl.controller.model import FleetCaller, Role
from vgpuctl.errors import NoCapacity

HOSTS, POOLS, DESKTOPS = 50, 10, 100
STARTS = 3
NEXT = "/srv/images/next.qcow2"
ADMIN = FleetCaller("test", Role.ADMIN)


@contextmanager
def working(store: Store, hosts: ThinHosts) -> Iterator[Engine]:
    engine = Engine(store, hosts.link)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


def fleet(store: Store, directory: Path, count: int = HOSTS, **more: int) -> ThinHosts:
    """Return hosts that the database knows."""
    hosts = ThinHosts(directory / "hosts", **more)
    for number in range(1, count + 1):
        add_host(store, hosts.add(f"gpu{number:02}").name)
    return hosts


def ready(store: Store, path: str | None = None) -> int:
    """Return how many desktops are ready, from the image at this path."""
    reports = [one.report for one in store.desktops.list() if not one.absent]
    return sum(r is not None and r.ready and path in (None, r.image) for r in reports)


def make_pools(store: Store, **more: object) -> None:
    for number in range(POOLS):
        add_pool(
            store,
            f"p{number}",
            **{"names": f"p{number}-{{:03}}", "maximum": DESKTOPS, "spare": DESKTOPS, "starts_per_host": STARTS},
            **{"ready_when": "guest", "placement": "spread"},
            **more,
        )


def test_a_thousand_desktops_are_filled_used_refreshed_and_rolled_out(store: Store, tmp_path: Path) -> None:
    hosts = fleet(store, tmp_path, lists_until_ready=2)
    add_image(store)
    make_pools(store)
    service = FleetService(store, hosts.link)
    with working(store, hosts):
        wait_until(lambda: ready(store) == POOLS * DESKTOPS, "a thousand desktops", 180)
        placed = Counter(vm.desktop.pool for host in hosts.hosts.values() for vm in host.vms.values())
        assert placed == {f"p{number}": DESKTOPS for number in range(POOLS)}
        for number in range(20):
            service.assign(ADMIN, "p0", f"user{number}")
        wait_until(lambda: sum(one.handed_out for one in store.desktops.list()) == 20, "the assignments")
        used = [one for one in store.desktops.list() if one.user is not None]
        for desktop in used:
            service.release(ADMIN, desktop.name)
        wait_until(lambda: ready(store) == POOLS * DESKTOPS and not dirty(hosts), "the refreshes", 120)
        add_image(store, "next", NEXT)
        make_pools(store, image="next", max_unavailable=DESKTOPS // 4)
        wait_until(lambda: ready(store, NEXT) == POOLS * DESKTOPS, "the roll-out", 240)
    for host in hosts.hosts.values():
        assert all(count <= STARTS for count in host.starting_at_once.values()), host.starting_at_once


def dirty(hosts: ThinHosts) -> list[str]:
    return [vm.name for host in hosts.hosts.values() for vm in host.vms.values() if vm.desktop.dirty]


def test_two_hundred_users_with_two_tabs_get_one_desktop_each(store: Store, tmp_path: Path) -> None:
    hosts = fleet(store, tmp_path, 4)
    add_image(store)
    add_pool(store, maximum=120, spare=120, names="office-{:03}", starts_per_host=50)
    with working(store, hosts):
        wait_until(lambda: ready(store) == 120, "the desktops", 120)
    service = FleetService(store, hosts.link)
    got: list[tuple[str, str | None]] = []
    gate = threading.Barrier(16)
    requests = iter([f"user{number}" for number in range(200) for _ in range(2)])
    taking = threading.Lock()

    def tabs() -> None:
        gate.wait()
        while True:
            with taking:
                user = next(requests, None)
            if user is None:
                return
            try:
                name = service.assign(ADMIN, "office", user).data.name
            except NoCapacity:
                name = None
            with taking:
                got.append((user, name))

    threads = [threading.Thread(target=tabs) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 400
    desktops_of: dict[str, set[str]] = {}
    for user, name in got:
        if name is not None:
            desktops_of.setdefault(user, set()).add(name)
    assert len(desktops_of) == 120, "each desktop was given out"
    assert {len(names) for names in desktops_of.values()} == {1}, "both tabs of a user show the same one"
    assert len({name for names in desktops_of.values() for name in names}) == 120, "and nobody else has it"
    refused = Counter(user for user, name in got if name is None)
    assert not [user for user in refused if user in desktops_of], "nobody was told that none is free, and had one"
    assert set(refused.values()) == {2}


@pytest.fixture
def written(store: Store) -> Callable[[], list[str]]:
    """Return a function that returns what was written since it was called last, without the hosts' leases."""
    statements: list[str] = []

    def note(_: object, __: object, statement: str, *___: object) -> None:
        if statement.split(None, 1)[0] in ("INSERT", "UPDATE", "DELETE") and "host_lease" not in statement:
            statements.append(statement)

    event.listen(store.database.engine, "before_cursor_execute", note)

    def take() -> list[str]:
        result = list(statements)
        statements.clear()
        return result

    return take


def test_hosts_without_a_change_cost_no_write(store: Store, tmp_path: Path, written: Callable[[], list[str]]) -> None:
    hosts = fleet(store, tmp_path, 3)
    add_image(store)
    add_pool(store, maximum=6, spare=6)
    with working(store, hosts) as engine:
        wait_until(lambda: ready(store) == 6, "the desktops")
        wait_until(lambda: quiet(engine, hosts, written), "turns of all hosts without a write")


def quiet(engine: Engine, hosts: ThinHosts, written: Callable[[], list[str]]) -> bool:
    """Have each host take two turns, and return whether nothing was written meanwhile."""
    written()
    for _ in range(2):
        before = times_listed(hosts)
        engine.wake_hosts()
        wait_until(partial(each_looked, hosts, before), "a turn of each host")
    return not written()


def times_listed(hosts: ThinHosts) -> list[int]:
    return [host.calls["list_vms"] for host in hosts.hosts.values()]


def each_looked(hosts: ThinHosts, before: list[int]) -> bool:
    return all(now > then for now, then in zip(times_listed(hosts), before, strict=True))
