# SPDX-License-Identifier: Apache-2.0
"""Desktops leave a host that is drained live while their users work, between two hosts with real agents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.conftest import RunningAgent, running
from tests.agent.test_account_moves import Site
from tests.agent.test_account_moves import account_sites as account_sites
from tests.controller.conftest import add_image, add_pool, wait_until
from tests.controller.test_engine import ADMIN, is_ready, vms, working
from tests.controller.test_moves import EVIDENCE, lose
from vgpuctl.agent.client import connect
from vgpuctl.controller.database.store import Store
from vgpuctl.controller.engine import connect_host
from vgpuctl.controller.fleet import FleetService
from vgpuctl.controller.hosts.link import facts_of
from vgpuctl.controller.model import Desktop, FleetHost, FleetHostState
from vgpuctl.errors import Refused
from vgpuctl.library.migration import MigrationCalls
from vgpuctl.model.desktop import Fence
from vgpuctl.model.image_copy import CopyState
from vgpuctl.observe.migration_host import AUTHORITY, CLIENT_FILES, SERVER_FILES
from vgpuctl.operations.plans.migration_end import RUNS_HERE, RUNS_THERE

HERE, THERE = "sim:a100-40", "sim:mixed"
"""The hosts' names, by which the libvirt of one reaches that of the other: these are what libvirt takes itself."""
DESKTOP = "office-001"


def with_certificates(directory: Path, scenario: str) -> None:
    """Put the certificates for encrypted moves on a simulated host."""
    (journal,) = directory.glob(f"**/{scenario.partition(':')[2]}/journal")
    certificates = journal.parent / "etc" / "pki" / "qemu"
    certificates.mkdir(parents=True)
    for name in {AUTHORITY, *CLIENT_FILES, *SERVER_FILES}:
        (certificates / name).write_text("")


@pytest.fixture
def other(agent: RunningAgent, tmp_path: Path) -> Iterator[RunningAgent]:
    """Another host, to which VMs can be moved from the first one."""
    directory = tmp_path / "other"
    directory.mkdir()
    with running(THERE, directory) as result:
        for scenario in (HERE, THERE):
            with_certificates(tmp_path / "state-home", scenario)
        yield result


def add_host(store: Store, name: str, agent: RunningAgent) -> FleetHost:
    host = FleetHost("", name, f"agent:{agent.path}")
    link = connect_host(host)
    try:
        return store.hosts.add(name, host.address, None, {}, facts_of(link.read_fleet()), "test")
    finally:
        link.close()


def adas(store: Store) -> Desktop:
    return store.desktops.find(DESKTOP)


def is_on(store: Store, host: FleetHost) -> bool:
    desktop = adas(store)
    return desktop.host_id == host.id and desktop.moving_to is None


def moved(store: Store) -> list[str]:
    return [event.text for event in store.journal.list() if event.kind == "desktop-moved"]


def give_to_ada(store: Store, service: FleetService) -> Desktop:
    wait_until(is_ready(store, 1), "a desktop")
    service.assign(ADMIN, "office", "ada")
    wait_until(lambda: adas(store).handed_out, "ada's desktop")
    return adas(store)


def test_a_desktop_in_use_moves_and_its_user_keeps_it(
    own_store: Store, agent: RunningAgent, other: RunningAgent
) -> None:
    add_host(own_store, HERE, agent)
    add_image(own_store)
    add_pool(own_store, kind="dedicated", spare=1, maximum=1)
    with working(own_store) as service:
        before = give_to_ada(own_store, service)
        there = add_host(own_store, THERE, other)
        service.drain_host(ADMIN, HERE, live=True)
        wait_until(lambda: is_on(own_store, there), "the move")
        after = adas(own_store)
        assert (after.user, after.generation, after.handed_out) == ("ada", before.generation, True)
        assert vms(agent) == {}
        assert (vms(other)[DESKTOP].uuid, vms(other)[DESKTOP].state) == (before.id, "running")
        (text,) = moved(own_store)
        assert text.startswith(f"{DESKTOP} from {HERE} to {THERE}, alive; it stood still for ")


