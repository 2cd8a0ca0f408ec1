# SPDX-License-Identifier: Apache-2.0
"""apply with new vGPUs: every call fails once, fails for good, or is the last one of a killed process."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests import EVERYTHING
from tests.faults import CHANGING, Trial
from tests.hosts import SimulatedHost, open_sim_host, picture, run_reconcile
from tests.unit.operations.test_apply import run
from tests.unit.operations.test_faults import HOSTS, spawn
from tests.vgpus import spec_of
from vgpuctl.observe import ReadScope, observe
from vgpuctl.ports.host import Host

__all__ = ["spawn"]
UUIDS = ("83b8f4f2-509f-382f-3c1e-e6bfe0fa1001", "83b8f4f2-509f-382f-3c1e-e6bfe0fa1002")
CASES = [*HOSTS, "taken-over"] if EVERYTHING else ["vendor-vf", "taken-over"]


def text_of(kind: str, card: str, carriers: tuple[str, ...]) -> str:
    lines = [f'  v{n}: {{profile: {HOSTS[kind][1]}, gpu: "{card}", carrier: "{c}"}}\n' for n, c in enumerate(carriers)]
    return f"version: 1\nvgpus:\n{''.join(lines)}"


def prepared(directory: Path, kind: str, by_hand: str | None) -> SimulatedHost:
    """Return a host without vGPUs, or with a handmade mdev where the argument says."""
    host = open_sim_host(directory, text=HOSTS[kind][0])
    if by_hand is not None:
        host.ports.sysfs.write(by_hand, UUIDS[0])
    return host.again()


def do(ports: Host, text: str) -> object:
    return run(ports, file=text)


def whole(host: SimulatedHost, where: str, text: str, by_hand: str | None) -> None:
    """Check that everything has an owner, that no mdev was lost, and that a second run of the command completes it.

    host.yaml may name a missing vGPU only where undoing the change of host.yaml failed too.
    """
    findings = {f.kind for f in run_reconcile(host.ports, dry_run=True).data.findings}
    now = picture(host)
    kept = {v.carrier for v in spec_of(host).vgpus.values()}
    others = {UUIDS[0]} - kept if by_hand is not None else set()
    devices = {*now.mdevs, *now.types}
    assert others <= devices, where
    if "host_file" in where and "for good=True" in where:
        assert findings <= {"vgpu-missing"}, where
        assert {*devices - others, *now.claims} <= kept, where
    else:
        assert not findings, where
        assert devices - others == kept == set(now.claims), where
    run(host.ports, file=text)
    now = picture(host)
    assert len({*now.mdevs, *now.types}) == 2 == len(now.claims), where
    assert not run_reconcile(host.ports, dry_run=True).data.findings, where


def trial_of(directory: Path, case: str) -> Trial:
    kind = "mdev-pf" if case == "taken-over" else case
    (gpu,) = observe(open_sim_host(directory / "look", text=HOSTS[kind][0]).ports, ReadScope(types=True)).gpus
    carriers = tuple(f.address for f in gpu.functions) if kind == "vendor-vf" else UUIDS
    text = text_of(kind, gpu.address, carriers)
    type_id = next(t.type_id for t in gpu.types if t.profile == HOSTS[kind][1])
    by_hand = f"{gpu.path}/mdev_supported_types/{type_id}/create" if case == "taken-over" else None
    return Trial(
        directory,
        partial(prepared, kind=kind, by_hand=by_hand),
        partial(do, text=text),
        partial(whole, text=text, by_hand=by_hand),
    )


@pytest.mark.parametrize("case", CASES)
def test_whatever_call_fails_it_is_undone_or_reconcile_makes_it_whole(tmp_path: Path, case: str) -> None:
    trial = trial_of(tmp_path, case)
    calls = trial.calls()
    assert len([c for c in calls if c in CHANGING]) >= 4
    assert trial.failures(calls) >= 1


@pytest.mark.parametrize("case", CASES)
def test_whatever_call_a_process_dies_in_reconcile_makes_it_whole(tmp_path: Path, case: str, spawn) -> None:
    trial = trial_of(tmp_path, case)
    assert trial.deaths(trial.calls(), spawn) >= 1
