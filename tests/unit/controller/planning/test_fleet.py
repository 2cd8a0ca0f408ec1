# SPDX-License-Identifier: Apache-2.0
"""A small fleet in which the plans are carried out: whatever happens, what is wanted is reached mixed up."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.controller.planning.fleets import HOST, NEW_IMAGE, Fleet, pool_of, without_time
from vgpuctl.controller.model import FleetHostState, Logon, PoolState, ReadyWhen
from vgpuctl.controller.planning.host_plan import DeleteVm
from vgpuctl.controller.planning.logons import NOBODY
from vgpuctl.controller.planning.phase import PhaseWord, is_assignable, phase_of
from vgpuctl.value import replace

HOSTS = (HOST, replace(HOST, id="h2", name="host-2"))
KINDS = ("floating", "dedicated", "fixed")
LOGONS = (None, Logon.DOMAIN, Logon.LOCAL)


@dataclass
class Event:
    kind: str
    number: int
    size: int


EVENTS = {
    "step": 40, "assign": 20, "log-on": 20, "log-off": 6, "switch-off": 3, "lose": 2, "release": 4, "fail": 2,
    "stray": 2, "resize": 2, "image": 1, "cordon": 1, "drain": 1, "activate": 2, "open": 3, "wait": 1, "delete": 2,
    "reboot": 1,
}  # fmt: skip
"""How often what happens."""


def history_of(chance: Random) -> list[Event]:
    kinds = chance.choices([*EVENTS], [*EVENTS.values()], k=chance.randrange(150))
    return [Event(kind, chance.randrange(10), chance.randint(1, 8)) for kind in kinds]


def fleet_pool(kind: str = "floating", **changes):
    return pool_of(kind, ready_when=ReadyWhen.GUEST, **changes)


def happen(fleet: Fleet, event: Event) -> None:
    ids = sorted(id for id, row in fleet.rows.items() if row.host_id is not None)
    acts = {
        "log-on": fleet.log_on, "log-off": fleet.log_off, "switch-off": fleet.switch_off, "lose": fleet.lose,
        "release": fleet.release, "stray": fleet.log_on_stray, "open": fleet.open, "delete": fleet.delete,
    }  # fmt: skip
    host = HOSTS[event.number % 2].id
    states = {"cordon": FleetHostState.CORDONED, "drain": FleetHostState.DRAINING, "activate": FleetHostState.ACTIVE}
    if event.kind in acts:
        if ids:
            acts[event.kind](ids[event.number % len(ids)])
    elif event.kind in states:
        fleet.hosts[host] = replace(fleet.hosts[host], state=states[event.kind])
    elif event.kind == "resize":
        spec = fleet.pool.spec
        fleet.pool = replace(fleet.pool, spec=replace(spec, maximum=event.size, spare=min(spec.spare, event.size)))
    else:
        {
            "assign": lambda: fleet.assign(f"user-{event.number}"),
            "fail": lambda: setattr(fleet, "failures", 1),
            "image": lambda: setattr(fleet, "image", NEW_IMAGE),
            "reboot": lambda: fleet.reboot(host),
            "step": fleet.step,
            "wait": lambda: fleet.step(1500.0),
        }[event.kind]()


def check(fleet: Fleet) -> None:
    for row in fleet.rows.values():
        host = fleet.hosts.get(row.host_id or "")
        if is_assignable(row, fleet.pool, host, fleet.now):
            assert row.report is not None
            assert not row.report.dirty
            assert row.report.generation == row.generation
            assert row.user is None
        phase_of(row, fleet.pool, host, fleet.now)
    assert all(row.absent for row in fleet.deleted), "only an absent row leads to a deletion"
    names = [row.name for row in fleet.rows.values()]
    assert len(set(names)) == len(names)


@given(st.integers(0, 1 << 32))
def test_whatever_happens_the_fleet_gets_what_is_wanted(seed):
    chance = Random(seed)
    kind = chance.choice(KINDS)
    on_logoff = "refresh" if kind == "floating" else chance.choice(("keep", "stop", "refresh"))
    logon = chance.choice(LOGONS) if kind != "fixed" else None
    sizes = {"maximum": 6, "spare": chance.randrange(7)}
    prepared = on_logoff == "refresh" and kind != "fixed" and chance.random() < 0.5
    fleet = Fleet(fleet_pool(kind, on_logoff=on_logoff, logon=logon, prepared=prepared, **sizes), HOSTS)
    history = history_of(chance)
    for event in history:
        happen(fleet, event)
        check(fleet)
    fleet.failures = 0
    for row in list(fleet.rows.values()):
        fleet.log_off_stray(row.id)
    fleet.hosts = {id: replace(host, state=FleetHostState.ACTIVE) for id, host in fleet.hosts.items()}
    fleet.now += 3600
    fleet.pool = replace(fleet.pool, state=PoolState.ACTIVE)
    for id, row in fleet.rows.items():  # as the database does where people resume a pool
        fleet.rows[id] = replace(row, errors=0, not_before=0.0)
    fleet.settle()
    check(fleet)
    reached(fleet)


def reached(fleet: Fleet) -> None:
    spec = fleet.pool.spec
    assert fleet.pool.state is PoolState.ACTIVE
    rows = list(fleet.rows.values())
    used = [row for row in rows if row.user is not None]
    unused = [row for row in rows if row.user is None]
    assert not [row for row in rows if row.absent]
    if spec.kind == "fixed":
        assert len(rows) == spec.maximum
    else:
        assert len(unused) == max(0, min(spec.spare, spec.maximum - len(used)))
    for row in unused:
        assert phase_of(row, fleet.pool, fleet.hosts[row.host_id or ""], fleet.now).word is PhaseWord.READY
        assert row.image_id == fleet.image.id
        assert row.report is not None
        assert row.report.image == fleet.image.path
        assert fleet.vms[row.host_id or ""][row.id].prepared == spec.prepared
        assert fleet.let_in.get(row.id) == (None if spec.logon is None else NOBODY)
    for row in used:
        phase = phase_of(row, fleet.pool, fleet.hosts[row.host_id or ""], fleet.now)
        assert phase.word in (PhaseWord.ASSIGNED, PhaseWord.CONNECTED, PhaseWord.OFF, PhaseWord.LOST), phase
    with_vm = {id for vms in fleet.vms.values() for id in vms}
    lost = {row.id for row in used if row.report is not None and not row.report.exists}
    assert with_vm == fleet.rows.keys() - lost


@given(st.integers(0, 1 << 32))
def test_a_pool_that_changes_whom_its_guests_let_in(seed):
    chance = Random(seed)
    fleet = Fleet(fleet_pool(chance.choice(KINDS[:2]), maximum=4, spare=2, logon=chance.choice(LOGONS)), HOSTS)
    for event in history_of(chance):
        if event.kind == "log-on":  # whether he may is not certain between the change and the next look
            fleet.pool = replace(fleet.pool, spec=replace(fleet.pool.spec, logon=LOGONS[event.number % 3]))
        elif event.kind not in ("stray", "image", "resize"):
            happen(fleet, event)
            check(fleet)
    fleet.failures = 0
    fleet.hosts = {id: replace(host, state=FleetHostState.ACTIVE) for id, host in fleet.hosts.items()}
    fleet.pool = replace(fleet.pool, state=PoolState.ACTIVE)
    for id, row in fleet.rows.items():
        fleet.rows[id] = replace(row, errors=0, not_before=0.0, power_on=True)
    fleet.now += 3600
    fleet.settle()
    logon = fleet.pool.spec.logon
    for row in fleet.rows.values():
        let_in = fleet.let_in.get(row.id)
        if row.report is None or not row.report.exists:
            assert row.user is not None
        elif row.user is None:
            assert let_in == (None if logon is None else NOBODY)
        elif row.power_on:  # else its user has switched it off
            assert row.handed_out
            allowed = {f"{logon}:{row.user}"} if logon else {None, *(f"{one}:{row.user}" for one in Logon)}
            assert let_in in allowed


@given(st.integers(0, 1 << 32))
def test_a_plan_that_was_carried_out_gives_nothing_new(seed):
    chance = Random(seed)
    fleet = Fleet(fleet_pool(chance.choice(KINDS), maximum=4, spare=2), HOSTS)
    for event in history_of(chance):
        happen(fleet, event)
    before = {id: replace(row, report=without_time(row.report)) for id, row in fleet.rows.items()}
    fleet.tick()
    first = {id: replace(row, report=without_time(row.report)) for id, row in fleet.rows.items()}
    changes = fleet.tick()
    second = {id: replace(row, report=without_time(row.report)) for id, row in fleet.rows.items()}
    assert first == second, (before, changes)


def test_vms_without_rows_are_left_alone():
    fleet = Fleet(fleet_pool(maximum=5, spare=3), HOSTS)
    fleet.settle()
    machines = {id: dict(vms) for id, vms in fleet.vms.items()}
    fleet.rows.clear()
    fleet.pool = replace(fleet.pool, spec=replace(fleet.pool.spec, spare=0))
    for _ in range(10):
        fleet.step()
        assert not [action for _, action in fleet.begun if isinstance(action, DeleteVm)]
    assert fleet.vms == machines


@pytest.mark.parametrize("kind", ["floating", "dedicated"])
def test_a_pool_grows_and_shrinks_to_its_spares(kind):
    fleet = Fleet(fleet_pool(kind, maximum=8, spare=5), HOSTS)
    fleet.settle()
    users = [fleet.assign(f"user-{number}") for number in range(3)]
    fleet.settle()
    assert len(fleet.rows) == 8
    fleet.pool = replace(fleet.pool, spec=replace(fleet.pool.spec, maximum=2, spare=1))
    fleet.settle()
    assert sorted(fleet.rows) == sorted(row.id for row in users if row is not None)


def test_a_new_image_leaves_enough_ready():
    fleet = Fleet(fleet_pool(maximum=6, spare=6, max_unavailable=2), HOSTS)
    fleet.settle()
    fleet.image = NEW_IMAGE
    for _ in range(40):
        fleet.step()
        ready = [
            r for r in fleet.rows.values() if is_assignable(r, fleet.pool, fleet.hosts[r.host_id or ""], fleet.now)
        ]
        assert len(ready) >= 4
    assert all(row.report.image == NEW_IMAGE.path for row in fleet.rows.values())
