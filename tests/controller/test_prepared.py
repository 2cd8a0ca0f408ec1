# SPDX-License-Identifier: Apache-2.0
"""Desktops that are set up once: their guests shut down then, and each refresh goes back to that."""

from __future__ import annotations

from tests.agent.conftest import RunningAgent
from tests.controller.conftest import add_image, add_pool, wait_until
from tests.controller.test_engine import ADMIN, is_ready, vms, with_pool, working
from vgpuctl.agent.client import connect
from vgpuctl.controller.database.store import Store
from vgpuctl.controller.fleet import FleetService
from vgpuctl.model.results.vms import DiskResult

NEW_IMAGE = "/srv/images/ubuntu-24.04-new.qcow2"


def system_disk(agent: RunningAgent) -> DiskResult:
    return connect(f"agent:{agent.path}").show_vm("office-001").data.disks[0]


def phase(service: FleetService) -> str:
    return "".join(one.phase for one in service.list_desktops(ADMIN).data)


def shut_down(agent: RunningAgent) -> None:
    """Do what a guest does that has set itself up."""
    connect(f"agent:{agent.path}", override_controller=True).stop_vm("office-001")


def test_a_desktop_is_set_up_once_and_each_refresh_goes_back_to_that(own_store: Store, agent: RunningAgent) -> None:
    store = own_store
    with_pool(store, agent, spare=1, maximum=1, prepared=True)
    with working(store) as service:
        wait_until(lambda: phase(service) == "preparing", "a guest that sets itself up")
        assert not is_ready(store, 1)()
        assert system_disk(agent).base == "/srv/images/ubuntu-24.04.qcow2"
        shut_down(agent)
        wait_until(is_ready(store, 1), "a desktop")
        kept = system_disk(agent)
        assert (vms(agent)["office-001"].prepared, vms(agent)["office-001"].image) == (
            True,
            "/srv/images/ubuntu-24.04.qcow2",
        )

        service.assign(ADMIN, "office", "ada")
        wait_until(lambda: store.desktops.find("office-001").handed_out, "the assignment")
        service.release(ADMIN, "office-001")
        wait_until(lambda: phase(service) == "ready", "the refresh")
        refreshed = system_disk(agent)
        assert (refreshed.base, vms(agent)["office-001"].prepared) == (kept.base, True)
        assert refreshed.path != kept.path

        add_image(store, "office-2", NEW_IMAGE)
        add_pool(store, spare=1, maximum=1, prepared=True, image="office-2")
        wait_until(lambda: phase(service) == "preparing", "the new image")
        assert (system_disk(agent).base, vms(agent)["office-001"].prepared) == (NEW_IMAGE, False)
        shut_down(agent)
        wait_until(is_ready(store, 1), "the desktop of the new image")
        assert vms(agent)["office-001"].image == NEW_IMAGE


def test_a_guest_that_was_switched_off_is_set_up_again(own_store: Store, agent: RunningAgent) -> None:
    with_pool(own_store, agent, spare=1, maximum=1, prepared=True)
    with working(own_store) as service:
        wait_until(lambda: phase(service) == "preparing", "a guest that sets itself up")
        before = system_disk(agent)
        connect(f"agent:{agent.path}", override_controller=True).stop_vm("office-001", force=True)
        wait_until(lambda: system_disk(agent).path != before.path, "another disk")
        wait_until(lambda: vms(agent)["office-001"].state == "running", "its start")
        assert (phase(service), vms(agent)["office-001"].prepared) == ("preparing", False)
        service.stop_desktop(ADMIN, "office-001")
        wait_until(lambda: vms(agent)["office-001"].state == "stopped", "its stop")
        assert vms(agent)["office-001"].stop_reason == "destroyed", "nobody asked it to shut down"
