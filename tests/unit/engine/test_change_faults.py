# SPDX-License-Identifier: Apache-2.0
"""attach, detach and set-profile: every call fails once, fails for good, or is the last one of a killed process."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.faults import CHANGING, counted, dying, failing, outcome
from tests.unit.engine.test_faults import HOSTS, fault_points, spawn
from tests.worlds import WAIT_SECONDS, Host, Silent, create, mend, open_host, picture, start, stop, wish
from vgpuctl.engine.attach import attach, detach
from vgpuctl.engine.change import set_profile
from vgpuctl.model.world import World

__all__ = ["spawn"]
OTHER = {"vendor-vf": "A100-5C", "mdev-pf": "T4-4Q", "mdev-vf": "A16-4Q"}
ACTS = ["attach", "attach-off", "detach", "detach-off", "set-profile"]


def prepared(directory: Path, kind: str, act: str) -> Host:
    """Return a host with the VM on which the act is due, running or off."""
    text, profile = HOSTS[kind]
    host = open_host(directory, text=text)
    off = act in ("attach-off", "detach-off", "set-profile")
    create(host.world, wish(profile, name="vm"), start=not off)
    return host.again()


def do(world: World, kind: str, act: str) -> object:
    """Do it."""
    if act.startswith("detach"):
        return detach(world, "vm", dry_run=False, wait_seconds=5, progress=Silent())
    wanted = wish(OTHER[kind] if act == "set-profile" else HOSTS[kind][1], name="vm")
    change = set_profile if act == "set-profile" else attach
    return change(world, wanted, dry_run=False, wait_seconds=WAIT_SECONDS, progress=Silent())


def whole(host: Host, where: str) -> None:
    """See that record, devices, definition and claims tell the same, and that the VM is one that starts."""
    assert not mend(host.world, dry_run=True).data["findings"], where
    now = picture(host)
    devices = set(now.types) | set(now.mdevs)
    assert devices <= set(now.claims), where
    if not now.running:
        start(host.world, "vm")
        now = picture(host)
    (held,) = now.running.values()
    assert set(held) == set(now.claims) == set(now.types) | set(now.mdevs), where


@pytest.mark.parametrize("kind", HOSTS)
@pytest.mark.parametrize("act", ACTS)
def test_whatever_call_fails_it_is_undone_or_reconcile_makes_it_whole(tmp_path: Path, kind: str, act: str) -> None:
    calls = counted(prepared(tmp_path / "dry", kind, act).world, lambda w: do(w, kind, act))
    assert len(set(calls) & CHANGING) >= 3
    refused = 0
    for number, done, for_good in fault_points(calls, every_read=False):
        where = f"{act} on {kind}, call {number} {calls[number - 1]}, done={done}, for good={for_good}"
        host = prepared(tmp_path / f"{number}{done}{for_good}", kind, act)
        before = picture(host)
        error = outcome(partial(do, failing(host.world, number, done=done, for_good=for_good), kind, act))
        host.sim.close()
        if error is None:
            assert picture(host) != before, where
            continue
        refused += 1
        if picture(host) != before:
            partly = error.code == "partly-applied" and bool(error.left)
            claim = for_good and calls[number - 1].startswith("claims.")
            assert partly or claim, where
            later = host.again()
            mend(later.world)
            whole(later, where)
    assert refused >= 5


def _die(directory: str, kind: str, act: str, number: int, done: bool) -> None:
    host = open_host(Path(directory), text=HOSTS[kind][0], later=1)
    do(dying(host.world, number, done=done), kind, act)


@pytest.mark.parametrize("kind", HOSTS)
@pytest.mark.parametrize("act", ACTS)
def test_whatever_call_a_process_dies_in_reconcile_makes_it_whole(tmp_path: Path, kind: str, act: str, spawn) -> None:
    calls = counted(prepared(tmp_path / "dry", kind, act).world, lambda w: do(w, kind, act))
    found = 0
    for number, done in [(n, d) for n, c in enumerate(calls, 1) if c in CHANGING for d in (False, True)]:
        where = f"{act} on {kind}, killed in call {number} {calls[number - 1]}, done={done}"
        directory = tmp_path / f"{number}{done}"
        prepared(directory, kind, act)
        child = spawn.Process(target=_die, args=(str(directory), kind, act, number, done))
        child.start()
        child.join(30)
        assert child.exitcode == -9, where
        later = open_host(directory, text=HOSTS[kind][0], later=2)
        found += bool(mend(later.world, dry_run=True).data["findings"])
        mend(later.world)
        whole(later, where)
    assert found >= 2


def test_stopping_and_starting_after_a_detach_makes_nothing_again(tmp_path: Path) -> None:
    host = prepared(tmp_path, "vendor-vf", "detach")
    do(host.world, "vendor-vf", "detach")
    stop(host.world, "vm")
    host.sim.reboot()
    start(host.world, "vm")
    assert picture(host).types == {}
