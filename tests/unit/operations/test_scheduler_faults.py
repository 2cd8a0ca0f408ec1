# SPDX-License-Identifier: Apache-2.0
"""set-scheduler --drain: on a signal, a failed call or a killed process, VMs and vGPUs are restored in the end."""

from __future__ import annotations

from functools import partial

import pytest

from tests.faults import CHANGING, Trial, failing, fault_points, outcome
from tests.hosts import WAIT_SECONDS, create, open_sim_host, picture, request, run_reconcile, start
from tests.layouts import Signals, StrikesTheRequest, Struck
from tests.schedulers import EQUAL, POOL, TWO_MS, act, everything, small, with_vms
from tests.unit.operations.test_faults import spawn
from vgpuctl.errors import Interrupted
from vgpuctl.model.vgpu_scheduler import SchedulerSpec
from vgpuctl.value import replace

__all__ = ["spawn"]


def test_a_signal_while_devices_are_suspended_restores_everything(tmp_path):
    host, signals = with_vms(open_sim_host(tmp_path)), Signals()
    before = everything(host)
    struck = replace(host.ports, nvml=Struck(host.ports.nvml, signals, lambda name, _: name == "set_scheduler"))
    with pytest.raises(Interrupted) as raised:
        act(struck, TWO_MS, drain=True, progress=signals)
    assert (everything(host), raised.value.left) == (before, [])


@pytest.mark.parametrize("call", ["find_domain", "shutdown"])
def test_a_signal_just_before_the_request_to_shut_down_leaves_the_vm_running(tmp_path, call):
    host = with_vms(open_sim_host(tmp_path))
    signals = StrikesTheRequest(host.ports.hypervisor, call)
    before, begun = everything(host), host.ports.clock.monotonic()
    with pytest.raises(Interrupted) as raised:
        act(replace(host.ports, hypervisor=signals.port()), TWO_MS, drain=True, progress=signals)
    assert (everything(host), raised.value.left) == (before, [])
    assert host.ports.clock.monotonic() - begun < WAIT_SECONDS, "it waited for a guest that nobody asked"


def prepared(directory, is_configured=False):
    """Return a host with a running VM; `is_configured`: the GPU has a scheduler."""
    host = small(directory, more=POOL)
    if is_configured:
        act(host.ports, SchedulerSpec(EQUAL))
    create(host.ports, request("A100-4C", name="on"))
    return host.again()


def change(ports):
    return act(ports, TWO_MS, drain=True)


@pytest.mark.parametrize("is_configured", [False, True], ids=["first", "configured"])
def test_whatever_call_a_process_dies_in_the_vm_starts_on_its_own_vgpu_again(tmp_path, spawn, is_configured):
    trial = Trial(tmp_path, partial(prepared, is_configured=is_configured), change)
    before = picture(trial.made)
    off = 0
    for _, _, where, later in trial.killed(trial.calls(), spawn):
        off += not picture(later).running
        run_reconcile(later.ports)
        if not picture(later).running:
            start(later.ports, "on")
        now = picture(later)
        assert (now.types, now.claims, list(now.running)) == (before.types, before.claims, list(before.running)), where
        act(later.ports, SchedulerSpec(EQUAL), drain=True)
    assert off >= 4


def test_whatever_call_fails_it_is_undone_or_the_error_says_what_is_left(tmp_path):
    trial = Trial(tmp_path, prepared, change)
    calls = trial.calls()
    assert "nvml.set_scheduler" in calls
    refused = 0
    for number, done, for_good in fault_points(calls, every_read=False):
        where = f"call {number} {calls[number - 1]}, done={done}, for good={for_good}"
        host = trial.host(f"{number}{done}{for_good}")
        before = everything(host)
        error = outcome(partial(change, failing(host.ports, number, done=done, for_good=for_good)))
        now = everything(host)
        host.sim.close()
        if error is None:
            assert now != before, where
            continue
        refused += 1
        if now != before:
            assert error.left or error.code == "partly-applied" or calls[number - 1].startswith("claims."), where
            later = host.again()
            run_reconcile(later.ports)
            if not picture(later).running:
                start(later.ports, "on")
            assert picture(later).types == before[2].types, where
    assert refused >= 2
    assert len(set(calls) & CHANGING) >= 2
