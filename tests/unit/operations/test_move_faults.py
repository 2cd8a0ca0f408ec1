# SPDX-License-Identifier: Apache-2.0
"""A VM that reserves nothing while off: every call of its start, stop, change and end fails or is killed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.faults import CHANGING, Trial, acts_on_backends
from tests.hosts import SimulatedHost, create, delete, picture, request, run_reconcile, start, stop
from tests.reserving_vms import SMALL, reserving_request, small
from tests.unit.operations.test_change import ensure
from tests.unit.operations.test_faults import spawn
from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

__all__ = ["spawn"]
ACTS = ["start", "stop", "delete", "to-running", "to-always"]


def prepared(directory: Path, kind: str, act: str) -> SimulatedHost:
    """Return a host with the VM, and with another one in the place that its record names."""
    host, profile = small(directory, kind, gpus=2 if kind == "mdev-pf" else 1)
    create(
        host.ports,
        request(profile, name="vm") if act == "to-running" else reserving_request(profile, "vm"),
        start=False,
    )
    (domain,) = host.ports.hypervisor.domains()
    record = parse_domain(domain.xml, domain.state, host.ports.machine_id).record
    assert record is not None
    if act != "to-running":
        create(host.ports, request(profile, name="kept", gpu=record.vgpus[0].gpu))
        if kind == "mdev-pf":
            create(host.ports, request(profile, name="kept-2", gpu=record.vgpus[0].gpu))
    if act in ("stop", "delete"):
        start(host.ports, "vm")
    return host.again()


def do(ports: Host, kind: str, act: str) -> object:
    """Run the act."""
    if act in ("start", "stop", "delete"):
        return {"start": start, "stop": stop, "delete": delete}[act](ports, "vm")
    reserve = act.removeprefix("to-")
    wanted = replace(request(SMALL[kind][1], name="vm", reserve=reserve), sources={"reserve": "command-line"})
    return ensure(SimulatedHost(ports, None, Path(), ""), wanted)  # type: ignore[arg-type]


def whole(host: SimulatedHost, where: str) -> None:
    """Check that everything has an owner, that the other VMs are unchanged, and that the VM starts."""
    assert not run_reconcile(host.ports, dry_run=True).data.findings, where
    now = picture(host)
    devices = set(now.types) | set(now.mdevs)
    assert devices <= set(now.claims), where
    others = [uuid for uuid, (name, _) in now.domains.items() if name.startswith("kept")]
    assert all(set(now.running[uuid]) <= devices for uuid in others), where
    for name in [name for name, _ in now.domains.values() if name == "vm"]:
        start(host.ports, name)
        now = picture(host)
        held = [carrier for running in now.running.values() for carrier in running]
        assert sorted(held) == sorted(now.claims) == sorted({*now.types, *now.mdevs}), where


def trial_of(directory: Path, kind: str, act: str) -> Trial:
    return Trial(directory, partial(prepared, kind=kind, act=act), partial(do, kind=kind, act=act), whole)


@pytest.mark.parametrize(("act", "kind"), [*((act, "vendor-vf") for act in ACTS), ("start", "mdev-pf")])
def test_whatever_call_fails_it_is_undone_or_reconcile_makes_it_whole(tmp_path: Path, kind: str, act: str) -> None:
    trial = trial_of(tmp_path, kind, act)
    calls = trial.calls()
    assert len(set(calls) & CHANGING) >= 2
    assert trial.failures(calls) >= 1


@pytest.mark.parametrize(("act", "kind"), acts_on_backends(ACTS, ["vendor-vf", "mdev-pf"]))
def test_whatever_call_a_process_dies_in_reconcile_makes_it_whole(tmp_path: Path, kind: str, act: str, spawn) -> None:
    trial = trial_of(tmp_path, kind, act)
    assert trial.deaths(trial.calls(), spawn) >= 1
