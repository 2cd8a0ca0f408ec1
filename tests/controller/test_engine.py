# SPDX-License-Identifier: Apache-2.0
"""The controller at work with a real agent of a simulated host: what is wanted becomes what is, whatever happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.agent.conftest import RunningAgent
from tests.controller.conftest import add_image, add_pool, wait_until
from vgpuctl.agent.client import connect
from vgpuctl.agent.protocol import Fenced
from vgpuctl.controller.clock import SteppedClock
from vgpuctl.controller.database.store import Store, open_store, upgrade
from vgpuctl.controller.engine import Engine, connect_host
from vgpuctl.controller.fleet import FleetService
from vgpuctl.controller.hosts.link import HostLink, check_address
from vgpuctl.controller.model import Desktop, FleetCaller, Role
from vgpuctl.errors import InvalidInput, Unreachable
from vgpuctl.model.desktop import Fence, FleetRequest
from vgpuctl.model.results.vms import VmRowResult

ADMIN = FleetCaller("test", Role.ADMIN)


@contextmanager
def working(store: Store) -> Iterator[FleetService]:
    """Run an engine, and yield the controller's calls."""
    engine = Engine(store)
    engine.start()
    try:
        yield FleetService(store, connect_host)
    finally:
        engine.stop()


def with_pool(store: Store, agent: RunningAgent, **spec: object) -> FleetService:
    """Add the host, an image and a pool; return the controller's calls."""
    service = FleetService(store, connect_host)
    service.add_host(ADMIN, "gpu01", f"agent:{agent.path}")
    add_image(store)
    add_pool(store, **spec)
    return service


def ready(store: Store) -> list[Desktop]:
    desktops = store.desktops.list()
    return [one for one in desktops if one.report is not None and one.report.ready and not one.absent]


def phase(service: FleetService, name: str) -> str:
    return service.show_desktop(ADMIN, name).data.phase


def vms(agent: RunningAgent) -> dict[str, VmRowResult]:
    return {vm.name: vm for vm in connect(f"agent:{agent.path}").list_vms().data}


def starts(agent: RunningAgent, name: str) -> int:
    """Return how often the agent saw a VM start."""
    events = connect(f"agent:{agent.path}").read_events().data
    return sum(event.count for event in events if (event.vm, event.type) == (name, "vm-started"))


def crashes(store: Store) -> int:
    """Return how often the only desktop stopped by itself."""
    reports = [one.report for one in store.desktops.list()]
    return sum(len(report.crashes) for report in reports if report is not None)


def waiting(service: FleetService) -> list[str | None]:
    """Return why desktops have no host."""
    return [one.why for one in service.list_desktops(ADMIN).data if one.phase == "unplaced"]


def is_ready(store: Store, count: int) -> Callable[[], bool]:
    return lambda: len(ready(store)) == count


def test_a_pool_is_filled_used_refreshed_and_deleted(own_store: Store, agent: RunningAgent) -> None:
    store = own_store
    with_pool(store, agent, spare=1, maximum=2)
    with working(store) as service:
        wait_until(is_ready(store, 1), "a spare desktop")
        assert service.assign(ADMIN, "office", "ada").data.address is None, "its host has not confirmed it"
        wait_until(lambda: service.show_desktop(ADMIN, "office-001").data.address is not None, "its address")
        wait_until(is_ready(store, 2), "another spare")
        before = vms(agent)["office-001"]
        assert (before.desktop.user, before.desktop.dirty) == ("ada", True)
        assert before.uuid == store.desktops.find("office-001").id
        add_pool(store, spare=2, maximum=2)
        service.release(ADMIN, "office-001")
        wait_until(lambda: phase(service, "office-001") == "ready", "its refresh")
        after = vms(agent)["office-001"]
        assert (after.desktop.user, after.desktop.dirty, after.desktop.generation) == (None, False, 3)
        assert after.uuid == before.uuid
        service.delete_pool(ADMIN, "office")
        wait_until(lambda: not store.pools.list(), "the end of the pool")
        assert vms(agent) == {}


