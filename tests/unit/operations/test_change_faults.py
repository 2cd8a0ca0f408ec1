# SPDX-License-Identifier: Apache-2.0
"""attach, detach and set-vm: every call fails once, fails for good, or is the last one of a killed process."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.faults import CHANGING, Trial, acts_on_backends
from tests.hosts import SimulatedHost, context, create, open_sim_host, picture, request, run_reconcile, set_vm, start
from tests.unit.operations.test_faults import HOSTS
from vgpuctl.operations.attach import attach, detach
from vgpuctl.ports.host import Host

OTHER = {"vendor-vf": "A100-5C", "mdev-pf": "T4-4Q", "mdev-vf": "A16-4Q"}
ACTS = ["attach", "attach-off", "detach", "detach-off", "set-vm"]


def prepared(directory: Path, kind: str, act: str) -> SimulatedHost:
    """Return a host with the VM that the act needs, running or off."""
    text, profile = HOSTS[kind]
    host = open_sim_host(directory, text=text)
    off = act in ("attach-off", "detach-off", "set-vm")
    create(host.ports, request(profile, name="vm"), start=not off)
    return host.again()


def do(ports: Host, kind: str, act: str) -> object:
    """Run the act."""
    if act.startswith("detach"):
        return detach(ports, context(wait_seconds=5), "vm")
    if act == "set-vm":
        return set_vm(ports, request(OTHER[kind], name="vm", owner="ada"), "profile", "owner")
    wanted = request(HOSTS[kind][1], name="vm")
    return attach(ports, context(), wanted)


def whole(host: SimulatedHost, where: str) -> None:
    """Check that record, devices, definition and claims agree, and that the VM starts."""
    assert not run_reconcile(host.ports, dry_run=True).data.findings, where
    now = picture(host)
    devices = set(now.types) | set(now.mdevs)
    assert devices <= set(now.claims), where
    if not now.running:
        start(host.ports, "vm")
        now = picture(host)
    (held,) = now.running.values()
    assert set(held) == set(now.claims) == set(now.types) | set(now.mdevs), where


def trial_of(directory: Path, kind: str, act: str) -> Trial:
    return Trial(directory, partial(prepared, kind=kind, act=act), partial(do, kind=kind, act=act), whole)


@pytest.mark.parametrize(("act", "kind"), acts_on_backends(ACTS, HOSTS))
def test_whatever_call_fails_it_is_undone_or_reconcile_makes_it_whole(tmp_path: Path, kind: str, act: str) -> None:
    trial = trial_of(tmp_path, kind, act)
    calls = trial.calls()
    assert len(set(calls) & CHANGING) >= 3
    assert trial.failures(calls) >= 2


@pytest.mark.parametrize(("act", "kind"), acts_on_backends(ACTS, HOSTS))
def test_whatever_call_a_process_dies_in_reconcile_makes_it_whole(tmp_path: Path, kind: str, act: str, spawn) -> None:
    trial = trial_of(tmp_path, kind, act)
    assert trial.deaths(trial.calls(), spawn) >= 1
