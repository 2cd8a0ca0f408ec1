# SPDX-License-Identifier: Apache-2.0
"""Restarts of desktops, with a real agent: done once, no log-off, and said where they failed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

import vgpuctl
from tests.agent.conftest import RunningAgent, running
from tests.controller.conftest import wait_until
from tests.controller.guests import quick_helpers
from tests.controller.test_engine import ADMIN, is_ready, phase, with_pool, working
from tests.controller.test_logon import events, guests_of
from tests.controller.test_store import report_all, with_desktops
from tests.unit.controller.planning.fleets import plan_of, vm_of
from vgpuctl.agent.protocol import Stopping, TooMany
from vgpuctl.controller.database import schema
from vgpuctl.controller.database.store import Store
from vgpuctl.controller.engine import connect_host
from vgpuctl.controller.hosts.actions import carry_out
from vgpuctl.controller.hosts.calls import DesktopCalls
from vgpuctl.controller.hosts.desktop_moves import DesktopMoves
from vgpuctl.controller.model import CallerKind, Desktop, FleetCaller, Right
from vgpuctl.controller.planning.host_plan import RestartVm
from vgpuctl.controller.planning.restarts import restart_key, wants_restart
from vgpuctl.errors import (
    Busy,
    Locked,
    NotAllowed,
    NotFound,
    NotRebooted,
    PartlyApplied,
    Refused,
    ResultUnknown,
    Stale,
    Unreachable,
    VgpuctlError,
)
from vgpuctl.model.desktop import DesktopMark, Fence
from vgpuctl.sim.host import open_host
from vgpuctl.value import replace

__all__ = ("quick_helpers",)
SCENARIOS = Path(vgpuctl.__file__ or "").parent / "sim" / "scenarios"
ADA = FleetCaller("ada", None, CallerKind.PERSON, {"office": Right.USE})
EVE = FleetCaller("eve", None, CallerKind.PERSON, {"office": Right.USE})
DEAF = (SCENARIOS / "a100-40.yaml").read_text() + "faults: [{on: reboot, kind: lost}]\n"


def resets(scenario: str = "a100-40") -> int:
    """Return how often guests of the simulated host have booted again."""
    return sum(one.resets for one in open_host(scenario)._core.read_state().running.values())


def users(store: Store, name: str) -> tuple[str, ...] | None:
    """Return who is logged on in a desktop, as its last report says."""
    report = store.desktops.find(name).report
    return None if report is None else report.guest_users


def now_of(store: Store) -> float:
    """Return the database's time."""
    with store.database.read() as connection:
        return store.database.now(connection)


def test_what_is_wanted_is_in_the_row_until_it_is_done(store: Store) -> None:
    _, host_id, epoch = with_desktops(store, 2)
    name = store.desktops.assign("office", "ada", "test")[0].name
    with pytest.raises(NotFound):
        store.restarts.want(name, "eve", "eve", at_once=False)
    with pytest.raises(Stale):
        store.restarts.want(name, "ada", "ada", 1, at_once=False)
    report_all(store, host_id, epoch, guest_users=("ada",), logged_on_seen=True)
    wanted, is_new = store.restarts.want(name, "ada", "ada", 2, at_once=False)
    assert (is_new, wanted) == (True, store.desktops.find(name))
    assert not store.restarts.want(name, "ada", at_once=False)[1], "pressing twice restarts it once"
    at_once, is_new = store.restarts.want(name, "helper", at_once=True)
    assert (is_new, restart_key(at_once)) == (True, restart_key(wanted)), "the same one, in another way"
    assert events(store, "restart") == [f"{name} is restarted", f"{name} is restarted, its guest is not asked"]
    store.restarts.end(wanted, "gpu01: libvirt does not answer")
    assert store.desktops.find(name).restart_error == "gpu01: libvirt does not answer"
    report_all(store, host_id, epoch)
    again, is_new = store.restarts.want(name, "ada", at_once=False)
    assert (is_new, again.restart_error, restart_key(again) != restart_key(wanted)) == (True, None, True)
    store.restarts.end(wanted)
    assert store.desktops.find(name).restart_at == again.restart_at, "the end of a former one is not that of this one"
    store.restarts.end(again)
    done = store.desktops.find(name)
    assert (done.restart_at, done.report and (done.report.ready, done.report.guest_users)) == (None, (False, None))
    with pytest.raises(Refused, match=f"{name} cannot be restarted: it is starting, and only a desktop that runs"):
        store.restarts.want(name, "ada", at_once=False)


@pytest.mark.parametrize("change", ["stop", "release"])
def test_what_ends_its_run_ends_what_was_wanted(store: Store, change: str) -> None:
    _, host_id, epoch = with_desktops(store, 1)
    store.desktops.assign("office", "ada", "test")
    report_all(store, host_id, epoch)
    store.restarts.want("office-001", "ada", at_once=True)
    if change == "stop":
        store.desktops.set_power("office-001", "ada", on=False)
    else:
        store.desktops.release("office-001", "ada")
    row = store.desktops.find("office-001")
    assert (row.restart_at, row.restart_at_once, row.restart_error) == (None, False, None)
    with pytest.raises(Refused, match=r"cannot be restarted: it is (stopping|refreshing)"):
        store.restarts.want("office-001", "ada", at_once=False)


