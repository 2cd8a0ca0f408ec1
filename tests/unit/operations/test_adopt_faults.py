# SPDX-License-Identifier: Apache-2.0
"""adopt and adopt --release: every call fails once, fails for good, or is the last one of a killed process.

What is left is a VM that is managed whole, or not at all; its devices and its definition are never touched. The same
for two commands at once, and for a VM that is undefined before anybody cleans up.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import pytest

from tests.adopting import KINDS, carrier_of, host_with, let_go, take, text_of
from tests.faults import CHANGING, Trial, acts_on_backends
from tests.hosts import SimulatedHost, context, open_sim_host, operation, picture, run_reconcile
from tests.reserving_vms import vm_of
from vgpuctl.errors import VgpuctlError
from vgpuctl.host.processes import HostClock
from vgpuctl.operations.adopt import adopt, release
from vgpuctl.operations.attach import detach
from vgpuctl.ports.host import Host

ACTS = ["adopt", "adopt-off", "release", "release-off", "detach", "detach-off"]
WAIT_SECONDS = 120


def prepared(directory: Path, kind: str, act: str) -> SimulatedHost:
    """Return a host with the VM that the act needs."""
    host = host_with(directory, kind, running=not act.endswith("-off"))
    take(host)
    if act.startswith("adopt"):
        let_go(host)
    return host.again()


def do(ports: Host, act: str) -> object:
    """Run the act."""
    if act.startswith("adopt"):
        return adopt(ports, context(), "desk")
    if act.startswith("release"):
        return release(ports, context(), "desk")
    return detach(ports, context(wait_seconds=5), "desk")


def whole(host: SimulatedHost, where: str, *, devices: bool = True) -> None:
    """Check that record, claims and devices agree."""
    assert not run_reconcile(host.ports, dry_run=True).data.findings, where
    vm, now = vm_of(host, "desk"), picture(host)
    recorded = {v.carrier for v in vm.record.vgpus} if vm.record is not None else set()
    assert set(now.claims) == recorded, where
    if vm.record is not None:
        assert not vm.record.created_vm, where
        assert all(v.adopted for v in vm.record.vgpus), where
    if devices:
        assert {h.carrier for h in vm.hostdevs} == {carrier_of(host)}, where


def untouched(host: SimulatedHost, where: str, before: Any) -> None:
    """Check that record and claims agree and that nothing else changed."""
    whole(host, where)
    now = picture(host)
    assert (now.mdevs, now.types, now.running, now.drivers) == (
        before.mdevs, before.types, before.running, before.drivers,
    ), where  # fmt: skip


def trial_of(directory: Path, kind: str, act: str) -> Trial:
    detaches = act.startswith("detach")
    before = None if detaches else picture(prepared(directory / "before", kind, act))
    check = partial(whole, devices=False) if detaches else partial(untouched, before=before)
    return Trial(directory, partial(prepared, kind=kind, act=act), partial(do, act=act), check)


@pytest.mark.parametrize(("act", "kind"), acts_on_backends(ACTS, KINDS))
def test_whatever_call_fails_it_is_undone_or_reconcile_makes_it_whole(tmp_path: Path, kind: str, act: str) -> None:
    trial = trial_of(tmp_path, kind, act)
    calls = trial.calls()
    assert len(set(calls) & CHANGING) >= 2
    assert trial.failures(calls) >= 2


@pytest.mark.parametrize(("act", "kind"), acts_on_backends(ACTS, KINDS))
def test_whatever_call_a_process_dies_in_reconcile_makes_it_whole(
    tmp_path: Path, kind: str, act: str, spawn: BaseContext
) -> None:
    trial = trial_of(tmp_path, kind, act)
    calls = trial.calls()
    kinds = set()
    for _, _, where, later in trial.killed(calls, spawn):
        kinds |= {f.kind for f in run_reconcile(later.ports).data.findings}
        trial.whole(later, where)
    assert kinds or not act.startswith("adopt")
    assert kinds <= {"half-adopted", "half-attached", "half-changed", "leaked"}, kinds


@pytest.mark.parametrize("act", ["adopt", "release-off"])
@pytest.mark.parametrize("kind", ["mdev-pf", "vendor-vf"])
def test_a_kill_and_an_undefine_leave_the_device_alone(tmp_path: Path, kind: str, act: str, spawn: BaseContext) -> None:
    """A command was killed before vgpuctl owned the device, or after it had let it go: reconcile must not remove it."""
    trial = trial_of(tmp_path, kind, act)
    half_done = 0
    for _, _, where, later in trial.killed(trial.calls(), spawn):
        vm, devices = vm_of(later, "desk"), (picture(later).mdevs, picture(later).types)
        if vm.record is not None:
            continue
        later.ports.hypervisor.destroy(vm.uuid)
        later.ports.hypervisor.undefine(vm.uuid)
        findings = run_reconcile(later.again().ports).data.findings
        assert {f.kind for f in findings} <= {"half-adopted"}, where
        half_done += len(findings)
        assert (picture(later).mdevs, picture(later).types) == devices, where
        assert picture(later).claims == {}, where
    assert half_done


def _run(directory: str, release_it: bool, ready: Any, answers: Any) -> None:
    host = open_sim_host(Path(directory), str(Path(directory) / "scenario.yaml"), clock=HostClock())
    ready.wait(WAIT_SECONDS)
    try:
        with operation(host.ports):
            outcome = (release if release_it else adopt)(host.ports, context(), "desk")
        answers.put("changed" if outcome.changed else "unchanged")
    except VgpuctlError as error:
        answers.put(error.code)
    except Exception as error:  # noqa: BLE001 - the parent needs the error, or it waits forever
        answers.put(repr(error))


@pytest.mark.parametrize("acts", [(False, False, False), (True, True), (False, True, False, True)])
def test_commands_at_once_leave_a_vm_that_is_managed_or_not(
    tmp_path: Path, acts: tuple[bool, ...], spawn: BaseContext
) -> None:
    host = open_sim_host(tmp_path, text=text_of("vendor-vf"))
    if not acts[0] or len(acts) == 2:
        take(host)
        let_go(host) if not acts[0] else None
    before = picture(host)
    ready, answers = spawn.Barrier(len(acts)), spawn.Queue()
    children = [spawn.Process(target=_run, args=(str(host.directory), one, ready, answers)) for one in acts]
    for child in children:
        child.start()
    result = Counter(answers.get(timeout=WAIT_SECONDS) for _ in acts)
    for child in children:
        child.join(WAIT_SECONDS)
    assert set(result) <= {"changed", "unchanged", "busy"}, result
    if len(set(acts)) == 1:
        assert result["changed"] == 1, result
        assert (vm_of(host, "desk").record is None) == acts[0]
    untouched(host.again(), str(result), before)
