# SPDX-License-Identifier: Apache-2.0
"""A scheduler: shown with each VM's share, set when the driver is loaded where NVML cannot, and undone on a failure."""

from __future__ import annotations

from functools import partial

import pytest

from tests import EVERYTHING
from tests.failed_calls import failed_calls
from tests.faults import CHANGING, Trial
from tests.hosts import create, open_sim_host, picture, request, run_reconcile, start
from tests.layouts import A100, Signals
from tests.meanwhile import on_call, rebooted, unchanged, with_calls
from tests.schedulers import (
    BEST,
    EQUAL,
    POOL,
    TWO_MS,
    act,
    configured_scheduler,
    everything,
    paste,
    restore,
    runs,
    small,
    with_vms,
)
from tests.unit.operations.test_apply import diff, run
from vgpuctl.errors import Failed, HostCannot, Interrupted
from vgpuctl.model.vgpu_scheduler import SchedulerSpec
from vgpuctl.operations.queries import show_gpu

LINE = 'options nvidia NVreg_RegistryDwordsPerDevice="pci=0000:3b:00.0;RmPVMRL=0x00020013"'


def test_host_yaml_is_written_and_the_error_has_the_line_for_the_next_load(tmp_path):
    host = small(tmp_path, nvml="absent")
    planned = act(host.ports, TWO_MS, dry_run=True)
    assert planned.notes[-1].endswith(LINE)
    assert configured_scheduler(host) is None
    with pytest.raises(HostCannot, match="NVML cannot set it") as raised:
        act(host.ports, TWO_MS)
    assert (raised.value.status, raised.value.facts["line"]) == (6, LINE)
    assert str(raised.value.hint) == (
        "add this line to /etc/modprobe.d/vgpuctl-nvidia.conf, then load the driver nvidia again or reboot: " + LINE
    )
    assert list(planned.steps) == raised.value.left
    assert configured_scheduler(host) == TWO_MS
    assert not (tmp_path / "state" / "etc" / "modprobe.d").exists()
    with pytest.raises(HostCannot) as again:
        act(host.ports, TWO_MS)
    assert (again.value.left, again.value.hint) == ([], raised.value.hint)
    with pytest.raises(Failed, match="NVML cannot set it"):
        restore(host)
    paste(host, LINE)
    with pytest.raises(HostCannot) as written:
        act(host.ports, TWO_MS)
    assert written.value.hint == "modprobe's files have it: load the driver nvidia again or reboot"
    seen = show_gpu(host.ports, A100).data
    assert (seen.scheduler.running.policy, seen.scheduler.running.source) == ("best_effort", "kernel log")
    assert (seen.scheduler_at_load, seen.scheduler_next.time_slice_ms) == (None, 2)


def test_a_driver_that_was_loaded_with_it_is_accepted(tmp_path):
    host = small(tmp_path, nvml="absent")
    paste(host, LINE)
    host = rebooted(host)
    assert act(host.ports, TWO_MS).changed
    assert configured_scheduler(host) == TWO_MS
    assert not act(host.ports, TWO_MS).changed
    assert not restore(host).changed
    seen = show_gpu(host.ports, A100).data
    assert seen.scheduler.running.policy == "fixed_share"
    assert seen.scheduler_at_load == seen.scheduler_next == seen.scheduler.configured


def test_nvml_says_when_a_file_asks_for_something_else(tmp_path):
    host = open_sim_host(tmp_path)
    paste(host, LINE)
    assert len(act(host.ports, TWO_MS).notes) == 1
    assert "0x00020013" in act(host.ports, SchedulerSpec(EQUAL)).notes[1]
    assert runs(host) != BEST


SETS = (f"gpus[{A100}].scheduler.policy=fixed_share", f"gpus[{A100}].scheduler.time_slice_ms=2")


