# SPDX-License-Identifier: Apache-2.0
"""create-vgpu and delete-vgpu: every call fails once, fails for good, or is the last one of a killed process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import CHANGING, counted, dying, failing, fault_points, outcome
from tests.hosts import SimulatedHost, open_sim_host, picture, run_reconcile
from tests.unit.operations.test_faults import HOSTS, spawn
from tests.unit.operations.test_restore import restore
from tests.vgpus import drop, finding_kinds, make, spec_of
from vgpuctl.ports.host import Host

__all__ = ["spawn"]


def prepared(directory: Path, kind: str, act: str) -> SimulatedHost:
    host = open_sim_host(directory, text=HOSTS[kind][0])
    if act == "delete":
        make(host.ports, HOSTS[kind][1])
    return host.again()


def do(ports: Host, kind: str, act: str) -> object:
    return make(ports, HOSTS[kind][1]) if act == "create" else drop(ports)


def settle(host: SimulatedHost) -> None:
    """Finish what a crash left, as an admin would: reconcile, then restore-host."""
    run_reconcile(host.ports)
    restore(host, spec_of(host))
    assert finding_kinds(host) == []
    now = picture(host)
    kept = {v.carrier for v in spec_of(host).vgpus.values()}
    assert set(now.mdevs) | set(now.types) == kept == set(now.claims)


@pytest.mark.parametrize("kind", HOSTS)
@pytest.mark.parametrize("act", ["create", "delete"])
def test_whatever_call_fails_nothing_is_without_an_owner(tmp_path, kind, act):
    calls = counted(prepared(tmp_path / "dry", kind, act).ports, lambda w: do(w, kind, act))
    assert len(set(calls) & CHANGING) >= 3
    refused = 0
    for number, done, for_good in fault_points(calls, every_read=False):
        where = f"{act} on {kind}, call {number} {calls[number - 1]}, done={done}, for good={for_good}"
        host = prepared(tmp_path / f"{number}{done}{for_good}", kind, act)
        before, text = picture(host), host.ports.host_file.read()
        faulty = failing(host.ports, number, done=done, for_good=for_good)
        error = outcome(lambda faulty=faulty: do(faulty, kind, act))
        refused += error is not None
        changed = (picture(host), host.ports.host_file.read()) != (before, text)
        if error is not None and changed and act == "create" and spec_of(host).vgpus:
            assert error.left or for_good, where
        settle(host.again())
        host.sim.close()
    assert refused >= 3


def _die(directory: str, kind: str, act: str, number: int, done: bool) -> None:
    host = open_sim_host(Path(directory), text=HOSTS[kind][0])
    do(dying(host.ports, number, done=done), kind, act)


@pytest.mark.parametrize("kind", HOSTS)
@pytest.mark.parametrize("act", ["create", "delete"])
def test_whatever_call_is_a_killed_processs_last_nothing_is_without_an_owner(tmp_path, kind, act, spawn):
    calls = counted(prepared(tmp_path / "dry", kind, act).ports, lambda w: do(w, kind, act))
    left = 0
    for number, call in enumerate(calls, start=1):
        for done in (False, True) if call in CHANGING else ():
            directory = tmp_path / f"{number}{done}"
            host = prepared(directory, kind, act)
            child = spawn.Process(target=_die, args=(str(directory), kind, act, number, done))
            child.start()
            child.join(30)
            assert child.exitcode == -9, f"{act} on {kind}, killed in call {number} {call}, done={done}"
            later = host.again()
            left += finding_kinds(later) != []
            settle(later)
            host.sim.close()
    assert left >= 2, "the kills left nothing to mend, so they prove nothing"
