# SPDX-License-Identifier: Apache-2.0
"""create-vgpu and delete-vgpu: every call fails once, fails for good, or is the last one of a killed process."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.faults import CHANGING, Trial, acts_on_backends, failing, fault_points, outcome
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


def whole(host: SimulatedHost, where: str) -> None:
    """Finish what a crash left, as an admin would: reconcile, then restore-host."""
    run_reconcile(host.ports)
    restore(host, spec_of(host))
    assert finding_kinds(host) == [], where
    now = picture(host)
    kept = {v.carrier for v in spec_of(host).vgpus.values()}
    assert set(now.mdevs) | set(now.types) == kept == set(now.claims), where


def trial_of(directory: Path, kind: str, act: str) -> Trial:
    return Trial(directory, partial(prepared, kind=kind, act=act), partial(do, kind=kind, act=act), whole)


@pytest.mark.parametrize(("act", "kind"), acts_on_backends(["create", "delete"], HOSTS))
def test_whatever_call_fails_nothing_is_without_an_owner(tmp_path, kind, act):
    trial = trial_of(tmp_path, kind, act)
    calls = trial.calls()
    assert len(set(calls) & CHANGING) >= 3
    refused = 0
    for number, done, for_good in fault_points(calls, every_read=False):
        where = f"{act} on {kind}, call {number} {calls[number - 1]}, done={done}, for good={for_good}"
        host = trial.host(f"{number}{done}{for_good}")
        before, text = picture(host), host.ports.host_file.read()
        faulty = failing(host.ports, number, done=done, for_good=for_good)
        error = outcome(partial(trial.act, faulty))
        refused += error is not None
        changed = (picture(host), host.ports.host_file.read()) != (before, text)
        if error is not None and changed and act == "create" and spec_of(host).vgpus:
            assert error.left or for_good, where
        whole(host.again(), where)
        host.sim.close()
    assert refused >= 3


@pytest.mark.parametrize(("act", "kind"), acts_on_backends(["create", "delete"], HOSTS))
def test_whatever_call_is_a_killed_processs_last_nothing_is_without_an_owner(tmp_path, kind, act, spawn):
    trial = trial_of(tmp_path, kind, act)
    assert trial.deaths(trial.calls(), spawn) >= 1, "the kills left nothing to mend, so they prove nothing"
