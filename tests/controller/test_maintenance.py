# SPDX-License-Identifier: Apache-2.0
"""A host in maintenance: its desktops stop there, users first, and start again once its driver was checked."""

from __future__ import annotations

import pytest

from tests.agent.conftest import RunningAgent
from tests.controller.conftest import add_host, wait_until
from tests.controller.test_engine import ADMIN, is_ready, phase, starts, vms, with_pool, working
from tests.controller.test_store import with_desktops
from vgpuctl.agent.client import connect
from vgpuctl.controller.database.store import Store
from vgpuctl.controller.engine import connect_host
from vgpuctl.controller.fleet import FleetService
from vgpuctl.controller.model import FleetHostState
from vgpuctl.errors import InvalidInput, NoCapacity, Refused


def states(agent: RunningAgent) -> dict[str, str]:
    return {name: str(vm.state) for name, vm in vms(agent).items()}


def set_driver(store: Store, column: str, driver: str) -> None:
    """Say that a host had, or guests have, another driver."""
    with store.database.write() as connection:
        if column == "host":
            connection.exec_driver_sql(f"UPDATE host SET driver = '{driver}'")
        else:
            connection.exec_driver_sql(
                f"""UPDATE desktop SET report = json_set(report, '$.driver', '{driver}') WHERE report IS NOT NULL"""
            )


def test_desktops_of_a_host_stop_and_start_again(own_store: Store, agent: RunningAgent) -> None:
    with_pool(own_store, agent, kind="dedicated", spare=1, maximum=2)
    with working(own_store) as service:
        wait_until(is_ready(own_store, 1), "a desktop")
        service.assign(ADMIN, "office", "ada")
        wait_until(lambda: own_store.desktops.find("office-001").handed_out, "ada's desktop")
        wait_until(is_ready(own_store, 2), "a spare")
        assert vms(agent)["office-001"].should_run is True, "the agent starts it after a boot"
        assert service.drain_host(ADMIN, "gpu01", maintenance=True).data.state == "maintenance"
        wait_until(lambda: states(agent)["office-002"] == "stopped", "the spare's stop")
        assert states(agent)["office-001"] == "running", "nothing says that ada is gone"
        with pytest.raises(NoCapacity):
            service.assign(ADMIN, "office", "bob")
        wait_until(lambda: service.show_host(ADMIN, "gpu01").data.running == 1, "the controller has seen that")
        assert not service.drain_host(ADMIN, "gpu01", maintenance=True).changed
        service.drain_host(ADMIN, "gpu01", maintenance=True, force=True)
        wait_until(lambda: states(agent)["office-001"] == "stopped", "ada's stop")
        wait_until(lambda: service.show_host(ADMIN, "gpu01").data.running == 0, "the host is empty")
        assert {vm.should_run for vm in vms(agent).values()} == {False}
        wait_until(lambda: phase(service, "office-001") == "waiting", "it waits for the host")
        assert service.show_desktop(ADMIN, "office-001").data.why == "gpu01 is in maintenance"
        assert own_store.desktops.find("office-001").power_on, "her desktop is to run again"
        connect(f"agent:{agent.path}", override_controller=True).start_vm("office-002")
        wait_until(lambda: starts(agent, "office-002") == 2, "somebody starts one")
        wait_until(lambda: states(agent)["office-002"] == "stopped", "it is stopped again")
        assert service.uncordon_host(ADMIN, "gpu01").data.state == "active"
        wait_until(lambda: phase(service, "office-001") == "assigned", "ada's start")
        wait_until(is_ready(own_store, 2), "all run")
        assert own_store.desktops.find("office-001").user == "ada"


def test_a_deadline_stops_what_is_left(store: Store) -> None:
    _, host_id, _ = with_desktops(store, 1)
    host, changed = store.hosts.begin_maintenance("gpu01", 30, "test")
    assert (host.state, changed) == (FleetHostState.MAINTENANCE, True)
    at = store.hosts.stop_at(host_id)
    assert at is not None
    assert 1700 < at - store.now() <= 1800
    with pytest.raises(NoCapacity):
        store.desktops.assign("office", "ada", "test")
    store.hosts.begin_maintenance("gpu01", None, "test")
    assert store.hosts.stop_at(host_id) is None
    assert [event.text for event in store.journal.list() if event.kind == "host-maintenance"] == [
        "gpu01: desktops stop in 30 minutes at the latest", "gpu01: desktops stop when nobody is logged on",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "given", [{"force": True}, {"deadline_minutes": 5}, {"maintenance": True, "force": True, "deadline_minutes": 5},
              {"maintenance": True, "deadline_minutes": 0}],
)  # fmt: skip
def test_contradictions_are_refused(own_store: Store, given: dict[str, object]) -> None:
    add_host(own_store)
    with pytest.raises(InvalidInput):
        FleetService(own_store, connect_host).drain_host(ADMIN, "gpu01", **given)
    assert own_store.hosts.find("gpu01").state is FleetHostState.ACTIVE


def test_a_new_driver_is_checked_against_the_guests(own_store: Store, agent: RunningAgent) -> None:
    service = with_pool(own_store, agent, spare=1, maximum=1)
    driver = own_store.hosts.find("gpu01").driver
    assert driver is not None
    with working(own_store):
        wait_until(is_ready(own_store, 1), "a desktop")
    service.drain_host(ADMIN, "gpu01", maintenance=True)
    set_driver(own_store, "host", "535.1.1")
    with pytest.raises(Refused, match=f"had the driver 535.1.1 and has {driver}; not known to work with it: image off"):
        service.uncordon_host(ADMIN, "gpu01")
    set_driver(own_store, "guest", "595.97")
    with pytest.raises(Refused, match=r"too old for guests: image office has 595\.97") as refused:
        service.uncordon_host(ADMIN, "gpu01")
    assert "uncordon-host gpu01 --unchecked" in str(refused.value.hint)
    assert own_store.hosts.find("gpu01").state is FleetHostState.MAINTENANCE
    set_driver(own_store, "guest", driver)
    service.uncordon_host(ADMIN, "gpu01")
    host = own_store.hosts.find("gpu01")
    assert (host.state, host.driver) == (FleetHostState.ACTIVE, driver)
    service.drain_host(ADMIN, "gpu01", maintenance=True)
    set_driver(own_store, "guest", "595.97")
    service.uncordon_host(ADMIN, "gpu01", unchecked=True)
    own_store.hosts.begin_maintenance("gpu01", None, "test")
    own_store.hosts.hold(host.id, "its SSH key is another one")
    with pytest.raises(Refused, match="its SSH key is another one"):
        service.uncordon_host(ADMIN, "gpu01", unchecked=True)