def test_apply_writes_host_yaml_too_and_diff_differs_until_the_driver_was_loaded_with_it(tmp_path):
    host = small(tmp_path, nvml="absent")
    planned = run(host.ports, *SETS, dry_run=True)
    assert planned.warnings[-1].endswith(LINE)
    assert configured_scheduler(host) is None
    with pytest.raises(HostCannot, match="NVML cannot set it") as raised:
        run(host.ports, *SETS)
    assert str(raised.value.hint).endswith(LINE)
    assert raised.value.left == list(planned.steps)
    assert configured_scheduler(host) == TWO_MS
    differs = diff(host.ports)
    assert differs.changed
    assert differs.warnings[-1].endswith(LINE)
    with pytest.raises(HostCannot) as again:
        run(host.ports)
    assert again.value.left == []
    paste(host, LINE)
    host = rebooted(host)
    assert not diff(host.ports).changed
    assert not run(host.ports).changed


def test_apply_over_a_host_yaml_that_cannot_be_read_says_the_same(tmp_path):
    host = small(tmp_path, nvml="absent")
    host.ports.host_file.replace("version: 1\ngpu: {}\n", None)
    text = f'version: 1\ngpus: {{"{A100}": {{scheduler: {{policy: fixed_share, time_slice_ms: 2}}}}}}\n'
    with pytest.raises(HostCannot, match="NVML cannot set it") as raised:
        run(host.ports, file=text)
    assert any("host.yaml" in line for line in raised.value.left)
    assert configured_scheduler(host) == TWO_MS


def test_one_line_has_all_gpus_of_host_yaml(tmp_path):
    gpus = ", ".join(f'{{address: "{address}", model: A100}}' for address in (A100, "0000:86:00.0"))
    host = open_sim_host(tmp_path, text=f"version: 1\nnvidia: {{driver: 550.90.05, nvml: absent}}\ngpus: [{gpus}]\n")
    for address in (A100, "0000:86:00.0"):
        with pytest.raises(HostCannot) as raised:
            act(host.ports, TWO_MS, gpu=address)
    line = raised.value.facts["line"]
    assert line == LINE[:-1] + ';pci=0000:86:00.0;RmPVMRL=0x00020013"'


def test_a_signal_while_devices_are_suspended_restores_everything(tmp_path):
    host, signals = with_vms(open_sim_host(tmp_path)), Signals()
    struck = on_call(host.ports, "nvml.set_scheduler", signals.come)
    with unchanged(host, everything), pytest.raises(Interrupted) as raised:
        act(struck, TWO_MS, drain=True, progress=signals)
    assert raised.value.left == []


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
    assert off >= (4 if EVERYTHING else 2)


def test_whatever_call_fails_it_is_undone_or_the_error_says_what_is_left(tmp_path):
    trial = Trial(tmp_path, prepared, change)
    calls = trial.calls()
    assert "nvml.set_scheduler" in calls
    refused = 0
    for one in failed_calls(trial, calls, everything):
        refused += one.error is not None
        if one.is_left:
            assert one.is_told, one.where
            later = one.host.again()
            run_reconcile(later.ports)
            if not picture(later).running:
                start(later.ports, "on")
            assert picture(later).types == one.before[2].types, one.where
    assert refused >= 2
    assert len(set(calls) & CHANGING) >= 2


def shares(host):
    return {share.vm: share.guaranteed_percent for share in show_gpu(host.ports, A100).data.shares}


def test_show_gpu_gives_each_vm_its_share(tmp_path):
    host = with_vms(open_sim_host(tmp_path))
    assert shares(host) == {"on": None, "off": None}
    act(host.ports, TWO_MS, drain=True)
    assert shares(host) == {"on": 10, "off": 10}
    act(host.ports, SchedulerSpec(EQUAL), drain=True)
    assert shares(host) == {"on": 100, "off": None}


def test_show_gpu_says_what_it_may_not_see_and_shows_the_rest(tmp_path):
    host = open_sim_host(tmp_path)

    def listdir(path):
        if path == "/etc/modprobe.d":
            raise PermissionError(13, "Permission denied", path)
        return host.ports.sysfs.listdir(path)

    seen = show_gpu(with_calls(host.ports, "sysfs", listdir=listdir), A100)
    assert "/etc/modprobe.d cannot be read: Permission denied" in seen.warnings
    assert (seen.data.scheduler_next, seen.data.scheduler.running.policy) == (None, "best_effort")