def test_a_dedicated_desktop_stays_its_users(own_store: Store, agent: RunningAgent) -> None:
    with_pool(own_store, agent, kind="dedicated", spare=1, maximum=1)
    with working(own_store) as service:
        wait_until(is_ready(own_store, 1), "a desktop")
        service.assign(ADMIN, "office", "ada")
        wait_until(lambda: own_store.desktops.find("office-001").handed_out, "the assignment")
        service.stop_desktop(ADMIN, "office-001")
        wait_until(lambda: phase(service, "office-001") == "off", "its stop")
        assert service.assign(ADMIN, "office", "ada").data.name == "office-001"
        wait_until(lambda: phase(service, "office-001") == "assigned", "its start")


def test_a_fixed_pool_has_its_number(own_store: Store, agent: RunningAgent) -> None:
    with_pool(own_store, agent, kind="fixed", spare=None, maximum=3)
    with working(own_store) as service:
        wait_until(is_ready(own_store, 3), "three VMs")
        with pytest.raises(InvalidInput, match="have no users"):
            service.assign(ADMIN, "office", "ada")


def test_what_somebody_deletes_on_the_host_is_made_again(own_store: Store, agent: RunningAgent) -> None:
    with_pool(own_store, agent, spare=1, maximum=1)
    with working(own_store):
        wait_until(is_ready(own_store, 1), "a desktop")
        (lost,) = own_store.desktops.list()
        host = connect(f"agent:{agent.path}", override_controller=True)
        host.stop_vm("office-001", force=True)
        host.delete_vm("office-001")
        wait_until(lambda: [one.id for one in ready(own_store)] not in ([], [lost.id]), "another desktop")
        assert list(vms(agent)) == ["office-001"]


def test_a_stopped_spare_is_started_again(own_store: Store, agent: RunningAgent) -> None:
    with_pool(own_store, agent, spare=1, maximum=1)
    with working(own_store):
        wait_until(is_ready(own_store, 1), "a desktop")
        connect(f"agent:{agent.path}", override_controller=True).stop_vm("office-001", force=True)
        wait_until(lambda: starts(agent, "office-001") == 2, "its second start")
        wait_until(is_ready(own_store, 1), "it is ready again")


def test_a_spare_that_crashes_again_and_again_has_failed(agent: RunningAgent, tmp_path: Path) -> None:
    url, clock, stop = f"sqlite:///{tmp_path}/fleet.db", SteppedClock(time.time()), threading.Event()
    upgrade(url)

    def tick() -> None:
        while not stop.wait(0.01):
            clock.advance(0.2)

    ticking = threading.Thread(target=tick)
    ticking.start()
    store = open_store(url, clock=clock)
    try:
        with_pool(store, agent, spare=1, maximum=1)
        host = connect(f"agent:{agent.path}", override_controller=True)
        with working(store) as service:
            for count in range(4):
                wait_until(lambda count=count: crashes(store) == count and is_ready(store, 1)(), f"start {count + 1}")
                host.stop_vm("office-001", force=True)
            wait_until(lambda: phase(service, "office-001") == "failed", "the error")
            shown = service.show_desktop(ADMIN, "office-001").data
            assert shown.code == "crashes"
            assert "it stopped by itself 4 times in 20 minutes" in (shown.why or "")
            assert service.start_desktop(ADMIN, "office-001").changed
            wait_until(is_ready(store, 1), "it runs again")
    finally:
        stop.set()
        ticking.join()
        store.close()


def test_a_host_that_is_drained_loses_its_free_desktops(own_store: Store, agent: RunningAgent) -> None:
    with_pool(own_store, agent, spare=1, maximum=2)
    with working(own_store) as service:
        wait_until(is_ready(own_store, 1), "a desktop")
        service.assign(ADMIN, "office", "ada")
        wait_until(is_ready(own_store, 2), "a spare")
        service.drain_host(ADMIN, "gpu01")
        wait_until(lambda: list(vms(agent)) == ["office-001"], "the spare's end")
        wait_until(lambda: waiting(service) == ["no host can take it: gpu01: draining"], "the next spare")


