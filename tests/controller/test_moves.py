# SPDX-License-Identifier: Apache-2.0
"""A desktop of a lost host moves to another one with its disks, and only when the lost one is known to be cut off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.conftest import RunningAgent, running
from tests.controller.conftest import add_image, add_pool, wait_until
from tests.controller.test_engine import ADMIN, is_ready, phase, vms, working
from vgpuctl.agent.client import connect
from vgpuctl.controller.database.store import Store
from vgpuctl.controller.engine import connect_host
from vgpuctl.controller.fleet import FleetService
from vgpuctl.errors import InvalidInput, Refused

SHARED = "/srv/images/ubuntu-24.04.qcow2"
"""A file that all simulated hosts have, as they would on shared storage."""
EVIDENCE = "switched off at the rack"


@pytest.fixture
def other(agent: RunningAgent, tmp_path: Path) -> Iterator[RunningAgent]:
    """Another host."""
    directory = tmp_path / "other"
    directory.mkdir()
    with running("sim:l40s-x4", directory) as result:
        yield result


def with_desktop(store: Store, service: FleetService, agent: RunningAgent, **spec: object) -> None:
    """Have a desktop made for ada on gpu01."""
    service.add_host(ADMIN, "gpu01", f"agent:{agent.path}")
    add_image(store)
    add_pool(store, **{"profile": ["A100-4C", "L40S-4Q"], "kind": "dedicated", "spare": 1, "maximum": 1, **spec})
    wait_until(is_ready(store, 1), "a desktop")
    service.assign(ADMIN, "office", "ada")
    wait_until(lambda: store.desktops.find("office-001").handed_out, "ada's desktop")


def known_disks(store: Store) -> tuple[str, ...]:
    report = store.desktops.find("office-001").report
    return () if report is None else report.disks


def lose(store: Store, name: str = "gpu01") -> None:
    """Have a host silent, as if its power were off."""
    with store.database.write() as connection:
        lost = "UPDATE host SET address = 'agent:/none/agent.sock', seen_at = 1.0 WHERE name = ?"
        connection.exec_driver_sql(lost, (name,))


def test_a_dedicated_desktop_moves_with_its_disks(own_store: Store, agent: RunningAgent, other: RunningAgent) -> None:
    with working(own_store) as service:
        with_desktop(own_store, service, agent)
        wait_until(lambda: bool(known_disks(own_store)), "its disks are known")
        shown = connect(f"agent:{agent.path}").show_vm("office-001").data
        assert known_disks(own_store) == (shown.disks[0].path,)
        with pytest.raises(Refused, match="gpu01 answers"):
            service.move_desktop(ADMIN, "office-001", EVIDENCE)
    with own_store.database.write() as connection:
        text = connection.exec_driver_sql("SELECT report FROM desktop").scalar_one()
        report = json.dumps({**json.loads(text), "disks": [SHARED]})
        connection.exec_driver_sql("UPDATE desktop SET report = ?", (report,))
    lose(own_store)
    before = own_store.desktops.find("office-001")
    with working(own_store) as service:
        with pytest.raises(InvalidInput, match="cut off"):
            service.move_desktop(ADMIN, "office-001", "off")
        moved = service.move_desktop(ADMIN, "office-001", EVIDENCE).data
        assert (moved.host, moved.user) == (None, "ada")
        service.add_host(ADMIN, "gpu02", f"agent:{other.path}")
        wait_until(lambda: phase(service, "office-001") == "assigned", "ada's desktop on the other host")
        wait_until(lambda: own_store.desktops.find("office-001").handed_out, "it is hers")
        vm = vms(other)["office-001"]
        assert (vm.uuid, vm.desktop.user, vm.desktop.dirty, vm.image) == (before.id, "ada", True, None)
        assert vm.desktop.generation == before.generation + 1
        (text,) = [event.text for event in own_store.journal.list() if event.kind == "desktop-moved"]
        assert text == f"office-001 from gpu01, fenced: {EVIDENCE}"
        assert [disk.path for disk in connect(f"agent:{other.path}").show_vm("office-001").data.disks] == [SHARED]
        assert vms(agent)["office-001"].state == "running", "nobody can reach it"
        with own_store.database.write() as connection:
            address = f"agent:{agent.path}"
            connection.exec_driver_sql("UPDATE host SET address = ? WHERE name = 'gpu01'", (address,))
    with working(own_store) as service:
        wait_until(lambda: vms(agent)["office-001"].state == "stopped", "the copy on the lost host, which is back")
        wait_until(lambda: vms(agent)["office-001"].should_run is False, "it stays off")
        service.release(ADMIN, "office-001")
        wait_until(lambda: vms(other) == {}, "it cannot be refreshed, so it is deleted")
        assert list(vms(agent)) == ["office-001"], "a VM without a row is never deleted"


@pytest.mark.parametrize(
    ("spec", "why"),
    [({"kind": "floating"}, "nothing on the disks"), ({"on_logoff": "refresh"}, "nothing on the disks"),
     ({}, "never said which files")],
)  # fmt: skip
def test_what_cannot_move(own_store: Store, agent: RunningAgent, spec: dict[str, object], why: str) -> None:
    with working(own_store) as service:
        with_desktop(own_store, service, agent, **spec)
    lose(own_store)
    with own_store.database.write() as connection:
        connection.exec_driver_sql("""UPDATE desktop SET report = json_set(report, '$.disks', json('[]'))""")
    with pytest.raises(Refused, match=why):
        FleetService(own_store, connect_host).move_desktop(ADMIN, "office-001", EVIDENCE)
    assert own_store.desktops.find("office-001").host_id is not None


def test_what_cannot_be_told_from_another_ones_disk_does_not_move(own_store: Store, agent: RunningAgent) -> None:
    with working(own_store) as service:
        with_desktop(own_store, service, agent)
        wait_until(lambda: bool(known_disks(own_store)), "its disks are known")
    lose(own_store)
    with own_store.database.write() as connection:
        connection.exec_driver_sql("""UPDATE desktop SET report = json_set(report, '$.code', 'other-user')""")
    service = FleetService(own_store, connect_host)
    with pytest.raises(Refused, match="is not what the database says"):
        service.move_desktop(ADMIN, "office-001", EVIDENCE)
    with own_store.database.write() as connection:
        connection.exec_driver_sql("""UPDATE desktop SET report = json_set(report, '$.code', null)""")
    service.move_desktop(ADMIN, "office-001", EVIDENCE)
    service.release(ADMIN, "office-001")
    assert own_store.desktops.list() == (), "nobody else gets ada's disks"