def test_agents_that_give_the_controller_the_rights_of_its_account(
    own_store: Store, account_sites: tuple[Site, Site]
) -> None:
    here, there = account_sites
    for site in account_sites:
        site.write(
            "/etc/vgpuctl/host.yaml", site.host_yaml.replace("networks:", "folders: [/srv/images]\n    networks:")
        )
    add_host(own_store, "gpu01", here.agent)
    add_image(own_store)
    add_pool(own_store, kind="dedicated", spare=1, maximum=1)
    with working(own_store) as service:
        give_to_ada(own_store, service)
        target = add_host(own_store, "gpu02", there.agent)
        service.drain_host(ADMIN, "gpu01", live=True)
        wait_until(lambda: is_on(own_store, target), "the move")
        assert vms(here.agent) == {}
        assert (vms(there.agent)[DESKTOP].account, vms(there.agent)[DESKTOP].state) == ("pools", "running")
        assert moved(own_store)[0].startswith(f"{DESKTOP} from gpu01 to gpu02, alive")


def test_one_that_is_off_moves_while_off(own_store: Store, agent: RunningAgent, other: RunningAgent) -> None:
    add_host(own_store, HERE, agent)
    add_image(own_store)
    add_pool(own_store, kind="dedicated", spare=1, maximum=1)
    with working(own_store) as service:
        give_to_ada(own_store, service)
        service.stop_desktop(ADMIN, DESKTOP)
        wait_until(lambda: service.show_desktop(ADMIN, DESKTOP).data.phase == "off", "its stop")
        there = add_host(own_store, THERE, other)
        service.drain_host(ADMIN, HERE, live=True)
        wait_until(lambda: is_on(own_store, there), "the move")
        assert vms(agent) == {}
        assert vms(other)[DESKTOP].state == "stopped"
        assert moved(own_store) == [f"{DESKTOP} from {HERE} to {THERE}, while off"]
        service.start_desktop(ADMIN, DESKTOP)
        wait_until(lambda: vms(other)[DESKTOP].state == "running", "its start there")


def test_a_fixed_pool_moves_and_spares_are_made_again(
    own_store: Store, agent: RunningAgent, other: RunningAgent
) -> None:
    add_host(own_store, HERE, agent)
    add_image(own_store)
    add_pool(own_store, "lab", kind="fixed", spare=None, maximum=3, names="lab-{:03}")
    add_pool(own_store, spare=1, maximum=2)
    with working(own_store) as service:
        wait_until(is_ready(own_store, 4), "all desktops")
        before = {one.name: one.id for one in own_store.desktops.list()}
        there = add_host(own_store, THERE, other)
        service.drain_host(ADMIN, HERE, live=True)
        wait_until(lambda: vms(agent) == {} and len(own_store.desktops.of_host(there.id)) == 4, "the empty host")
        wait_until(is_ready(own_store, 4), "all desktops")
        after = {one.name: one.id for one in own_store.desktops.list()}
        labs = {"lab-001", "lab-002", "lab-003"}
        assert {name: after[name] for name in labs} == {name: before[name] for name in labs}
        assert not set(after.values()) & {before[DESKTOP]}
        service.remove_host(ADMIN, HERE)


def test_one_that_cannot_move_goes_on_and_says_why(own_store: Store, agent: RunningAgent, other: RunningAgent) -> None:
    """Nothing is encrypted for want of certificates; with them it moves at its next try."""
    add_host(own_store, HERE, agent)
    add_image(own_store)
    add_pool(own_store, kind="dedicated", spare=1, maximum=1)
    with working(own_store) as service:
        before = give_to_ada(own_store, service)
        there = add_host(own_store, THERE, other)
        own_store.hosts.change(THERE, "test", state=FleetHostState.CORDONED)
        service.drain_host(ADMIN, HERE, live=True)
        nowhere = f"no host can take it: {HERE}: draining; {THERE}: cordoned"
        wait_until(lambda: service.show_desktop(ADMIN, DESKTOP).data.why == nowhere, "why the host has no host")
        (certificate,) = Path(other.state).parents[1].glob("**/mixed/etc/pki/qemu/server-cert.pem")
        certificate.unlink()
        own_store.hosts.change(THERE, "test", state=FleetHostState.ACTIVE)
        wait_until(
            lambda: "server-cert.pem is missing" in (service.show_desktop(ADMIN, DESKTOP).data.error or ""),
            "why it cannot",
        )
        shown = service.show_desktop(ADMIN, DESKTOP).data
        assert (shown.phase, shown.code, shown.moving_to, shown.why) == ("assigned", "cannot-move", None, shown.error)
        desktop = adas(own_store)
        assert (desktop.host_id, desktop.errors, desktop.handed_out) == (before.host_id, 0, True)
        assert desktop.report is not None
        assert desktop.report.refused_by == (there.id,)
        assert vms(agent)[DESKTOP].state == "running"
        assert DESKTOP not in vms(other)
        assert service.show_pool(ADMIN, "office").data.state == "active"
        assert [one.kind for one in own_store.journal.list() if one.desktop == DESKTOP][-1] != "desktop-failed"
        certificate.write_text("")
        service.start_desktop(ADMIN, DESKTOP)
        wait_until(lambda: is_on(own_store, there), "the move")
        assert service.show_desktop(ADMIN, DESKTOP).data.why is None