@pytest.mark.usefixtures("quick_helpers")
def test_a_user_restarts_his_desktop_and_keeps_it(own_store: Store, agent: RunningAgent, tmp_path: Path) -> None:
    store = own_store
    with guests_of(store, tmp_path) as guests:
        with_pool(store, agent, spare=1, maximum=1)
        with working(store) as service:
            wait_until(is_ready(store, 1), "a spare desktop")
            service.assign(ADMIN, "office", "ada")
            wait_until(lambda: store.desktops.find("office-001").handed_out, "the assignment")
            guests.of(store, "office-001").log_on("ada")
            wait_until(lambda: phase(service, "office-001") == "connected", "her log-on")
            with pytest.raises(NotFound):
                service.restart_desktop(EVE, "office-001")
            with pytest.raises(NotAllowed, match="for the operators of a pool"):
                service.restart_desktop(ADA, "office-001", at_once=True)
            before = store.desktops.find("office-001")
            guests.of(store, "office-001").log_off()
            wait_until(lambda: users(store, "office-001") == (), "her log-off")  # no late report of hers after the boot
            answer = service.restart_desktop(ADA, "office-001")
            assert (answer.changed, answer.data.phase, answer.data.host) == (True, "restarting", None)
            wait_until(lambda: store.desktops.find("office-001").restart_at is None, "the restart")
            wait_until(lambda: phase(service, "office-001") == "assigned", "its guest, with nobody logged on")
            after = store.desktops.find("office-001")
            assert (after.user, after.generation, resets()) == ("ada", before.generation, 1)
            assert after.report is not None
            assert (after.report.logged_off, after.report.after_silence) == (False, True)
            assert [one.actor for one in store.journal.list(0, 999) if one.kind == "restart"] == ["ada"]


def test_a_host_does_one_restart_once_for_whichever_controller(own_store: Store, agent: RunningAgent) -> None:
    """As after a controller that was killed before it stored that the restart was done."""
    with_pool(own_store, agent, spare=1, maximum=1)
    with working(own_store) as service:
        wait_until(is_ready(own_store, 1), "a desktop")
    pool, image = own_store.pools.find("office"), own_store.images.find("office")
    service.restart_desktop(ADMIN, "office-001", at_once=True)
    row = own_store.desktops.find("office-001")
    mark = DesktopMark(row.id, "office", own_store.incarnation, row.generation)
    action = RestartVm(row, mark, row.name, key=restart_key(row), at_once=True)
    here = connect_host(own_store.hosts.find("gpu01"))
    epoch = here.read_fleet().epoch or 0
    for number in (1, 2, 3):
        fence = Fence(own_store.incarnation, epoch + number, f"controller-{number}")
        here.host().announce_fleet(fence)
        carry_out(here, fence, action, pool, image)
    assert resets() == 1
    here.close()