def test_a_pool_with_errors_stops_making_desktops(own_store: Store, agent: RunningAgent) -> None:
    service = with_pool(own_store, agent, spare=3, maximum=3, vm={"storage_pool": "none"})
    with working(own_store):
        wait_until(lambda: service.show_pool(ADMIN, "office").data.state == "paused", "the pause")
    reason = service.show_pool(ADMIN, "office").data.reason or ""
    assert "errors in 20 minutes; the last one of office-00" in reason
    assert "storage pool" in reason
    assert vms(agent) == {}


def test_a_host_without_room_is_not_asked_again_and_again(own_store: Store, agent: RunningAgent) -> None:
    with_pool(own_store, agent, profile="A100-20C", spare=3, maximum=3)
    with working(own_store) as service:
        wait_until(is_ready(own_store, 2), "as many as fit")
        wait_until(lambda: phase(service, "office-003") == "unplaced", "the third")
        wait_until(lambda: "A100-20C" in (service.show_desktop(ADMIN, "office-003").data.why or ""), "the reason")
    assert len(vms(agent)) == 2


def test_another_machine_under_a_known_name_is_held(own_store: Store, agent: RunningAgent) -> None:
    service = with_pool(own_store, agent, spare=1, maximum=1)
    with own_store.database.write() as connection:
        connection.exec_driver_sql("UPDATE host SET machine_id = 'another'")
    with working(own_store):
        wait_until(lambda: service.show_host(ADMIN, "gpu01").data.held is not None, "the hold")
        assert "it is another machine" in (service.show_host(ADMIN, "gpu01").data.held or "")
        wait_until(lambda: own_store.hosts.find("gpu01").seen_at is not None, "it is seen")
        assert own_store.hosts.find("gpu01").machine_id == "another", "an admin decides"
        service.accept_host(ADMIN, "gpu01")
        wait_until(is_ready(own_store, 1), "a desktop")


def test_a_host_of_another_database_is_refused(own_store: Store, agent: RunningAgent) -> None:
    connect(f"agent:{agent.path}").announce_fleet(Fence("another-database", 1, "somebody"))
    service = FleetService(own_store, connect_host)
    with pytest.raises(Fenced, match="another database"):
        service.add_host(ADMIN, "gpu01", f"agent:{agent.path}")
    assert own_store.hosts.list() == ()


def test_a_controller_that_slept_changes_nothing(own_store: Store, agent: RunningAgent) -> None:
    with_pool(own_store, agent, spare=1, maximum=1)
    with working(own_store):
        wait_until(is_ready(own_store, 1), "a desktop")
        lease = next(iter(own_store.hosts.leases().values()))
    (desktop,) = own_store.desktops.list()
    own_store.hosts.drop_lease(lease.host_id, lease.holder)
    later = own_store.hosts.take_lease(lease.host_id, "later", 60.0)
    assert later is not None
    link = HostLink("gpu01", f"agent:{agent.path}")
    link.host().announce_fleet(Fence(own_store.incarnation, later.epoch, "later"))
    former = FleetRequest(Fence(own_store.incarnation, lease.epoch, lease.holder))
    with pytest.raises(Fenced):
        link.host(former).stop_vm(desktop.id, force=True)
    assert vms(agent)["office-001"].state == "running"


def test_a_host_that_does_not_answer_is_named(own_store: Store, agent: RunningAgent, tmp_path: object) -> None:
    service = with_pool(own_store, agent, spare=1, maximum=1)
    with own_store.database.write() as connection:
        connection.exec_driver_sql(f"UPDATE host SET address = 'agent:{tmp_path}/none.sock'")
    with working(own_store):
        wait_until(lambda: service.show_host(ADMIN, "gpu01").data.problem is not None, "the problem")
    assert "none.sock" in (service.show_host(ADMIN, "gpu01").data.problem or "")
    with pytest.raises(Unreachable):
        service.add_host(ADMIN, "gpu02", f"agent:{tmp_path}/none.sock")


@pytest.mark.parametrize("address", ["", "gpu01", "http://gpu01", "ssh://", "ssh://a b", "agent:relative", "ssh://h:0"])
def test_what_is_no_address_of_an_agent(address: str) -> None:
    with pytest.raises(InvalidInput):
        check_address(address)