STEPS = ("nothing", "prepared", "sent", "runs there", "removed here")


def make_calls(source: MigrationCalls, target: MigrationCalls, last: str) -> None:
    """Make the calls of a move up to one of them, as a controller does that is killed then."""
    if last == "nothing":
        return
    offer = source.offer_vm(DESKTOP).data
    place = target.prepare_incoming(offer, copies_disks=True).data
    if last == "prepared":
        return
    source.migrate_out(offer.uuid, place, target_uri=THERE, limits_ms=(60_000,))
    if last != "sent":
        target.finish_migration(offer.uuid, migration_id=offer.id, outcome=RUNS_HERE)
    if last == "removed here":
        source.finish_migration(offer.uuid, migration_id=offer.id, outcome=RUNS_THERE)


def has_image(store: Store, host: FleetHost) -> bool:
    return any(row.host_id == host.id and row.state is CopyState.READY for row in store.host_images.list())


def kill_in_the_middle(store: Store, agent: RunningAgent, other: RunningAgent, last: str) -> FleetHost:
    """Return the host to which ada's desktop moves, whose controller was killed after some calls."""
    add_host(store, HERE, agent)
    add_image(store)
    add_pool(store, kind="dedicated", spare=0, maximum=1)
    with working(store) as service:
        there = add_host(store, THERE, other)
        store.hosts.change(THERE, "test", state=FleetHostState.CORDONED)
        add_pool(store, kind="dedicated", spare=1, maximum=1)
        give_to_ada(store, service)
        store.hosts.change(THERE, "test", state=FleetHostState.ACTIVE)
        wait_until(lambda: has_image(store, there), "the image")
    store.hosts.change(HERE, "test", state=FleetHostState.DRAINING, moves_live=True)
    version = store.rooms.list()[0][there.id].version
    assert store.live_moves.begin(adas(store), there.id, version)
    hosts = [connect(f"agent:{one.path}", override_controller=True) for one in (agent, other)]
    make_calls(*hosts, last)
    return there


@pytest.mark.parametrize("last", STEPS)
def test_the_next_controller_goes_on(own_store: Store, agent: RunningAgent, other: RunningAgent, last: str) -> None:
    there = kill_in_the_middle(own_store, agent, other, last)
    before = adas(own_store)
    with working(own_store):
        wait_until(lambda: is_on(own_store, there), "the end of the move")
        assert DESKTOP not in vms(agent)
        vm = vms(other)[DESKTOP]
        assert (vm.uuid, vm.state, vm.desktop.user, vm.generation is not None) == (before.id, "running", "ada", True)
        assert (adas(own_store).user, adas(own_store).generation) == ("ada", before.generation)
        assert len(moved(own_store)) == 1


@pytest.mark.parametrize("last", ["nothing", "prepared", "sent"])
def test_a_move_is_ended_though_its_host_is_not_drained_any_more(
    own_store: Store, agent: RunningAgent, other: RunningAgent, last: str
) -> None:
    """What has not come stays; what has come goes on there."""
    there = kill_in_the_middle(own_store, agent, other, last)
    here = own_store.hosts.find(HERE)
    with working(own_store) as service:
        service.uncordon_host(ADMIN, HERE)
        wait_until(lambda: adas(own_store).moving_to is None, "the end of the move")
        assert adas(own_store).host_id == (there.id if last == "sent" else here.id)
        running, empty = (other, agent) if last == "sent" else (agent, other)
        assert vms(running)[DESKTOP].state == "running"
        assert DESKTOP not in vms(empty)
        assert adas(own_store).user == "ada"