@pytest.fixture
def deaf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningAgent]:
    """The agent of a host whose guests do not hear that they are to reboot."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    (tmp_path / "deaf.yaml").write_text(DEAF)
    (tmp_path / "agent").mkdir()
    with running(f"sim:{tmp_path}/deaf.yaml", tmp_path / "agent") as result:
        yield result


def test_a_guest_that_ignores_it_is_reset(own_store: Store, deaf: RunningAgent, tmp_path: Path) -> None:
    with_pool(own_store, deaf, spare=1, maximum=1)
    with working(own_store) as service:
        wait_until(is_ready(own_store, 1), "a desktop")
        service.restart_desktop(ADMIN, "office-001")
        wait_until(lambda: own_store.desktops.find("office-001").restart_at is None, "its restart")
        assert resets(f"{tmp_path}/deaf.yaml") == 1
        wait_until(is_ready(own_store, 1), "it is ready again")
        assert events(own_store, "restart-failed") == []


def test_one_that_failed_says_why(own_store: Store, agent: RunningAgent) -> None:
    """The VM was paused on its host meanwhile."""
    with_pool(own_store, agent, spare=1, maximum=1)
    with working(own_store) as service:
        wait_until(is_ready(own_store, 1), "a desktop")
        service.assign(ADMIN, "office", "ada")
        wait_until(lambda: own_store.desktops.find("office-001").handed_out, "the assignment")
    service.restart_desktop(ADA, "office-001")
    row = own_store.desktops.find("office-001")
    own_store.restarts.end(row, "gpu01: paused")
    assert service.show_desktop(ADMIN, "office-001").data.restart_error == "gpu01: paused"
    (mine,) = service.list_my_desktops(ADA).data
    assert (mine.restart_failed, service.show_desktop(ADA, "office-001").data.restart_error) == (
        True, "its host did not do it",
    )  # fmt: skip
    assert events(own_store, "restart-failed") == ["office-001: gpu01: paused"]


def test_a_vm_that_a_failed_restart_left_off_is_started_and_keeps_its_user(store: Store) -> None:
    """Its guest went off instead, and its host could not start it at once."""
    pool, host_id, epoch = with_desktops(store, 1)
    store.desktops.assign("office", "ada", "test")
    report_all(store, host_id, epoch, guest_users=("ada",), logged_on_seen=True, running_since=1.0, boot_id="b1")
    wanted, _ = store.restarts.want("office-001", "ada", at_once=False)
    store.restarts.end(wanted, "gpu01: the GPU is in use")
    row, host = store.desktops.find("office-001"), store.hosts.find("gpu01")
    vm = vm_of(row, state="stopped", guest_users=None, image=store.images.find("office").path)
    plan = plan_of([row], [vm], pool, replace(host, boot_id="b1"), now=now_of(store) + 1)
    assert (plan.powered_off, plan.reports[row.id].logged_off) == ((), False)
    assert [type(action).__name__ for action in plan.actions] == ["StartVm"]


def test_nobody_counts_as_logged_on_while_it_boots(store: Store) -> None:
    _, host_id, epoch = with_desktops(store, 1)
    store.desktops.assign("office", "ada", "test")
    report_all(store, host_id, epoch, guest_users=("ada",), logged_on_seen=True)
    wanted, _ = store.restarts.want("office-001", "ada", at_once=False)
    store.restarts.end(wanted)
    span = schema.use_span
    with store.database.read() as connection:
        rows = connection.execute(select(span.c.logged_on, span.c.until_at.is_(None)).order_by(span.c.id)).all()
    assert rows[-2:] == [(True, False), (None, True)]


class Answers:
    """A host that answers each reboot with the next of these; afterwards it does what it is asked."""

    def __init__(self, *errors: VgpuctlError, start: VgpuctlError | None = None) -> None:
        self.errors, self.start = [*errors], start
        self.asked: list[tuple[str, bool]] = []
        self._key = ""

    def host(self, _request: object, *, key: str = "") -> Answers:
        self._key = key or self._key
        return self

    def reboot_vm(self, _name: str, *, force: bool = False) -> None:
        self.asked.append((self._key, force))
        if self.errors:
            raise self.errors.pop(0)

    def start_vm(self, _name: str) -> None:
        if self.start is not None:
            raise self.start


def restarted(store: Store, link: Any) -> tuple[Desktop, Desktop]:
    """Have a host restart ada's desktop; return the row before and after that."""
    pool, host_id, epoch = with_desktops(store, 1)
    store.desktops.assign("office", "ada", "test")
    report_all(store, host_id, epoch)
    row, _ = store.restarts.want("office-001", "ada", at_once=False)
    mark = DesktopMark(row.id, "office", store.incarnation, row.generation)
    action = RestartVm(row, mark, row.name, key=restart_key(row))
    ended = threading.Event()
    moves = DesktopMoves(store, connect_host)
    calls = DesktopCalls(store, store.hosts.find("gpu01"), moves, lambda _: ended.set())
    calls.begin(link, Fence(store.incarnation, epoch, store.holder), action, pool, store.images.find("office"))
    assert ended.wait(60)
    calls.stop()
    return row, store.desktops.find("office-001")


@pytest.mark.parametrize(
    ("error", "is_same_key"),
    [
        (TooMany("x"), True), (Stopping("x"), True), (Unreachable("x"), True), (ResultUnknown("x"), True),
        (Busy("another command works on it"), False), (Locked("x"), False),
    ],
)  # fmt: skip
def test_what_its_host_did_not_begin_is_asked_again_later_and_resets_nothing(
    own_store: Store, error: VgpuctlError, is_same_key: bool
) -> None:
    link = Answers(error)
    before, after = restarted(own_store, link)
    assert [force for _, force in link.asked] == [False]
    assert (after.restart_error, after.errors) == (None, 0)
    assert 0 < after.not_before - now_of(own_store) <= 5, "not at once"
    assert wants_restart(after, now_of(own_store))
    assert (restart_key(after) == restart_key(before)) is is_same_key, "a host answers one key once"
    assert events(own_store, "restart-failed") == []


@pytest.mark.parametrize(
    ("link", "forces", "failed"),
    [
        (Answers(NotRebooted("deaf")), [False, True], None),
        (Answers(NotRebooted("deaf"), NotRebooted("not reported")), [False, True], "gpu01: not reported"),
        (Answers(PartlyApplied("off")), [False], None),
        (Answers(PartlyApplied("off"), start=Busy("x")), [False], None),
        (Answers(PartlyApplied("off"), start=Refused("no")), [False], "gpu01: no"),
    ],
)
def test_only_a_guest_that_was_asked_in_vain_is_reset(
    own_store: Store, link: Answers, forces: list[bool], failed: str | None
) -> None:
    _, after = restarted(own_store, link)
    assert [force for _, force in link.asked] == forces
    assert (after.restart_error, after.restart_at is None) == (failed, failed is None)