def test_one_that_is_released_meanwhile_is_refreshed_where_it_is_then(
    own_store: Store, agent: RunningAgent, other: RunningAgent
) -> None:
    there = kill_in_the_middle(own_store, agent, other, "sent")
    before = adas(own_store)
    FleetService(own_store, connect_host).release(ADMIN, DESKTOP)
    with working(own_store):
        wait_until(lambda: is_on(own_store, there), "the end of the move")
        wait_until(is_ready(own_store, 1), "its refresh")
        wait_until(lambda: vms(other)[DESKTOP].desktop.user is None, "it is nobody's")
        assert (vms(other)[DESKTOP].uuid, vms(other)[DESKTOP].desktop.dirty) == (before.id, False)
        assert vms(agent) == {}


def test_one_that_is_deleted_on_its_host_meanwhile_is_lost(
    own_store: Store, agent: RunningAgent, other: RunningAgent
) -> None:
    kill_in_the_middle(own_store, agent, other, "nothing")
    host = connect(f"agent:{agent.path}", override_controller=True)
    host.stop_vm(DESKTOP, force=True)
    host.delete_vm(DESKTOP)
    with working(own_store) as service:
        wait_until(lambda: service.show_desktop(ADMIN, DESKTOP).data.phase == "lost", "it is lost")
        assert adas(own_store).user == "ada"


def test_the_other_host_may_be_another_controllers(own_store: Store, agent: RunningAgent, other: RunningAgent) -> None:
    """As long as that one lives; where none has the host, the desktop stays."""
    there = kill_in_the_middle(own_store, agent, other, "nothing")
    own_store.hosts.change(THERE, "test", state=FleetHostState.CORDONED)
    lease = own_store.hosts.take_lease(there.id, "another", 3600.0)
    assert lease is not None
    with working(own_store) as service:
        wait_until(
            lambda: (
                "to sim:mixed: this holder has not announced itself"
                in (service.show_desktop(ADMIN, DESKTOP).data.error or "")
            ),
            "why not yet",
        )
        assert adas(own_store).moving_to is None
        assert vms(agent)[DESKTOP].state == "running"
        fence = Fence(own_store.incarnation, lease.epoch, lease.holder)
        connect(f"agent:{other.path}").announce_fleet(fence)
        own_store.hosts.change(THERE, "test", state=FleetHostState.ACTIVE)
        service.start_desktop(ADMIN, DESKTOP)
        wait_until(lambda: is_on(own_store, there), "the move")
        assert vms(other)[DESKTOP].desktop.user == "ada"


@pytest.mark.parametrize("last", ["nothing", "sent", "runs there"])
def test_one_whose_host_is_lost_in_the_middle(
    own_store: Store, agent: RunningAgent, other: RunningAgent, last: str
) -> None:
    """It goes on where it has come, if it has; where that is not certain, root says so on the other host."""
    there = kill_in_the_middle(own_store, agent, other, last)
    before = adas(own_store)
    service = FleetService(own_store, connect_host)
    with pytest.raises(Refused, match=f"{HERE} answers"):
        service.move_desktop(ADMIN, DESKTOP, EVIDENCE)
    lose(own_store, HERE)
    if last == "sent":
        with pytest.raises(Refused, match=f"was moving to {THERE} when its host was lost") as refused:
            service.move_desktop(ADMIN, DESKTOP, EVIDENCE)
        assert "--runs-here" in str(refused.value.hint)
        host = connect(f"agent:{other.path}", override_controller=True)
        mark = host.show_migration(DESKTOP).data.id
        host.finish_migration(DESKTOP, migration_id=str(mark), outcome=RUNS_HERE)
    service.move_desktop(ADMIN, DESKTOP, EVIDENCE)
    after = adas(own_store)
    if last == "nothing":
        assert (after.host_id, after.moving_to, after.generation) == (None, None, before.generation + 1)
        return
    assert (after.host_id, after.moving_to, after.generation) == (there.id, None, before.generation)
    assert moved(own_store) == [f"{DESKTOP} from {HERE} to {THERE}, where it had come, fenced: {EVIDENCE}"]
    with working(own_store):
        wait_until(lambda: adas(own_store).report != after.report, "a look at it")
        assert vms(other)[DESKTOP].state == "running"
        assert (adas(own_store).user, adas(own_store).handed_out) == ("ada", True)
